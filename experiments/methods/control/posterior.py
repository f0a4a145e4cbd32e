"""A world model with a posterior over its weights, from which whole models are drawn (SWAG, Maddox et al., 2019).

The Bayesian world model of LAMBDA (As et al., 2022, Section 4.1). The task's state is observed, so the model is a
Gaussian correction to the present and needs no latent state. Along the last half of the fitting weights are recorded
at the same learning rate; their mean, variances and deviations are the Gaussian that samples come from.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

FARTHEST = 10.0  # standard deviations of an input beyond which a model does not extrapolate: a dream stays finite
SMALLEST_SCALE = 1e-3  # an input that varies less is constant and passes unscaled


@dataclasses.dataclass(frozen=True)
class PosteriorConfig:
    """Sizes of the network are those of LyCon-WRL+'s members."""

    hidden: int = 64
    layers: int = 2
    learning_rate: float = 2e-3
    batch: int = 64  # steps, each with all rows
    snapshots: int = 10  # of the weights: the rank of the posterior
    recorded: float = 0.5  # share of the gradient steps, the last, along which snapshots are taken
    log_sigma: tuple[float, float] = (-4.0, 1.5)  # in units of the typical change

    def __post_init__(self) -> None:
        if min(self.hidden, self.layers, self.batch) < 1 or self.snapshots < 2 or not 0 < self.recorded <= 1:
            raise ValueError("hidden, layers and batch must be at least 1, snapshots at least 2, recorded in (0, 1]")


class Scaling(NamedTuple):
    """Units of the network, measured when it is first fitted."""

    centre: Array  # [D]
    scale: Array  # [D]
    change: Array  # [P]


class World(NamedTuple):
    """The network as it trains and the posterior around its recent weights; W numbers in all."""

    network: Any
    optimiser: Any
    scaling: Scaling
    mean: Array  # [W]
    variance: Array  # [W]
    deviations: Array  # [snapshots, W]
    fitted: Array  # [] bool


class _Network(nn.Module):
    cfg: PosteriorConfig
    outputs: int

    @nn.compact
    def __call__(self, scaled: Array) -> tuple[Array, Array]:
        rows = scaled
        for _ in range(self.cfg.layers):
            rows = nn.silu(nn.Dense(self.cfg.hidden)(rows))
        mean = nn.Dense(self.outputs, name="mean")(rows)
        low, high = self.cfg.log_sigma
        return mean, low + (high - low) * jax.nn.sigmoid(nn.Dense(self.outputs, name="spread")(rows))


def init(key: Array, inputs: Array, outputs: int, cfg: PosteriorConfig) -> World:
    """A world that has seen nothing. Args: inputs: [..., D], for its size."""
    network = _Network(cfg, outputs).init(key, inputs)
    flat, width = ravel_pytree(network)[0], inputs.shape[-1]
    scaling = Scaling(jnp.zeros(width), jnp.ones(width), jnp.ones(outputs))
    nowhere = jnp.zeros((cfg.snapshots, flat.size))
    optimiser = _optimiser(cfg).init(network)
    return World(network, optimiser, scaling, flat, jnp.zeros_like(flat), nowhere, jnp.array(False))


def fit(key: Array, world: World, inputs: Array, change: Array, steps: Array | int, cfg: PosteriorConfig) -> World:
    """Trains on and records the posterior.

    Args:
        inputs: [M, R, D].
        change: [M, R, P] of what is predicted.
        steps: gradient steps in all, rounded to whole ones between snapshots; at least one before each.
    """
    fit_key, record_key = jax.random.split(key)
    found = _measure(inputs, change)
    scaling = jax.tree.map(lambda old, new: jnp.where(world.fitted, old, new), world.scaling, found)
    scaled, target = _scaled(inputs, scaling), change / scaling.change

    between = jnp.maximum(1, jnp.round(cfg.recorded * steps / cfg.snapshots).astype(jnp.int32))

    def step(index: Array, carry: tuple[Any, Any], phase_key: Array) -> tuple[Any, Any]:
        network, optimiser = carry
        rows = jax.random.randint(jax.random.fold_in(phase_key, index), (cfg.batch,), 0, inputs.shape[0])
        slope = jax.grad(negative_log_likelihood)(network, scaled[rows], target[rows], cfg)
        updates, optimiser = _optimiser(cfg).update(slope, optimiser, network)
        return optax.apply_updates(network, updates), optimiser

    def record(carry: tuple[Any, Any], snapshot_key: Array) -> tuple[tuple[Any, Any], Array]:
        carry = jax.lax.fori_loop(0, between, partial(step, phase_key=snapshot_key), carry)
        return carry, ravel_pytree(carry[0])[0]

    before = jnp.maximum(0, steps - cfg.snapshots * between)
    trained = jax.lax.fori_loop(0, before, partial(step, phase_key=fit_key), (world.network, world.optimiser))
    trained, snapshots = jax.lax.scan(record, trained, jax.random.split(record_key, cfg.snapshots))
    mean = snapshots.mean(axis=0)
    return World(*trained, scaling, mean, snapshots.var(axis=0), snapshots - mean, jnp.array(True))


def sample(key: Array, world: World) -> Any:
    """The weights of one model: half of the variance by coordinate, half along the recorded deviations."""
    own_key, joint_key = jax.random.split(key)
    rank = world.deviations.shape[0]
    own = jnp.sqrt(world.variance / 2.0) * jax.random.normal(own_key, world.mean.shape)
    joint = jax.random.normal(joint_key, (rank,)) @ world.deviations / jnp.sqrt(2.0 * (rank - 1))
    return ravel_pytree(world.network)[1](world.mean + own + joint)


def predict(network: Any, scaling: Scaling, inputs: Array, cfg: PosteriorConfig) -> tuple[Array, Array]:
    """Mean and standard deviation of the change [..., P] that one model expects."""
    mean, log_sigma = _apply(network, _scaled(inputs, scaling), cfg)
    return scaling.change * mean, scaling.change * jnp.exp(log_sigma)


def negative_log_likelihood(network: Any, scaled: Array, target: Array, cfg: PosteriorConfig) -> Array:
    """Without its constant, averaged over everything."""
    mean, log_sigma = _apply(network, scaled, cfg)
    return (0.5 * jnp.square((target - mean) * jnp.exp(-log_sigma)) + log_sigma).mean()


def _apply(network: Any, scaled: Array, cfg: PosteriorConfig) -> tuple[Array, Array]:
    return _Network(cfg, network["params"]["mean"]["bias"].shape[-1]).apply(network, scaled)


def _scaled(inputs: Array, scaling: Scaling) -> Array:
    return jnp.clip((inputs - scaling.centre) / scaling.scale, -FARTHEST, FARTHEST)


def _measure(inputs: Array, change: Array) -> Scaling:
    scale = inputs.std(axis=(0, 1))
    typical = jnp.sqrt(jnp.square(change).mean(axis=(0, 1)))
    centre = inputs.mean(axis=(0, 1))
    return Scaling(centre, jnp.where(scale < SMALLEST_SCALE, 1.0, scale), jnp.maximum(typical, SMALLEST_SCALE))


def _optimiser(cfg: PosteriorConfig) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(cfg.learning_rate))
