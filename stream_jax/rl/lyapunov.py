"""The Lyapunov function L(x) of the road's physical state, its decrease condition and its fit.

Definitions "Lyapunov Network" and "Lyapunov Decrease Constraint" (Eq. lyapunov, lyap_constraint), corrected: L sees the
controllable x only, the network is centred so that L is 0 on the empty road, and Q has the trace d, or else L could be
scaled until every bound on it looks small.

    L(x) = mean over intersections of ||f(x_i) - f(0)||^2 + eta x_i' Q x_i,   Q = A A' + 1e-3 I scaled to trace d

One f and one Q serve all intersections. The mean, not the sum, because d_C is relative to limits per intersection:
kappa and delta then mean the same on a grid of any size.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.fit import Examples, TrainConfig, train
from stream_jax.rl.spectral import ACTIVATIONS, Layer, hardened, init_layers, mlp, normalised
from stream_jax.task import LOCAL


@dataclasses.dataclass(frozen=True)
class LyapunovConfig:
    """None of these values is in the paper."""

    hidden: tuple[int, ...] = (64, 64, 32)  # the last is the size of f
    activation: str = "tanh"
    eta: float = 0.1  # weight of the quadratic part
    kappa: float = 0.1  # decrease per unit of violation
    delta: float = 0.01  # slack
    smallest: float = 1e-3  # added to the eigenvalues of A A'
    coefficient: float = 1.0  # largest spectral norm of each layer
    power_iterations: int = 5  # while training
    regulariser: float = 1e-3  # times the mean square weight
    held_out_block: int = 20  # consecutive transitions kept or held out together
    held_out_every: int = 5

    def __post_init__(self) -> None:
        if not (self.eta > 0 and self.kappa > 0 and self.delta >= 0 and self.smallest > 0 and self.coefficient > 0):
            raise ValueError("eta, kappa, smallest and coefficient must be positive and delta at least 0")
        if self.activation not in ACTIVATIONS or not self.hidden:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)} and hidden not empty")


class LyapunovParams(NamedTuple):
    """Weights of L; after a fit every layer's exact spectral norm is at most the configured coefficient."""

    layers: tuple[Layer, ...]
    factor: Array  # [d, d] A


class _Batch(NamedTuple):
    x: Array  # [M, I, 10]
    after: Array  # [M, 2, I, 10] the state that followed, and the one predicted
    violation: Array  # [M]
    weight: Array  # [M]


def init(key: Array, cfg: LyapunovConfig, dims: int = LOCAL) -> LyapunovParams:
    """A random network and Q = I."""
    layers = hardened(init_layers(key, (dims, *cfg.hidden)), cfg.coefficient)
    return LyapunovParams(layers, jnp.eye(dims))


def weighting(params: LyapunovParams, cfg: LyapunovConfig) -> Array:
    """Q [d, d], positive definite with trace d."""
    dims = params.factor.shape[0]
    raw = params.factor @ params.factor.T + cfg.smallest * jnp.eye(dims)
    return raw * (dims / jnp.trace(raw))


def centred(params: LyapunovParams, x: Array, cfg: LyapunovConfig) -> Array:
    """f(x_i) - f(0) of every intersection: [I, 10] -> [I, hidden[-1]]."""
    with_origin = jnp.concatenate([x, jnp.zeros_like(x[:1])])
    outputs = mlp(params.layers, with_origin, cfg.activation)
    return outputs[:-1] - outputs[-1]


def value(params: LyapunovParams, x: Array, cfg: LyapunovConfig) -> Array:
    """L(x), 0 on the empty road and at least eta lambda_min(Q) ||x||^2 / I elsewhere. Args: x [I, 10]."""
    chex.assert_rank(x, 2)
    network = (centred(params, x, cfg) ** 2).sum(axis=-1)
    quadratic = jnp.einsum("id,de,ie->i", x, weighting(params, cfg), x)
    return (network + cfg.eta * quadratic).mean()


def shortfall(now: Array, after: Array, margin: Array | float, violation: Array, cfg: LyapunovConfig) -> Array:
    """L(mu) + margin - L(x) + kappa d_C(x) - delta: the condition holds where this is at most 0."""
    return after + margin - now + cfg.kappa * violation - cfg.delta


def fit(
    key: Array,
    x: Array,
    x_next: Array,
    violation: Array,
    mu: Array,
    cfg: LyapunovConfig,
    train_cfg: TrainConfig,
    weight: Array | None = None,
    init_params: LyapunovParams | None = None,
) -> LyapunovParams:
    """Learns L from transitions, real and imagined, by the hinge of the decrease condition.

    Both the state that followed and the one predicted must satisfy it: the first is what the drift bound counts, the
    second what the filter tests.

    Args:
        x, x_next, mu: [M, I, 10]; mu is the world model's mean.
        violation: [M] d_C(x).
        weight: [M], 0 leaves a transition out (an imagined step that is not alive).
    """
    num = x.shape[0]
    if num <= cfg.held_out_block * (cfg.held_out_every - 1):
        raise ValueError(f"{num} transitions leave none to hold out: collect more or lower held_out_block")
    batch = _Batch(x, jnp.stack([x_next, mu], axis=1), violation, jnp.ones(num) if weight is None else weight)
    held_out = (jnp.arange(num) // cfg.held_out_block) % cfg.held_out_every == cfg.held_out_every - 1
    data = Examples(*(jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch) for rows in (~held_out, held_out)))
    start_key, train_key = jax.random.split(key)
    start = init(start_key, cfg, x.shape[-1]) if init_params is None else init_params
    loss_fn, eval_fn = partial(_loss, cfg=cfg), partial(_eval, cfg=cfg)
    result = train(train_key[None], lambda _: start, loss_fn, eval_fn, data, train_cfg)
    best = jax.tree.map(lambda leaf: leaf[0], result.params)
    layers = jax.jit(normalised, static_argnums=(1, 2))(best.layers, cfg.coefficient, cfg.power_iterations)
    return LyapunovParams(hardened(layers, cfg.coefficient), best.factor)


def _hinge(params: LyapunovParams, batch: _Batch, cfg: LyapunovConfig) -> Array:
    """Weighted excess of each transition, averaged over what followed and what was predicted: [B]."""
    layers = normalised(params.layers, cfg.coefficient, cfg.power_iterations)
    states = jnp.concatenate([batch.x[:, None], batch.after], axis=1)  # [B, 3, I, 10]
    values = jax.vmap(jax.vmap(partial(value, params._replace(layers=layers), cfg=cfg)))(states)  # [B, 3]
    short = shortfall(values[:, :1], values[:, 1:], 0.0, batch.violation[:, None], cfg)
    return batch.weight * jnp.maximum(short, 0.0).mean(axis=1)


def _loss(_: Array, params: LyapunovParams, batch: _Batch, weight: Array, __: None, cfg: LyapunovConfig) -> Array:
    squares = sum((layer.weight**2).mean() for layer in params.layers) + (params.factor**2).mean()
    return (weight * _hinge(params, batch, cfg)).sum() / weight.sum() + cfg.regulariser * squares


def _eval(params: LyapunovParams, batch: _Batch, _: None, cfg: LyapunovConfig) -> Array:
    return _hinge(params, batch, cfg)
