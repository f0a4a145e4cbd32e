"""RIPCN: how hard each road is to enter steers where flow and its uncertainty go, told as a few components of errors.

Lv, Lin, Guo, Mao, Nie, Gong, Lin, Wan, "RIPCN: A Road Impedance Principal Component Network for Probabilistic Traffic
Flow Forecasting", KDD 2026 (arXiv 2512.21685), with the sizes of the authors' repository LvHaochenBANG/RIPCN. The text
was at hand only in another's translation of its chapter 4, whose equation numbers are given. Followed:
the impedance of Eq. (4), its future by attention over its past and the loss of that, Eqs. (6) to (9); graph
convolutions over differences of impedance between neighbours, Eqs. (8) and (20), within causal convolutions in time and
skip connections; components d_1 .. d_K of the errors of all cells and horizons together, orthogonal by Eq. (11), their
directions and lengths learned by Eqs. (12) and (16), later ones not moving earlier ones; the mean moved along them by
amounts chosen on the validation origins, Eq. (17).

Assumed or different:
- A cell's capacity is the largest flow of the training part, as the paper does where nothing but flow is known; time of
  free flow is 1 everywhere. Impedances are z-scores, a flow beyond twice the capacity counts as that.
- The mean comes from blocks of the same kind, trained in the same run: the paper takes any forecaster trained before
  (PDFormer there, ASTGNN in the repository). One loss has all weights 1: few epochs leave no room for their schedule.
- Attention asks with the newest step and a learned number of each future step; theirs needs as many future as past.
- Convolutions run along time only; the repository's also run over neighbouring cell numbers, which mean nothing.
- Variance that the components leave is a part of each cell's own, from the head that all rivals have; the paper has
  none, and its three components would give cells beside them no width. The amounts are least squares, not a search.
- Eqs. (12) and (16) are divided by the batch's mean squared error; the repository divides by each window's own, which
  makes a window with few labels or small errors rule the lengths.

Tuning budget: none beyond PU-GAT+'s training settings, with which each seed is trained once, the epoch chosen on the
validation origins; sizes are the repository's, at preset `default` with half of its widths.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.neural import Head, Model, NeuralParams, Shared
from experiments.methods.forecasting.profile import EPS, TARGET, targets
from experiments.methods.forecasting.road_impedance import ImpedanceConfig, Roads, gather, impedance, read_roads
from experiments.methods.forecasting.scale import Scale
from experiments.methods.method import Method
from stream_jax.fit import FitResult, TrainConfig
from stream_jax.types import Forecast, ForecastData


@dataclasses.dataclass(frozen=True)
class RipcnConfig(ImpedanceConfig):
    """The repository's sizes; `mean_blocks` is ours."""

    widths: tuple[int, ...] = (32, 64)  # channels of the levels of the component network
    blocks: int = 2  # of a level on the way in, and as many on the way out
    middle: int = 2  # blocks between
    mean_blocks: int = 2
    taps: int = 3
    out_taps: int = 5
    heads: int = 8
    components: int = 3
    impedance: bool = True  # False leaves the differences of impedance out


DEFAULT = RipcnConfig()


class Errors(NamedTuple):
    """A forecast whose errors have the covariance sum_k w_k w_k^T + diag(noise^2)."""

    mean: Array  # [..., H, N]
    noise: Array  # [..., H, N]
    components: Array  # [..., K, H, N] orthogonal; the length is the standard deviation along each


class RipcnParams(NamedTuple):
    """A trained network and how far its mean is moved along each component; leading seed axis after several keys."""

    forecaster: NeuralParams
    shift: Array  # [K]

    @property
    def network(self) -> Any:
        """What is trained."""
        return self.forecaster.network


class Ripcn(nn.Module):
    """Impedance, mean and component network; gives [mean, raw noise, K components, impedance] of H steps each."""

    cfg: RipcnConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array, slot: Array, roads: Roads) -> Array:
        """Args: inputs [B, T, N, C]. Returns [B, N, (3 + K) H]."""
        cfg, horizon = self.cfg, self.cfg.horizon
        now = impedance(inputs[..., TARGET] * roads.unit[1] + roads.unit[0], roads, cfg)  # [B, T, N]
        # Cells first, then time: what neighbours show is then one matrix product.
        hard = jnp.transpose(ImpedanceEvolution(cfg)(now), (2, 1, 0))  # [N, T + H, B]
        inputs = jnp.transpose(inputs, (2, 1, 0, 3))  # [N, T, B, C]
        flow = inputs[..., TARGET]
        nodes = nn.Dense(cfg.widths[0])(inputs)
        for _ in range(cfg.mean_blocks):
            nodes = Block(cfg, cfg.widths[0])(nodes, hard[:, : flow.shape[1]], roads)
        by_cell = jnp.moveaxis(nodes, 1, 2)  # [N, B, T, width]
        moments = nn.Dense(self.outputs)(by_cell.reshape(*by_cell.shape[:2], -1))
        mean = jax.lax.stop_gradient(jnp.moveaxis(moments[..., :horizon], 2, 1))  # [N, H, B]
        history = [jnp.concatenate([flow, future], axis=1) for future in (jnp.zeros_like(mean), mean)]
        components = ComponentNetwork(cfg)(jnp.stack(history, axis=-1), hard, roads)
        found = jnp.concatenate([moments, components, jnp.moveaxis(hard[:, -horizon:], 1, 2)], axis=-1)
        return jnp.moveaxis(found, 0, 1)


