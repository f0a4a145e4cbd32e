"""An ensemble that predicts the road's next physical state, and rollouts imagined inside it.

Section 4.3, "Ensemble World Model with Verified Error Bounds" (Eq. ensemble_mean, ensemble_var, model_error), and the
15-step imagination of "Training Details". One network serves every intersection: it sees the intersection's row, its
neighbours' mean row and both actions, and answers a correction to the present, mu = x + g. Members differ by their
start and by the transitions that they were dealt (bootstrap): their spread says where data are missing, their Gaussian
heads say how noisy the road is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.conformal.bootstrap import block_bootstrap, ratio_of_totals
from stream_jax.fit import Examples, TrainConfig, train
from stream_jax.rl.spectral import hardened
from stream_jax.rl.state import advance_clock, clip_physical, features, physical, with_neighbours
from stream_jax.rl.world_network import Network, Scaling, WorldConfig, apply, init_network, normalised_network
from stream_jax.types import RLState, Transition

SMALLEST_SCALE = 1e-3  # an input that varies less is constant and passes unscaled
ActFn = Callable[[Array, RLState], tuple[Array, Any]]  # key, state -> action [I, A], anything to keep


class WorldParams(NamedTuple):
    """A fitted ensemble; its weights have exact spectral norms of at most the configured coefficient."""

    network: Network  # leaves [K, ...]
    scaling: Scaling
    disagreement_limit: Array  # []


class Prediction(NamedTuple):
    """Every member's Gaussian for the next x, not clipped to what a road can show."""

    mean: Array  # [K, I, 10]
    sigma: Array  # [K, I, 10]


class ImaginedStep(NamedTuple):
    """What happened at an imagined step."""

    state: RLState
    action: Array  # [I, A]
    aux: Any  # what act_fn returned beside the action
    x_next: Array  # [I, 10]
    next_state: RLState


class Imagined(NamedTuple):
    """A rollout; steps that are not alive are to be left out."""

    transitions: ImaginedStep  # leaves [horizon, ...]
    alive: Array  # [horizon] bool, False from the first step on whose disagreement exceeds the limit
    disagreement: Array  # [horizon]


class ModelError(NamedTuple):
    """One-step errors of the ensemble mean on transitions in the order of time."""

    absolute: Array  # [] mean ||x' - mu||
    upper: Array  # [] its one-sided 95 % confidence limit, by block bootstrap
    relative: Array  # [] the paper's epsilon_model (Eq. model_error): reported, certifies nothing
    errors: Array  # [M]


class _Batch(NamedTuple):
    inputs: Array  # [M, I, D] standardised
    target: Array  # [M, I, 10] (x' - x) / change
    dealt: Array  # [M, K] how often each member was dealt the transition


def fit(
    key: Array,
    transitions: Transition,
    adjacency: Array,
    cfg: WorldConfig,
    train_cfg: TrainConfig,
    init: WorldParams | None = None,
) -> WorldParams:
    """Trains all members together on bootstrapped transitions (leaves [M, ...] in the order of time).

    With `init` training goes on from there and keeps its units.
    """
    num = transitions.action.shape[0]
    if num <= cfg.held_out_block * (cfg.held_out_every - 1):
        raise ValueError(f"{num} transitions leave none to hold out: collect more or lower held_out_block")
    start_key, deal_key, train_key = jax.random.split(key, 3)
    raw, change = jax.jit(_raw_examples)(transitions, adjacency)
    scaling = _fit_scaling(raw, change) if init is None else init.scaling
    batch = jax.jit(_examples, static_argnums=4)(deal_key, raw, change, scaling, cfg)
    held_out = (jnp.arange(num) // cfg.held_out_block) % cfg.held_out_every == cfg.held_out_every - 1
    data = Examples(*(jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch) for rows in (~held_out, held_out)))

    def start(_: Array) -> Network:
        return init_network(start_key, raw.shape[-1], cfg) if init is None else init.network

    result = train(train_key[None], start, partial(_loss, cfg=cfg), partial(_eval, cfg=cfg), data, train_cfg)
    trained = jax.tree.map(lambda leaf: leaf[0], result.params)
    network = hardened(jax.jit(normalised_network, static_argnums=1)(trained, cfg), cfg.coefficient)
    spread = jax.jit(partial(_disagreement_at, cfg=cfg))(network, scaling, data.val.inputs)
    # Too few held-out rows give their largest value: the cautious side, unlike a conformal quantile's infinity.
    return WorldParams(network, scaling, jnp.quantile(spread, cfg.limit_quantile, method="higher"))


def inputs(state: RLState, action: Array, adjacency: Array) -> Array:
    """[I, D]: own row, neighbours' mean row, own action, neighbours' mean action; D = 2 (2 H + 26) + 18."""
    rows = with_neighbours(features(state), adjacency)
    return jnp.concatenate([rows, with_neighbours(action, adjacency)], axis=-1)


def predict(params: WorldParams, state: RLState, action: Array, adjacency: Array, cfg: WorldConfig) -> Prediction:
    """Every member's mean and noise for the next physical state under an action [I, A]."""
    chex.assert_equal_shape_prefix([state.local, action], 1)
    scaled = (inputs(state, action, adjacency) - params.scaling.centre) / params.scaling.scale
    mean, log_sigma = apply(params.network, scaled, cfg)  # [K, I, 10]
    change = params.scaling.change
    return Prediction(physical(state) + change * mean, change * jnp.exp(log_sigma))


def mean_next(params: WorldParams, state: RLState, action: Array, adjacency: Array, cfg: WorldConfig) -> Array:
    """mu_W (Eq. ensemble_mean), clipped to what a road can show: [I, 10]."""
    return clip_physical(predict(params, state, action, adjacency, cfg).mean.mean(axis=0))


