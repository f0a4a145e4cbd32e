"""OmniAnomaly: a recurrent variational autoencoder; what it cannot reconstruct with high probability is anomalous.

Su et al., "Robust Anomaly Detection for Multivariate Time Series through Stochastic Recurrent Neural Network"
(KDD 2019). A GRU reads the window, each latent vector depends on the one before it and passes planar flows, a second
GRU reads the latents and says mean and standard deviation of every value; the prior is a random walk seen through
noise. Sizes, learning rate, batch and the threshold (peaks over threshold on the fitting scores, risk 1e-3, tail 2 %)
are those of the authors' public program, whose score of a single dimension is taken as a cell's: minus the
log-probability of its value at the window's last step. Differences: 8 latent samples in place of 1,024, each decoded on
its own; what was not observed enters as 0 and is not scored. Trained by `stream_jax.fit`, stopped early on the steps
that stop the flow.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from experiments.methods.detection.pot import PotConfig, pot_threshold
from experiments.methods.detection.windows import (
    cell_scores,
    flat_series,
    learning_rows,
    over_rows,
    window_ending_at,
)
from experiments.methods.method import Method
from stream_jax.fit import Examples, TrainConfig, train
from stream_jax.flows.context import FlowData

SCORE_BATCH = 16
SMALLEST_NORM = 1e-6
DEFAULT_TRAINING = TrainConfig(learning_rate=1e-3, batch=50, epochs=20, patience=4, clip=10.0, weight_decay=1e-4)


@dataclasses.dataclass(frozen=True)
class OmniAnomalyConfig:
    """The public program's sizes."""

    window: int = 100
    latent: int = 3
    hidden: int = 500  # of both GRUs
    dense: int = 500  # of the two linear layers after each
    flow_layers: int = 20  # planar
    sd_floor: float = 1e-4
    samples: int = 8  # of the latents, for a score
    training: TrainConfig = DEFAULT_TRAINING
    pot: PotConfig = PotConfig()

    def __post_init__(self) -> None:
        sizes = (self.window, self.latent, self.hidden, self.dense, self.samples)
        if min(sizes) < 1 or self.flow_layers < 0 or self.sd_floor <= 0.0:
            raise ValueError("sizes must be at least 1, flow_layers not negative and sd_floor positive")


class OmniAnomalyParams(NamedTuple):
    """The trained network."""

    network: Any
    threshold: float


class Reading(NamedTuple):
    """What the network says about one window."""

    mean: Array  # [W, M]
    sd: Array  # [W, M]
    gap: Array  # [] log q(z | x) - log p(z) of the sampled latents


def fit(key: Array, data: FlowData, cfg: OmniAnomalyConfig, held_out: float) -> OmniAnomalyParams:
    """Maximises the evidence lower bound; the threshold rests on the scores of all fitting steps."""
    values, observed = flat_series(data)
    rows, kept = learning_rows(values.shape[0], held_out)
    example = jnp.zeros((cfg.window, values.shape[1])), jnp.zeros((cfg.window, cfg.latent))
    result = train(
        jnp.atleast_1d(key),
        lambda init_key: _Network(cfg).init(init_key, *example),
        partial(_loss, cfg=cfg),
        partial(_window_losses, cfg=cfg),
        Examples(rows, kept, (values, observed)),
        cfg.training,
    )
    params = OmniAnomalyParams(jax.tree.map(lambda leaf: leaf[0], result.params), float("inf"))
    return params._replace(threshold=pot_threshold(scores(params, data, cfg), cfg.pot))


def scores(params: OmniAnomalyParams, data: FlowData, cfg: OmniAnomalyConfig) -> Array:
    """Minus the mean log-probability of a value over latent samples, nats: [T, N], NaN where not observed."""
    values, _ = flat_series(data)
    return cell_scores(_surprise(params.network, values, cfg), data)


class _Network(nn.Module):
    """Recognition, flows and generation of one window."""

    cfg: OmniAnomalyConfig

    @nn.compact
    def __call__(self, window: Array, noise: Array) -> Reading:
        """Args: window [W, M], noise [W, latent] standard normal."""
        cfg = self.cfg
        heard = _Recurrent(cfg.hidden, cfg.dense, name="recognition")(window)
        chain = nn.scan(_Latent, variable_broadcast="params", split_rngs={"params": False})
        _, (latent, log_q) = chain(cfg.latent, cfg.sd_floor, name="latent")(jnp.zeros(cfg.latent), (heard, noise))
        latent, log_det = _PlanarFlows(cfg.flow_layers, name="flows")(latent)
        said = _Recurrent(cfg.hidden, cfg.dense, name="generation")(latent)
        mean = nn.Dense(window.shape[-1], name="mean")(said)
        sd = nn.softplus(nn.Dense(window.shape[-1], name="sd")(said)) + cfg.sd_floor
        return Reading(mean, sd, log_q.sum() - log_det.sum() - random_walk_log_density(latent))


