"""AGCRN: a recurrent network whose graph and whose weights of each cell are made from learned numbers of the cells.

Bai, Yao, Li, Wang, Wang, "Adaptive Graph Convolutional Recurrent Network for Traffic Forecasting", NeurIPS 2020, with
the sizes of the authors' repository LeiBAI/AGCRN; the road graph is not used. Differs: the time of day among the
inputs, a sigma beside each output and the loss of `neural.py`. Tuning budget: none beyond PU-GAT+'s training settings,
with which each seed is trained once, the epoch chosen on the validation origins; sizes are the published ones.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.neural import NeuralConfig
from experiments.methods.method import Method


@dataclasses.dataclass(frozen=True)
class AgcrnConfig(NeuralConfig):
    """Published sizes."""

    layers: int = 2
    hidden: int = 64
    embedding: int = 10  # numbers of a cell
    supports: int = 2  # Chebyshev terms of the graph convolution, the identity among them


DEFAULT = AgcrnConfig()


class CellWeights(NamedTuple):
    """A graph convolution with weights of their own for every cell."""

    kernel: Array  # [N, K in, out]
    bias: Array  # [N, 1, out]


class Agcrn(nn.Module):
    """The network; outputs per cell are read off the newest state."""

    cfg: AgcrnConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array, slot: Array, graph: None) -> Array:
        """Args: inputs [B, T, N, C]. Returns [B, N, outputs]."""
        cfg = self.cfg
        cells = self.param("cells", nn.initializers.glorot_uniform(), (inputs.shape[2], cfg.embedding))
        supports = chebyshev(learned_adjacency(cells), cfg.supports)
        # Cells before windows: a product with each cell's own weights is then one product a cell, and nothing is moved.
        sequence = jnp.transpose(inputs, (1, 2, 0, 3))  # [T, N, B, C]
        for layer in range(cfg.layers):
            width = sequence.shape[-1] + cfg.hidden
            gate = self._weights(f"gate_{layer}", cells, width, 2 * cfg.hidden)
            update = self._weights(f"update_{layer}", cells, width, cfg.hidden)

            def step(state: Array, seen: Array, gate=gate, update=update) -> tuple[Array, Array]:
                state = recur(state, seen, supports, gate, update)
                return state, state

            start = jnp.zeros((*sequence.shape[1:3], cfg.hidden))
            newest, sequence = jax.lax.scan(step, start, sequence)
        return jnp.moveaxis(nn.Dense(self.outputs)(newest), 0, 1)

    def _weights(self, name: str, cells: Array, width: int, outputs: int) -> CellWeights:
        """Eq. (6): each cell's weights are a mixture of `embedding` shared ones by the cell's numbers."""
        size = (self.cfg.embedding, self.cfg.supports, width, outputs)
        kernel = self.param(f"{name}_kernel", nn.initializers.glorot_uniform(batch_axis=(0, 1)), size)
        bias = self.param(f"{name}_bias", nn.initializers.zeros, (self.cfg.embedding, outputs))
        mixed = cells @ kernel.reshape(self.cfg.embedding, -1)
        return CellWeights(mixed.reshape(cells.shape[0], -1, outputs), (cells @ bias)[:, None])


fit, fit_with_history, predict = neural.front_doors(Agcrn, DEFAULT)


def learned_adjacency(cells: Array) -> Array:
    """softmax(relu(E E^T)) over senders, the paper's Eq. (4): [N, N], row = receiver, rows sum to 1."""
    return nn.softmax(nn.relu(cells @ cells.T), axis=1)


def chebyshev(matrix: Array, terms: int) -> Array:
    """The first Chebyshev polynomials of a matrix: [terms, N, N], from the identity on."""
    found = [jnp.eye(matrix.shape[0]), matrix]
    while len(found) < terms:
        found.append(2.0 * matrix @ found[-1] - found[-2])
    return jnp.stack(found[:terms])


def recur(state: Array, seen: Array, supports: Array, gate: CellWeights, update: CellWeights) -> Array:
    """One step of the gated recurrent unit with graph convolutions for its matrix products; state [N, B, hidden]."""
    gates = nn.sigmoid(convolve(jnp.concatenate([seen, state], axis=-1), supports, gate))
    reset, keep = jnp.split(gates, 2, axis=-1)
    candidate = jnp.tanh(convolve(jnp.concatenate([seen, reset * state], axis=-1), supports, update))
    return keep * state + (1.0 - keep) * candidate


def convolve(nodes: Array, supports: Array, weights: CellWeights) -> Array:
    """sum_k T_k x W_nk + b_n: [N, B, in] to [N, B, out]; T_0 is the identity and multiplies nothing."""
    gathered = [nodes, *(jnp.einsum("nm,mbi->nbi", support, nodes) for support in supports[1:])]
    return jnp.einsum("nbi,nio->nbo", jnp.concatenate(gathered, axis=-1), weights.kernel) + weights.bias


METHOD = Method("agcrn", AgcrnConfig(), neural.VARIANTS, {"AGCRN + CP": "agcrn"}, tables={"forecasting": ("agcrn",)})