def disagreement(prediction: Prediction) -> Array:
    """sigma_W (Eq. ensemble_var), root mean square over the coordinates of x: []."""
    return jnp.sqrt(prediction.mean.var(axis=0).mean())


def imagine(
    key: Array, params: WorldParams, act_fn: ActFn, start: RLState, adjacency: Array, cfg: WorldConfig
) -> Imagined:
    """A rollout of `horizon` steps from one state.

    One member is drawn for the whole rollout, so that its errors persist as a wrong model's would, and the noise comes
    from its own head. City view held, clock running. vmap over keys and starts.
    """
    member_key, scan_key = jax.random.split(key)
    member = jax.random.randint(member_key, (), 0, cfg.members)

    def step(carry: tuple[RLState, Array], step_key: Array) -> tuple[tuple[RLState, Array], tuple]:
        state, alive = carry
        transition, spread = imagine_step(step_key, params, act_fn, state, member, adjacency, cfg)
        alive &= spread <= params.disagreement_limit
        return (transition.next_state, alive), (transition, alive, spread)

    keys = jax.random.split(scan_key, cfg.horizon)
    _, rollout = jax.lax.scan(step, (start, jnp.array(True)), keys)
    return Imagined(*rollout)


def imagine_step(
    key: Array, params: WorldParams, act_fn: ActFn, state: RLState, member: Array, adjacency: Array, cfg: WorldConfig
) -> tuple[ImaginedStep, Array]:
    """One imagined step with the noise of `member` ([] int), and the ensemble's disagreement about it."""
    act_key, noise_key = jax.random.split(key)
    action, aux = act_fn(act_key, state)
    prediction = predict(params, state, action, adjacency, cfg)
    noise = jax.random.normal(noise_key, state.local.shape)
    x_next = clip_physical(prediction.mean[member] + prediction.sigma[member] * noise)
    clock = advance_clock(state.clock, cfg.control_s, cfg.forecast_s)
    next_state = state._replace(local=x_next, plan=action, clock=clock)
    return ImaginedStep(state, action, aux, x_next, next_state), disagreement(prediction)


def model_error(
    params: WorldParams,
    transitions: Transition,
    adjacency: Array,
    cfg: WorldConfig,
    floor: float = 0.1,
    block: int = 15,
    seed: int = 0,
) -> ModelError:
    """Errors on transitions that the fit has not seen. Args: floor, the paper's eps_floor; block, steps per block."""

    def one(transition: Transition) -> tuple[Array, Array]:
        x_next = physical(transition.next_state)
        predicted = mean_next(params, transition.state, transition.action, adjacency, cfg)
        return jnp.linalg.norm(x_next - predicted), jnp.linalg.norm(x_next)

    errors, sizes = jax.lax.map(one, transitions, batch_size=256)  # [M]
    sums = jnp.stack([errors, jnp.ones_like(errors)], axis=1)
    # The upper end of a two-sided 90 % interval is the one-sided 95 % limit.
    interval = block_bootstrap(jax.random.key(seed), sums, ratio_of_totals, block, level=0.9)
    return ModelError(interval.estimate, interval.upper, (errors / (sizes + floor)).mean(), errors)


def _raw_examples(transitions: Transition, adjacency: Array) -> tuple[Array, Array]:
    raw = jax.vmap(inputs, (0, 0, None))(transitions.state, transitions.action, adjacency)
    return raw, physical(transitions.next_state) - physical(transitions.state)


def _fit_scaling(raw: Array, change: Array) -> Scaling:
    scale = raw.std(axis=(0, 1))
    typical = jnp.sqrt((change**2).mean(axis=(0, 1)))
    return Scaling(
        raw.mean(axis=(0, 1)), jnp.where(scale < SMALLEST_SCALE, 1.0, scale), jnp.maximum(typical, SMALLEST_SCALE)
    )


def _examples(key: Array, raw: Array, change: Array, scaling: Scaling, cfg: WorldConfig) -> _Batch:
    num = raw.shape[0]
    draws = jax.random.randint(key, (cfg.members, num), 0, num)
    dealt = jax.vmap(lambda rows: jnp.zeros(num).at[rows].add(1.0))(draws)  # [K, M]
    return _Batch((raw - scaling.centre) / scaling.scale, change / scaling.change, dealt.T)


def _likelihood(network: Network, batch: _Batch, cfg: WorldConfig) -> Array:
    """Negative log-likelihood without its constant, averaged over coordinates: [K, B]."""
    mean, log_sigma = apply(normalised_network(network, cfg), batch.inputs, cfg)  # [K, B, I, 10]
    return (0.5 * ((batch.target - mean) * jnp.exp(-log_sigma)) ** 2 + log_sigma).mean(axis=(2, 3))


def _loss(_: Array, network: Network, batch: _Batch, weight: Array, __: None, cfg: WorldConfig) -> Array:
    """Sum over members, so that each has the gradient that it would have alone."""
    return (weight * batch.dealt.T * _likelihood(network, batch, cfg)).sum() / weight.sum()


def _eval(network: Network, batch: _Batch, _: None, cfg: WorldConfig) -> Array:
    return _likelihood(network, batch, cfg).mean(axis=0)


def _disagreement_at(network: Network, scaling: Scaling, scaled: Array, cfg: WorldConfig) -> Array:
    """[V] at standardised inputs [V, I, D]."""
    mean, _ = apply(network, scaled, cfg)
    return jax.vmap(lambda member_means: disagreement(Prediction(scaling.change * member_means, member_means)), 1)(mean)
