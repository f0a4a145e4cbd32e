"""STGCN: gated convolutions in time around Chebyshev convolutions over the road graph.

Yu, Yin, Zhu, "Spatio-Temporal Graph Convolutional Networks", IJCAI 2018, with the sizes of the authors' repository
VeritasYin/STGCN_IJCAI-18. Differs: all steps of the horizon are read off one output layer, where the paper forecasts
one step and feeds it back; the time of day among the inputs, a sigma beside each output and the loss of `neural.py`.
Tuning budget: none beyond PU-GAT+'s training settings, with which each seed is trained once, the epoch chosen on the
validation origins; sizes are the published ones.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.agcrn import chebyshev
from experiments.methods.forecasting.neural import NeuralConfig
from experiments.methods.forecasting.profile import EPS
from experiments.methods.forecasting.scale import adjacency
from experiments.methods.method import Method
from stream_jax.types import ForecastData


@dataclasses.dataclass(frozen=True)
class StgcnConfig(NeuralConfig):
    """The repository's sizes."""

    blocks: tuple[tuple[int, int], ...] = ((32, 64), (32, 128))  # channels inside and at the end of each block
    time_kernel: int = 3
    graph_kernel: int = 3  # Chebyshev terms
    dropout: float = 0.0  # keep_prob is 1 in the repository's training

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_left < 2:
            raise ValueError(f"a history of {self.history} steps leaves the output layer fewer than two")

    @property
    def steps_left(self) -> int:
        """Steps that reach the output layer: each block has two convolutions in time."""
        return self.history - 2 * len(self.blocks) * (self.time_kernel - 1)


DEFAULT = StgcnConfig()


class Stgcn(nn.Module):
    """The network."""

    cfg: StgcnConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array, slot: Array, kernels: Array) -> Array:
        """Args: inputs [B, T, N, C]; kernels [K, N, N]. Returns [B, N, outputs]."""
        cfg = self.cfg
        nodes = jnp.transpose(inputs, (2, 1, 0, 3))  # [N, T, B, C]: what neighbours show is then one matrix product
        for inside, end in cfg.blocks:
            nodes = TimeConvolution(cfg.time_kernel, inside, "glu")(nodes)
            nodes = GraphConvolution(inside)(nodes, kernels)
            nodes = TimeConvolution(cfg.time_kernel, end, "relu")(nodes)
            nodes = _normalise()(nodes)
            nodes = nn.Dropout(cfg.dropout, deterministic=not self.has_rng("dropout"))(nodes)
        width = nodes.shape[-1]
        nodes = _normalise()(TimeConvolution(nodes.shape[1], width, "glu")(nodes))
        nodes = jnp.moveaxis(nn.sigmoid(nn.Dense(width)(nodes[:, 0])), 0, 1)  # [B, N, width]
        bias = self.param("bias", nn.initializers.zeros, (nodes.shape[1], self.outputs))
        return nn.Dense(self.outputs, use_bias=False)(nodes) + bias


class TimeConvolution(nn.Module):
    """Convolution over `taps` steps with the input added: [N, T, B, C] to [N, T - taps + 1, B, features]."""

    taps: int
    features: int
    activation: str  # "glu" or "relu"

    @nn.compact
    def __call__(self, nodes: Array) -> Array:
        steps = nodes.shape[1] - self.taps + 1
        window = jnp.concatenate([nodes[:, k : k + steps] for k in range(self.taps)], axis=-1)
        carried = _matched(nodes[:, self.taps - 1 :], self.features)
        if self.activation == "relu":
            return nn.relu(nn.Dense(self.features)(window) + carried)
        value, gate = jnp.split(nn.Dense(2 * self.features)(window), 2, axis=-1)
        return (value + carried) * nn.sigmoid(gate)


class GraphConvolution(nn.Module):
    """Chebyshev convolution with the input added, at every step: [N, T, B, C] to [N, T, B, out]."""

    features: int

    @nn.compact
    def __call__(self, nodes: Array, kernels: Array) -> Array:
        gathered = [nodes, *(jnp.einsum("nm,m...->n...", kernel, nodes) for kernel in kernels[1:])]  # the first is I
        mixed = nn.Dense(self.features)(jnp.concatenate(gathered, axis=-1))
        return nn.relu(mixed + _matched(nodes, self.features))


def _matched(nodes: Array, features: int) -> Array:
    """As many channels as asked for: zeros added, or a learned projection where there are too many."""
    channels = nodes.shape[-1]
    if channels > features:
        return nn.Dense(features, use_bias=False, name="match")(nodes)
    return jnp.pad(nodes, ((0, 0), (0, 0), (0, 0), (0, features - channels)))


def _normalise() -> nn.LayerNorm:
    """Over cells and channels of a step together, with a scale and a shift for each of both."""
    return nn.LayerNorm(reduction_axes=(0, -1), feature_axes=(0, -1))


def graph_kernels(data: ForecastData, cfg: StgcnConfig) -> Array:
    """Chebyshev polynomials of the scaled Laplacian of the road graph, directions left aside: [K, N, N]."""
    weights = adjacency(data.graph)
    return chebyshev(scaled_laplacian(jnp.maximum(weights, weights.T)), cfg.graph_kernel)


def scaled_laplacian(weights: Array) -> Array:
    """2 L / largest eigenvalue - I, L the normalised Laplacian of symmetric weights [N, N], their diagonal ignored."""
    identity = jnp.eye(weights.shape[0])
    weights = weights * (1.0 - identity)
    degree = weights.sum(axis=1)
    inverse = jnp.where(degree > 0, 1.0 / jnp.sqrt(jnp.maximum(degree, EPS)), 0.0)
    laplacian = jnp.diag((degree > 0).astype(weights.dtype)) - inverse[:, None] * weights * inverse
    return 2.0 * laplacian / jnp.maximum(jnp.linalg.eigvalsh(laplacian)[-1], EPS) - identity


fit, fit_with_history, predict = neural.front_doors(Stgcn, DEFAULT, graph_kernels)


METHOD = Method("stgcn", StgcnConfig(), neural.VARIANTS, {"STGCN + CP": "stgcn"}, tables={"forecasting": ("stgcn",)})
