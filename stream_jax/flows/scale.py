"""Residuals in units of how large residuals have lately been, in the city and in the cell: comparable between days.

Section 4.2 ranks scores of test days among scores of calibration days, which is fair only while residuals keep their
law; over a holiday they do not. Here every residual is divided by a scale carried from step to step. A step is judged
by the scale of the steps before it, and its own size enters the scale only up to a limit, so one anomaly neither hides
itself nor the next.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.flows.residuals import Residuals


@dataclasses.dataclass(frozen=True)
class ScaleConfig:
    """How fast the scales follow; the paper has none. Rates of 0 leave residuals as they are."""

    city_rate: float = 0.1  # per step, of the log scale that all cells share
    cell_rate: float = 0.02  # per step, of each cell's own log scale
    limit: float = 2.0  # largest square, in units of the scale, that moves it
    typical: float = 0.75  # mean limited square at which a scale rests; 0.77 for a standard normal number
    reach: float = 1.0  # largest logarithm: a cell that never errs must not make an anomaly of one vehicle

    def __post_init__(self) -> None:
        if min(self.city_rate, self.cell_rate, self.reach) < 0.0 or not 0.0 < self.typical < self.limit:
            raise ValueError("rates and reach must not be negative, and typical must lie between 0 and limit")


class ScaleState(NamedTuple):
    """Logarithms of the scales after the last step."""

    city: Array  # []
    cell: Array  # [N]


DEFAULT = ScaleConfig()


def start_scale(num_cells: int) -> ScaleState:
    """Scales of one, before the first step."""
    return ScaleState(jnp.zeros(()), jnp.zeros(num_cells))


def rescale(state: ScaleState, row: Residuals, cfg: ScaleConfig = DEFAULT) -> tuple[ScaleState, Residuals]:
    """Divides the residuals [N, D] of one step by the scales before it, then lets the scales follow.

    Robust scale by stochastic approximation: log s += rate * (min(u^2, limit) - typical), u^2 the mean square over D.
    """
    inverse = jnp.exp(-state.city - state.cell)[:, None]  # [N, 1]
    scaled = row._replace(z=row.z * inverse, unit=row.unit * inverse)
    square = jnp.minimum(jnp.square(scaled.z).mean(-1), cfg.limit)
    surprise = jnp.where(row.observed, square - cfg.typical, 0.0)  # [N]
    shared = surprise.sum() / jnp.maximum(row.observed.sum(), 1)
    moved = ScaleState(state.city + cfg.city_rate * shared, state.cell + cfg.cell_rate * surprise)
    return jax.tree.map(lambda log: jnp.clip(log, -cfg.reach, cfg.reach), moved), scaled


def rescale_rows(state: ScaleState, rows: Residuals, cfg: ScaleConfig = DEFAULT) -> tuple[ScaleState, Residuals]:
    """The same for consecutive steps [R, ...]."""
    return jax.lax.scan(lambda carried, row: rescale(carried, row, cfg), state, rows)
