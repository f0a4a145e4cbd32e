"""STID: a multilayer perceptron on a cell's window beside learned identities of the cell, the hour and the weekday.

Shao, Zhang, Wang, Wei, Xu, "Spatial-Temporal Identity: A Simple yet Effective Baseline for Multivariate Time Series
Forecasting", CIKM 2022, with the sizes of the authors' repository GestaltCogTeam/STID. Differs: a sigma beside each
output and the loss of `neural.py`; the weekday enters through its identity only, not as a number in the window too.
The forecast stage leaves the weekday out where training shows fewer than seven days: identities never learned are
noise. Tuning budget: none beyond PU-GAT+'s training settings, with which each seed is trained once, the epoch chosen on
the validation origins; sizes are the published ones.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from experiments.methods.forecasting import neural
from experiments.methods.forecasting.neural import NeuralConfig
from experiments.methods.method import Method


@dataclasses.dataclass(frozen=True)
class StidConfig(NeuralConfig):
    """Published sizes; an identity of size 0 is left out."""

    embedding: int = 32  # of the window
    cell: int = 32
    time_of_day: int = 32
    day_of_week: int = 32
    layers: int = 3
    dropout: float = 0.15


DEFAULT = StidConfig()


class Stid(nn.Module):
    """The network; cells meet nowhere in it."""

    cfg: StidConfig
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array, slot: Array, graph: None) -> Array:
        """Args: inputs [B, T, N, C]; slot [B] of the week. Returns [B, N, outputs]."""
        cfg = self.cfg
        batch, _, cells, _ = inputs.shape
        window = jnp.moveaxis(inputs, 1, 2).reshape(batch, cells, -1)
        identities = (
            self._identity("cell", cells, cfg.cell, jnp.arange(cells)[None]),
            self._identity("time_of_day", cfg.steps_per_day, cfg.time_of_day, (slot % cfg.steps_per_day)[:, None]),
            self._identity("day_of_week", 7, cfg.day_of_week, (slot // cfg.steps_per_day)[:, None]),
        )
        known = [jnp.broadcast_to(one, (batch, cells, one.shape[-1])) for one in identities]
        hidden = jnp.concatenate([nn.Dense(cfg.embedding)(window), *known], axis=-1)
        for _ in range(cfg.layers):
            inner = nn.relu(nn.Dense(hidden.shape[-1])(hidden))
            inner = nn.Dropout(cfg.dropout, deterministic=not self.has_rng("dropout"))(inner)
            hidden += nn.Dense(hidden.shape[-1])(inner)
        return nn.Dense(self.outputs)(hidden)

    def _identity(self, name: str, number: int, size: int, index: Array) -> Array:
        """Learned rows [number, size] at the index: [1 or B, N or 1, size]."""
        if not size:
            return jnp.zeros((*index.shape, 0))
        return self.param(name, nn.initializers.glorot_uniform(), (number, size))[index]


fit, fit_with_history, predict = neural.front_doors(Stid, DEFAULT)


METHOD = Method("stid", StidConfig(), neural.VARIANTS)