class _Recurrent(nn.Module):
    """GRU, then two linear layers, over [W, ...]."""

    hidden: int
    dense: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        states = nn.RNN(nn.GRUCell(self.hidden))(inputs)
        return nn.Dense(self.dense)(nn.Dense(self.dense)(states))


class _Latent(nn.Module):
    """One latent vector from what was heard and the latent before it, with its log-density."""

    size: int
    sd_floor: float

    @nn.compact
    def __call__(self, before: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        heard, noise = inputs
        joined = jnp.concatenate([heard, before], axis=-1)
        mean = nn.Dense(self.size)(joined)
        sd = nn.softplus(nn.Dense(self.size)(joined)) + self.sd_floor
        latent = mean + sd * noise
        return latent, (latent, norm.logpdf(latent, mean, sd).sum(-1))


class _PlanarFlows(nn.Module):
    """z + u tanh(w z + b), layer after layer, u moved so that each layer can be undone (Rezende and Mohamed 2015)."""

    layers: int

    @nn.compact
    def __call__(self, latent: Array) -> tuple[Array, Array]:
        """Args: latent [W, size]. Returns: the same shape, and log-determinants [W]."""
        shape = (self.layers, latent.shape[-1])
        direction = self.param("direction", nn.initializers.normal(0.1), shape)
        shift = self.param("shift", nn.initializers.normal(0.1), shape)
        offset = self.param("offset", nn.initializers.zeros, (self.layers,))

        def layer(carry: tuple[Array, Array], weights: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
            (z, log_det), (w, u, b) = carry, weights
            along = w @ u
            u = u + (nn.softplus(along) - 1.0 - along) * w / jnp.maximum(w @ w, SMALLEST_NORM)
            bend = jnp.tanh(z @ w + b)  # [W]
            log_det = log_det + jnp.log1p((1.0 - jnp.square(bend)) * (u @ w))  # u w > -1
            return (z + bend[:, None] * u, log_det), None

        return jax.lax.scan(layer, (latent, jnp.zeros(latent.shape[0])), (direction, shift, offset))[0]


def random_walk_log_density(latent: Array) -> Array:
    """log p of [W, size] under z_t = s_t + noise, s_t = s_{t-1} + noise, all noises and s_1 standard normal.

    A Kalman filter whose variances are the same in every dimension.
    """

    def step(carry: tuple[Array, Array], z: Array) -> tuple[tuple[Array, Array], Array]:
        mean, variance = carry
        total = variance + 1.0
        gain = variance / total
        return (mean + gain * (z - mean), variance * (1.0 - gain) + 1.0), norm.logpdf(z, mean, jnp.sqrt(total)).sum()

    return jax.lax.scan(step, (jnp.zeros(latent.shape[-1]), jnp.ones(())), latent)[1].sum()


def _loss(key: Array, network: Any, rows: Array, weight: Array, shared: tuple[Array, Array], cfg: Any) -> Array:
    losses = _bounds(key, network, rows, shared, cfg)
    return (weight * losses).sum() / jnp.maximum(weight.sum(), 1.0)


def _window_losses(network: Any, rows: Array, shared: tuple[Array, Array], cfg: OmniAnomalyConfig) -> Array:
    return _bounds(jax.random.key(0), network, rows, shared, cfg)  # the same noise in every epoch


def _bounds(key: Array, network: Any, rows: Array, shared: tuple[Array, Array], cfg: OmniAnomalyConfig) -> Array:
    """Minus the evidence lower bound of the windows ending at `rows`, nats per step and value. [B]"""

    def one(row: Array) -> Array:
        window, seen = (window_ending_at(part, row, cfg.window) for part in shared)
        noise = jax.random.normal(jax.random.fold_in(key, row), (cfg.window, cfg.latent))
        said = _Network(cfg).apply(network, window, noise)
        fit_of_values = jnp.where(seen, norm.logpdf(window, said.mean, said.sd), 0.0).sum()
        return (said.gap - fit_of_values) / window.size

    return jax.vmap(one)(rows)


@partial(jax.jit, static_argnames="cfg")
def _surprise(network: Any, values: Array, cfg: OmniAnomalyConfig) -> Array:
    """The score of every entry [T, M]; the same noise at every step, so that steps can be compared."""
    noise = jax.random.normal(jax.random.key(0), (cfg.samples, cfg.window, cfg.latent))

    def at(row: Array) -> Array:
        window = window_ending_at(values, row, cfg.window)
        said = jax.vmap(lambda draw: _Network(cfg).apply(network, window, draw))(noise)
        return -norm.logpdf(window[-1], said.mean[:, -1], said.sd[:, -1]).mean(0)

    return over_rows(at, values.shape[0], SCORE_BATCH)


METHOD = Method(
    "omni_anomaly",
    OmniAnomalyConfig(),
    variants={"counts": {}},
    paper_label={"OmniAnomaly": "omni_anomaly"},
    tables={"anomaly": ("omni_anomaly",)},
)
