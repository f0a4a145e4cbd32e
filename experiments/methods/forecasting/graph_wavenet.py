"""Graph WaveNet: dilated gated convolutions in time, diffusion over given and learned adjacencies in space.

Wu, Pan, Long, Jiang, Zhang, "Graph WaveNet for Deep Spatial-Temporal Graph Modeling", IJCAI 2019, with the sizes of the
authors' repository nnzhan/Graph-WaveNet. Differs: a sigma beside each output and the loss of `neural.py`; statistics of
the batch normalisation are measured with the final weights; the eight 1x1 convolutions that the repository creates but
replaces by graph convolutions are not created. Tuning budget: none beyond PU-GAT+'s training settings, with which each
seed is trained once, the epoch chosen on the validation origins; sizes are the published ones.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.neural import NeuralConfig
from experiments.methods.forecasting.profile import EPS
from experiments.methods.forecasting.scale import adjacency
from experiments.methods.method import Method
from stream_jax.types import RoadGraph


@dataclasses.dataclass(frozen=True)
class GraphWaveNetConfig(NeuralConfig):
    """Published sizes."""

    blocks: int = 4
    layers: int = 2  # of a block; the dilation doubles with each
    channels: int = 32  # residual and dilation channels
    skip: int = 256
    end: int = 512
    embedding: int = 10  # numbers of a cell as a source, and as many as a destination
    order: int = 2  # diffusion steps
    adaptive: bool = True  # learn an adjacency beside the given ones
    dropout: float = 0.3

    @property
    def receptive_field(self) -> int:
        """Steps that the newest output sees; kernels have two taps."""
        return 1 + self.blocks * (2**self.layers - 1)


DEFAULT = GraphWaveNetConfig()


class GraphWaveNet(nn.Module):
    """The network; outputs per cell are read off the newest step."""

    cfg: GraphWaveNetConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array, slot: Array, supports: tuple[Array, ...]) -> Array:
        """Args: inputs [B, T, N, C]; supports [N, N] each, row = source. Returns [B, N, outputs]."""
        cfg = self.cfg
        if cfg.adaptive:
            supports = (*supports, self._learned_adjacency(inputs.shape[2]))
        missing = max(cfg.receptive_field - inputs.shape[1], 0)
        # Cells first, then time: a diffusion is one plain matrix product.
        nodes = jnp.transpose(jnp.pad(inputs, ((0, 0), (missing, 0), (0, 0), (0, 0))), (2, 1, 0, 3))  # [N, T, B, C]
        nodes = nn.Dense(cfg.channels)(nodes)
        skip = 0.0
        for layer in range(cfg.blocks * cfg.layers):
            dilation = 2 ** (layer % cfg.layers)
            taps = jnp.concatenate([nodes[:, :-dilation], nodes[:, dilation:]], axis=-1)
            gated = jnp.tanh(nn.Dense(cfg.channels)(taps)) * nn.sigmoid(nn.Dense(cfg.channels)(taps))
            skip += nn.Dense(cfg.skip)(gated[:, -1])  # only the newest step is read in the end
            mixed = nn.Dense(cfg.channels)(diffuse(gated, supports, cfg.order))
            mixed = nn.Dropout(cfg.dropout, deterministic=not self.has_rng("dropout"))(mixed)
            nodes = mixed + nodes[:, dilation:]
            fixed = not self.is_mutable_collection(neural.STATISTICS)
            nodes = nn.BatchNorm(use_running_average=fixed, momentum=0.0)(nodes)
        return jnp.moveaxis(nn.Dense(self.outputs)(nn.relu(nn.Dense(cfg.end)(nn.relu(skip)))), 0, 1)

    def _learned_adjacency(self, num_nodes: int) -> Array:
        normal = nn.initializers.normal(1.0)
        source = self.param("source", normal, (num_nodes, self.cfg.embedding))
        destination = self.param("destination", normal, (self.cfg.embedding, num_nodes))
        return learned_adjacency(source, destination)


fit, fit_with_history, predict = neural.front_doors(GraphWaveNet, DEFAULT, lambda data, cfg: transitions(data.graph))


def transitions(graph: RoadGraph) -> tuple[Array, Array]:
    """Random walks along the edges and against them, each row summing to 1: [N, N] twice."""
    weights = adjacency(graph)
    return tuple(one / jnp.maximum(one.sum(axis=1, keepdims=True), EPS) for one in (weights, weights.T))


def learned_adjacency(source: Array, destination: Array) -> Array:
    """softmax(relu(E1 E2)) over destinations, the paper's Eq. (5): [N, N], rows sum to 1."""
    return nn.softmax(nn.relu(source @ destination), axis=1)


def diffuse(nodes: Array, supports: tuple[Array, ...], order: int) -> Array:
    """The features and what 1 .. order steps along each support bring, side by side: [N, ..., C (1 + order S)]."""
    parts = [nodes]
    for support in supports:
        moved = nodes
        for _ in range(order):
            moved = jnp.einsum("vw,v...->w...", support, moved)
            parts.append(moved)
    return jnp.concatenate(parts, axis=-1)


METHOD = Method(
    "graph_wavenet",
    GraphWaveNetConfig(),
    neural.VARIANTS,
    {"Graph WaveNet + CP": "graph_wavenet"},
    tables={"forecasting": ("graph_wavenet",)},
)
