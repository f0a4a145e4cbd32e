"""Temperature-scaled graph attention: an uncertain cell listens to all its neighbours more evenly.

Eq. (temp_scaling) of the paper, which gives neither network nor beta: a plain graph attention network of PU-GAT+'s
sizes on windows in z-scores, without PU-GAT+'s profile, streams and pairwise term. The same attention with everything
else as in PU-GAT+ is the method `pu_gat_plus:temperature`. Tuning budget: none beyond PU-GAT+'s training settings, with
which each seed is trained once, the epoch chosen on the validation origins.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.neural import NeuralConfig
from experiments.methods.method import Method
from stream_jax.gnn.attention import AttentionConfig, Neighbours, PUGATLayer, neighbour_table


@dataclasses.dataclass(frozen=True)
class TemperatureGatConfig(NeuralConfig):
    """PU-GAT+'s sizes."""

    layers: int = 3
    hidden: int = 128
    heads: int = 4
    dropout: float = 0.1
    temperature: float = 1.0  # beta of Eq. (temp_scaling)


DEFAULT = TemperatureGatConfig()


class TemperatureGat(nn.Module):
    """Dense encoding of each cell's window, then graph attention; a hidden sigma sets each softmax's temperature."""

    cfg: TemperatureGatConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array, slot: Array, neighbours: Neighbours) -> Array:
        """Args: inputs [B, T, N, C]. Returns [B, N, outputs]."""
        cfg = self.cfg
        window = jnp.moveaxis(inputs, 2, 0)  # [N, B, T, C]
        nodes = nn.elu(nn.Dense(cfg.hidden)(window.reshape(*window.shape[:2], -1)))
        nodes = nn.LayerNorm()(nn.Dense(cfg.hidden)(nodes))
        sigma = nn.softplus(nn.Dense(1)(nodes)[..., 0])
        attention = AttentionConfig(mode="temperature", temperature=cfg.temperature, normalise_sigma=False)
        for layer in range(cfg.layers):
            average = layer == cfg.layers - 1
            block = PUGATLayer(cfg.hidden, cfg.heads, attention, average, cfg.dropout)
            nodes, sigma = block(nodes, sigma, neighbours, self.has_rng("dropout"))
        return jnp.moveaxis(nn.Dense(self.outputs)(nodes), 0, 1)


fit, fit_with_history, predict = neural.front_doors(
    TemperatureGat, DEFAULT, lambda data, cfg: neighbour_table(data.graph)
)


METHOD = Method(
    "temperature_gat",
    TemperatureGatConfig(),
    neural.VARIANTS,
    {"Temp-scaled GAT": "temperature_gat"},
    tables={"forecasting": ("temperature_gat",)},
)