class ImpedanceEvolution(nn.Module):
    """Past impedances [B, T, N] to past and future ones [B, T + H, N] as the graph convolutions use them."""

    cfg: RipcnConfig

    @nn.compact
    def __call__(self, now: Array) -> Array:
        width = self.cfg.widths[0]
        past = nn.Dense(width)(nn.elu(nn.Dense(width)(jnp.moveaxis(now, 1, 2)[..., None])))  # [B, N, T, width]
        steps = self.param("steps", nn.initializers.normal(1.0), (self.cfg.horizon, width))
        attend = nn.MultiHeadDotProductAttention(
            self.cfg.heads, qkv_features=self.cfg.heads * width, out_features=width
        )
        future = attend(past[..., -1:, :] + steps, past)
        both = nn.elu(nn.Dense(width)(jnp.concatenate([past, future], axis=2)))
        return jnp.moveaxis(nn.Dense(1)(both)[..., 0], 2, 1)


class ComponentNetwork(nn.Module):
    """History and mean [N, T + H, B, 2] to components [N, B, K H], not yet orthogonal."""

    cfg: RipcnConfig

    @nn.compact
    def __call__(self, history: Array, hard: Array, roads: Roads) -> Array:
        cfg = self.cfg
        first = cfg.widths[0]
        nodes, kept = nn.Dense(first)(history), []
        for width in cfg.widths:
            for _ in range(cfg.blocks):
                nodes = Block(cfg, width)(nodes, hard, roads)
                kept.append(nodes)
        for _ in range(cfg.middle):
            nodes = Block(cfg, cfg.widths[-1])(nodes, hard, roads)
        for width, narrower in zip(cfg.widths[::-1], (*cfg.widths[-2::-1], first), strict=True):
            for block in range(cfg.blocks):
                joined = jnp.concatenate([nodes, kept.pop()], axis=-1)
                nodes = Block(cfg, narrower if block == cfg.blocks - 1 else width)(joined, hard, roads)
        for _ in range(3):
            nodes = nn.elu(_in_time(nodes, cfg.out_taps, first))
        components = nn.Dense(cfg.components)(nodes[:, -cfg.horizon :])  # [N, H, B, K]
        return jnp.transpose(components, (0, 2, 3, 1)).reshape(nodes.shape[0], nodes.shape[2], -1)


class Block(nn.Module):
    """Two causal convolutions in time, then neighbours by road and by difference of impedance."""

    cfg: RipcnConfig
    width: int

    @nn.compact
    def __call__(self, nodes: Array, hard: Array, roads: Roads) -> Array:
        """Args: nodes [N, steps, B, C]; hard [N, steps, B]. Returns [N, steps, B, width]."""
        hidden = nodes
        for _ in range(2):
            hidden = _in_time(hidden, self.cfg.taps, self.width) + _matched(hidden, self.width)
        hidden = nn.LayerNorm(reduction_axes=(0, -1), feature_axes=(0, -1))(hidden)  # of a step, over all cells
        gathered = [part for walk in (roads.along, roads.against) for part in gather(hidden, hard, walk)]
        if not self.cfg.impedance:
            gathered = gathered[::2]
        return nn.relu(nn.Dense(self.width)(jnp.concatenate(gathered, axis=-1)) + hidden) + _matched(nodes, self.width)


def orthogonal(raw: Array) -> tuple[Array, Array]:
    """Eq. (11): the part of each vector [K, D] that those before it lack, and the same of length 1.

    No gradient reaches a vector through those after it.
    """
    parts, directions = [], []
    for part in raw:
        for direction in directions:
            part = part - (part @ direction) * direction
        parts.append(part)
        directions.append(jax.lax.stop_gradient(part / jnp.maximum(jnp.linalg.norm(part), EPS)))
    parts = jnp.stack(parts)
    return parts, parts / jnp.sqrt((parts**2).sum(axis=1, keepdims=True) + EPS**2)


def component_loss(raw: Array, error: Array) -> Array:
    """Eqs. (12) and (16) of each window, components [B, K, D] and errors [B, D], relative to the mean squared error.

    Least where the directions are those of the largest variances and the squared lengths are these variances.
    """
    parts, directions = jax.vmap(orthogonal)(raw)
    typical = jnp.maximum((error**2).sum(axis=1).mean(), EPS)
    along = jnp.einsum("bkd,bd->bk", directions, error) ** 2 / typical
    lengths = (parts**2).sum(axis=2) / typical
    return ((lengths - jax.lax.stop_gradient(along)) ** 2 - along).sum(axis=1)


