"""Injects synthetic anomalies with known labels into a recording of counts.

Paper: "Synthetic injection (5% rate)" of the anomaly-detection experiments, which leaves kind, size and duration open.
Here half of the events shift the level by 4 to 8 residual standard deviations and half keep only 20 to 60 % of the
count; an event lasts one to four steps, and three in ten reach the neighbouring cells. The recording is changed before
forecasting windows are cut, so the history that a forecaster sees is contaminated too, as in a real city; to change
targets only, take histories from the original values.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

NORMAL, LEVEL_SHIFT, DROP = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class InjectionConfig:
    """Which anomalies to inject, and how many; the paper gives the rate only."""

    rate: float = 0.05  # share of the eligible cell-steps that end up anomalous
    shift_sd: tuple[float, float] = (4.0, 8.0)  # size of a level shift in residual standard deviations
    kept_share: tuple[float, float] = (0.2, 0.6)  # factor of a drop
    drop_probability: float = 0.5
    duration_steps: tuple[int, int] = (1, 4)  # inclusive
    spread_probability: float = 0.3  # an event reaches all cells one hop away
    integer_counts: bool = True  # round, so that a fraction of a vehicle does not betray the injection


DEFAULT_CONFIG = InjectionConfig()


class Injection(NamedTuple):
    """A recording with anomalies and their labels."""

    values: np.ndarray  # [T, N]
    label: np.ndarray  # [T, N] bool, exactly where the values changed
    kind: np.ndarray  # [T, N] int8, NORMAL, LEVEL_SHIFT or DROP


def inject_anomalies(
    rng: np.random.Generator,
    values: np.ndarray,
    residual_sd: np.ndarray,
    senders: np.ndarray,
    receivers: np.ndarray,
    *,
    config: InjectionConfig = DEFAULT_CONFIG,
    start: int = 0,
    observed: np.ndarray | None = None,
) -> Injection:
    """Adds events until a share `config.rate` of the eligible cell-steps is anomalous, to within one cell-step.

    A cell-step is eligible if observed and not before `start`; it belongs to one event at most. What an event does not
    change, such as a count of 0 that drops, is not anomalous and gets no label. Counts never become negative: a shift
    that would make one negative goes up instead.

    Args:
        values: [T, N] counts, not changed.
        residual_sd: [N] standard deviation of a normal forecast residual, in the units of values.
        senders: [E] edges; their direction is ignored.
    """
    _check(values, residual_sd, start, config)
    eligible = np.ones(values.shape, bool) if observed is None else np.array(observed, bool)
    eligible[:start] = False
    target = round(config.rate * eligible.sum())
    neighbours = _neighbour_lists(senders, receivers, values.shape[1])
    changed, kind = values.copy(), np.zeros(values.shape, np.int8)
    num_labelled = 0
    for _ in range(1000 + 50 * target):
        if num_labelled >= target:
            return Injection(changed, kind != NORMAL, kind)
        steps, cells = _draw_extent(rng, values.shape, start, neighbours, config)
        is_free = eligible[steps, cells] & (kind[steps, cells] == NORMAL)
        steps, cells = steps[is_free], cells[is_free]
        new_values, new_kind = _draw_change(rng, values[steps, cells], residual_sd[cells], config)
        is_changed = np.flatnonzero(new_values != values[steps, cells])[: target - num_labelled]
        changed[steps[is_changed], cells[is_changed]] = new_values[is_changed]
        kind[steps[is_changed], cells[is_changed]] = new_kind
        num_labelled += is_changed.size
    raise ValueError(f"only {num_labelled} of {target} cell-steps could be changed: too many zeros or too high a rate")


def _draw_extent(
    rng: np.random.Generator, shape: tuple[int, int], start: int, neighbours: list[np.ndarray], config: InjectionConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Steps and cells of one event, each [P], earlier steps first."""
    num_steps, num_cells = shape
    cell = rng.integers(num_cells)
    cells = np.array([cell])
    if rng.random() < config.spread_probability:
        cells = np.append(cells, neighbours[cell])
    shortest, longest = config.duration_steps
    first = rng.integers(start, num_steps)
    steps = np.arange(first, min(first + rng.integers(shortest, longest + 1), num_steps))
    grid = np.meshgrid(steps, cells, indexing="ij")
    return grid[0].ravel(), grid[1].ravel()


def _draw_change(
    rng: np.random.Generator, values: np.ndarray, residual_sd: np.ndarray, config: InjectionConfig
) -> tuple[np.ndarray, int]:
    """The values [P] after one event of a random kind, size and sign, and its kind."""
    if rng.random() < config.drop_probability:
        kind, new_values = DROP, values * rng.uniform(*config.kept_share)
    else:
        shift = rng.uniform(*config.shift_sd) * residual_sd
        goes_down = rng.random() < 0.5 and np.all(values >= shift)
        kind, new_values = LEVEL_SHIFT, values - shift if goes_down else values + shift
    if config.integer_counts:
        new_values = np.round(new_values)
    return new_values.astype(values.dtype), kind


def _neighbour_lists(senders: np.ndarray, receivers: np.ndarray, num_cells: int) -> list[np.ndarray]:
    is_edge = np.zeros((num_cells, num_cells), bool)
    is_edge[senders, receivers] = True
    is_edge |= is_edge.T
    np.fill_diagonal(is_edge, False)
    return [np.flatnonzero(row) for row in is_edge]


def _check(values: np.ndarray, residual_sd: np.ndarray, start: int, config: InjectionConfig) -> None:
    if values.ndim != 2 or residual_sd.shape != values.shape[1:]:
        raise ValueError(f"values must be [T, N] and residual_sd [N], got {values.shape} and {residual_sd.shape}")
    if not 0 <= start < values.shape[0]:
        raise ValueError(f"start must be a step of the recording, got {start} of {values.shape[0]}")
    if not 0.0 <= config.rate < 1.0:
        raise ValueError(f"rate must be in [0, 1), got {config.rate}")
    if np.any(values < 0):
        raise ValueError("counts must not be negative")
