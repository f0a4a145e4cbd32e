"""The two-stream PU-GAT+ network: windows in, standardised mean and sigma out.

Section 4.1, Eqs. (unc_update), (trend) and (combined_unc). The paper names no temporal encoder; here the steps of a
window are encoded by two dense layers, which on windows this short cost far less than a recurrent cell.
"""

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from stream_jax.gnn.attention import AttentionConfig, Neighbours, PUGATLayer
from stream_jax.gnn.decompose import causal_trend, fuse
from stream_jax.gnn.profile import ProfileConfig

HINGES = (2.0, 4.0)  # standardised errors at which the linear part may bend


@dataclasses.dataclass(frozen=True)
class ForecasterConfig:
    """Sizes are the paper's; where it gives none the comment says so."""

    layers: int = 3
    hidden: int = 128
    heads: int = 4
    history: int = 12  # not given
    horizon: int = 4  # one hour of 15-minute steps
    targets: tuple[int, ...] = (0,)  # features to forecast; flow
    attention: AttentionConfig = AttentionConfig()
    trend: Literal["moving_average", "seasonal"] = "moving_average"
    trend_lags: int = 9  # two hours; the paper's 2w + 1 with w = 4, which it does not give
    dual_stream: bool = True
    linear: bool = True  # add a piecewise linear autoregression of the anchor's errors, shared by all cells
    # "nll" is the paper's; "faithful" fits the mean by squared error and sigma by the likelihood of what is left
    loss: Literal["faithful", "nll", "beta_nll", "mse"] = "faithful"
    beta: float = 0.5  # how far busy cells count for more: 0 in standardised units, 1 in vehicles
    regulariser: float = 1e-3  # lambda_sigma of Eq. (het_nll); not given
    auxiliary: float = 0.1  # weight of the likelihood of the hidden sigmas, which otherwise are mere gates
    dropout: float = 0.1  # not given
    sigma_min: float = 0.01  # standardised units
    embedding: int = 0  # learned numbers per cell; with a week of data they memorise it
    calendar: bool = False  # show the network the clock; with a week of data it memorises the days
    profile: ProfileConfig = ProfileConfig()


class NetworkOutput(NamedTuple):
    """Standardised forecast and the hidden uncertainties of all layers."""

    mean: Array  # [N, B, H * G]
    sigma: Array  # [N, B, H * G]
    hidden_sigma: Array  # [streams * (layers + 1), N, B]


class StreamEncoder(nn.Module):
    """Dense encoding of the window, then PU-GAT+ layers; one of these for each stream."""

    cfg: ForecasterConfig

    @nn.compact
    def __call__(self, inputs: Array, neighbours: Neighbours, train: bool) -> tuple[Array, Array, Array]:
        """Args: inputs [N, B, ·]. Returns mean and sigma [N, B, H * G], hidden sigmas [layers + 1, N, B]."""
        cfg = self.cfg
        # One mask for all cells: as strong a regulariser, and far fewer random numbers.
        dropout = partial(nn.Dropout, cfg.dropout, broadcast_dims=(0,), deterministic=not train)
        if cfg.embedding:
            cells = self.param("cells", nn.initializers.normal(0.1), (inputs.shape[0], cfg.embedding))
            shape = (*inputs.shape[:2], cfg.embedding)
            inputs = jnp.concatenate([inputs, jnp.broadcast_to(cells[:, None], shape)], -1)
        nodes = nn.elu(nn.Dense(cfg.hidden)(inputs))
        nodes = nn.LayerNorm()(nn.Dense(cfg.hidden)(dropout()(nodes)))
        sigma = nn.softplus(nn.Dense(1, name="first_sigma")(nodes)[..., 0])
        hidden_sigma = [sigma]
        for layer in range(cfg.layers):
            average = layer == cfg.layers - 1
            block = PUGATLayer(cfg.hidden, cfg.heads, cfg.attention, average, cfg.dropout, name=f"layer_{layer + 1}")
            nodes, sigma = block(nodes, sigma, neighbours, train)
            hidden_sigma.append(sigma)
        width = cfg.horizon * len(cfg.targets)
        mean = nn.Dense(width, kernel_init=nn.initializers.zeros, name="mean")(dropout()(nodes))
        start = nn.initializers.constant(0.0)  # softplus(0)^2 * 2 is about 1: the fused sigma starts at one unit
        log_sigma = nn.Dense(width, kernel_init=nn.initializers.zeros, bias_init=start, name="sigma")(nodes)
        return mean, nn.softplus(log_sigma), jnp.stack(hidden_sigma)


class Network(nn.Module):
    """Trend and residual encoders and their fusion."""

    cfg: ForecasterConfig

    @nn.compact
    def __call__(
        self, window: Array, season: Array, context: Array, neighbours: Neighbours, train: bool
    ) -> NetworkOutput:
        """Args: window, season [T, N, B, F]; context [N, B, ·]."""
        cfg = self.cfg
        linear = nn.Dense(cfg.horizon * len(cfg.targets), kernel_init=nn.initializers.zeros, name="linear")
        direct = linear(_with_hinges(_flat(window, context))) if cfg.linear else 0.0
        if not cfg.dual_stream:
            mean, sigma, hidden = StreamEncoder(cfg, name="single")(_flat(window, context), neighbours, train)
            return NetworkOutput(mean + direct, jnp.sqrt(2.0 * sigma**2 + cfg.sigma_min**2), hidden)
        if cfg.trend == "moving_average":
            trend, residual = causal_trend(window, self.param("average", nn.initializers.zeros, (cfg.trend_lags,)))
        else:
            trend, residual = season, window - season
        slow = StreamEncoder(cfg, name="trend")(_flat(trend, context), neighbours, train)
        fast = StreamEncoder(cfg, name="residual")(_flat(residual, context), neighbours, train)
        w_rho = self.param("w_rho", nn.initializers.zeros, ())
        mean, sigma = fuse(slow[0], slow[1], fast[0], fast[1], w_rho, cfg.sigma_min)
        return NetworkOutput(mean + direct, sigma, jnp.concatenate([slow[2], fast[2]]))


def gaussian_nll(error: Array, sigma: Array, regulariser: float) -> Array:
    """Entries of Eq. (het_nll): Gaussian likelihood plus a pull of sigma towards 1 (standardised units only)."""
    log_sigma = jnp.log(sigma)
    return 0.5 * (error / sigma) ** 2 + log_sigma + regulariser * log_sigma**2


def _flat(window: Array, context: Array) -> Array:
    """[T, N, B, F] and [N, B, ·] to one input row per cell, [N, B, T * F + ·]."""
    steps = jnp.moveaxis(window, 0, 2)
    return jnp.concatenate([steps.reshape(*steps.shape[:2], -1), context], -1)


def _with_hinges(inputs: Array) -> Array:
    """Inputs and what of them lies beyond each threshold: large errors, as of incidents, outlast small ones."""
    beyond = [jnp.sign(inputs) * nn.relu(jnp.abs(inputs) - threshold) for threshold in HINGES]
    return jnp.concatenate([inputs, *beyond], -1)