def fit_with_history(
    key: Array,
    data: ForecastData,
    cfg: RipcnConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[RipcnParams, FitResult]:
    """Trains one network, or one per key when `key` has shape [S], and finds how far to move its mean."""
    forecaster, result = _NETWORK.fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)
    errors = predict_errors(forecaster, data, data.val, cfg)
    target, mask = targets(data.series, data.val, cfg.horizon)
    rest = jnp.where(mask, target - errors.mean, 0.0)[..., None, :, :]  # [..., V, 1, H, N]
    axes = (-4, -2, -1)  # least squares along each component, windows taken together
    along, square = (rest * errors.components).sum(axes), (errors.components**2).sum(axes)
    return RipcnParams(forecaster, along / jnp.maximum(square, EPS)), result


fit = neural.without_history(fit_with_history, DEFAULT)


def predict(params: RipcnParams, data: ForecastData, origins: Array, cfg: RipcnConfig) -> Forecast:
    """Each cell's own mean and sigma, [W, H, N], with a first axis S for stacked parameters."""
    mean, noise, components = predict_errors(params.forecaster, data, origins, cfg)
    moved = (params.shift[..., None, :, None, None] * components).sum(axis=-3)
    return Forecast(jnp.maximum(mean + moved, 0.0), jnp.sqrt(noise**2 + (components**2).sum(axis=-3)))


def predict_errors(params: NeuralParams, data: ForecastData, origins: Array, cfg: RipcnConfig) -> Errors:
    """The network's mean and the covariance of its errors in physical units, leaves [W, ...] or [S, W, ...]."""
    model = Model(Ripcn(cfg, 2 * cfg.horizon), HEAD, cfg)
    return neural.read_outputs(params, data, origins, model, read_roads(data, cfg), _physical)


def _read(output: Array, scale: Scale, cfg: RipcnConfig) -> Errors:
    """What a network gave, [B, N, (3 + K) H], in z-scores."""
    horizon, parts = cfg.horizon, jnp.moveaxis(output, 1, 2)
    mean, noise = neural.GAUSSIAN.moments(output[..., : 2 * horizon], scale, cfg)
    raw = parts[:, 2 * horizon : -horizon].reshape(parts.shape[0], cfg.components, -1)
    components = jax.vmap(lambda one: orthogonal(one)[0])(raw)
    return Errors(mean, noise, components.reshape(*components.shape[:2], horizon, -1))


def _moments(output: Array, scale: Scale, cfg: RipcnConfig) -> tuple[Array, Array]:
    """Components learn by their own losses alone, so the likelihood only fills up what they leave."""
    mean, noise, components = _read(output, scale, cfg)
    return mean, jnp.sqrt(noise**2 + jax.lax.stop_gradient(components**2).sum(axis=1))


def _penalty(output: Array, target: Array, error: Array, shared: Shared, cfg: RipcnConfig) -> Array:
    """Errors of the future impedance, Eq. (9), and of the components: [B]."""
    roads = shared.graph
    hard = impedance(target * roads.unit[1] + roads.unit[0], roads, cfg)  # [B, H, N]
    found = jnp.moveaxis(output[..., -cfg.horizon :], 1, 2)
    raw = jnp.moveaxis(output, 1, 2)[:, 2 * cfg.horizon : -cfg.horizon]
    raw = raw.reshape(raw.shape[0], cfg.components, -1)
    flat = jax.lax.stop_gradient(error).reshape(error.shape[0], -1)
    return jnp.mean((found - hard) ** 2, axis=(1, 2)) + component_loss(raw, flat)


def _physical(output: Array, scale: Scale, model: Model) -> Errors:
    mean, noise, components = jax.tree.map(lambda leaf: leaf[0], _read(output[None], scale, model.cfg))
    std = scale.std[TARGET]
    return Errors(mean * std + scale.mean[TARGET], noise * std, components * std)


def _in_time(nodes: Array, taps: int, width: int) -> Array:
    """Causal convolution over `taps` steps, [N, steps, B, C] to [N, steps, B, width]."""
    steps = nodes.shape[1]
    padded = jnp.pad(nodes, ((0, 0), (taps - 1, 0), (0, 0), (0, 0)))
    return nn.Dense(width)(jnp.concatenate([padded[:, k : k + steps] for k in range(taps)], axis=-1))


def _matched(nodes: Array, width: int) -> Array:
    return nodes if nodes.shape[-1] == width else nn.Dense(width)(nodes)


HEAD = Head(_moments, _penalty)
_NETWORK = neural.front_doors(Ripcn, DEFAULT, read_roads, HEAD)


METHOD = Method(
    "ripcn",
    RipcnConfig(),
    paper_label={"RIPCN": "ripcn"},
    tables=dict.fromkeys(("forecasting", "cross_dataset", "datasets"), ("ripcn",)),
)
