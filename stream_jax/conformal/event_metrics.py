"""Compares rejections with a log of real incidents, by event and by alarm.

Paper: "Real Events" of the experiments. An incident log names some anomalies and is silent about the rest, so a cell
without a logged incident is not known to be normal: the share of alarms without an incident is only an upper bound on
the false-discovery proportion and is called apparent. The unit of an alarm is a connected cluster of rejections, not
a cell, because one incident raises many cells. Host-side numpy: the clusters have no static shape.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


class EventLog(NamedTuple):
    """Logged incidents."""

    cell: np.ndarray  # [K] int, where
    onset: np.ndarray  # [K] int, step at which it began
    end: np.ndarray | None = None  # [K] int, first step after it; alarms while it lasts are explained by it too


class EventMetrics(NamedTuple):
    """How a detector's alarms align with an incident log."""

    recall: float  # share of events that are hit; NaN without events
    apparent_fdp: float  # share of alarms that touch no event: an upper bound; 0 without alarms
    num_alarms: int  # connected clusters of rejections
    is_hit: np.ndarray  # [K] bool
    delay_steps: np.ndarray  # [K] float, steps from onset to the first hit, NaN if missed
    median_delay_steps: float  # over the events that are hit; NaN if none is


def align_events(
    rejected: np.ndarray,
    events: EventLog,
    senders: np.ndarray,
    receivers: np.ndarray,
    *,
    max_hops: int = 2,
    max_delay_steps: int = 4,
) -> EventMetrics:
    """An event is hit by any rejection at most `max_hops` away and 0 .. `max_delay_steps` steps after its onset.

    Four steps of a quarter of an hour are the hour in which an operator can still act.

    Args:
        rejected: [T, N] bool.
        senders: [E] edges of the road graph; their direction is ignored.
    """
    rejected = np.asarray(rejected, bool)
    num_steps, num_cells = rejected.shape
    is_near = hop_neighbourhoods(senders, receivers, num_cells, max_hops)
    explained = np.zeros_like(rejected)
    delay = np.full(len(events.cell), np.nan)
    last = events.onset if events.end is None else np.maximum(events.onset, events.end - 1)
    for k, (cell, onset) in enumerate(zip(events.cell, events.onset, strict=True)):
        window = slice(max(onset, 0), min(onset + max_delay_steps + 1, num_steps))
        explained[window.start : last[k] + max_delay_steps + 1] |= is_near[cell]
        steps = np.flatnonzero((rejected[window] & is_near[cell]).any(axis=1))
        if steps.size:
            delay[k] = window.start + steps[0] - onset
    is_hit = ~np.isnan(delay)
    alarm, num_alarms = rejection_clusters(rejected, senders, receivers)
    num_explained = np.unique(alarm[explained & rejected]).size
    return EventMetrics(
        recall=float(is_hit.mean()) if is_hit.size else float("nan"),
        apparent_fdp=(num_alarms - num_explained) / num_alarms if num_alarms else 0.0,
        num_alarms=num_alarms,
        is_hit=is_hit,
        delay_steps=delay,
        median_delay_steps=float(np.median(delay[is_hit])) if is_hit.any() else float("nan"),
    )


def recall_by_chance(
    rejected: np.ndarray,
    events: EventLog,
    senders: np.ndarray,
    receivers: np.ndarray,
    *,
    max_hops: int = 2,
    max_delay_steps: int = 4,
) -> np.ndarray:
    """Event recall of the same alarms at the wrong time: every shift of the log around the recording, [T].

    Shifting keeps how many alarms there are, where, and how they cluster; what is left of the recall is luck. Entry 0
    is the unshifted recall, with windows that wrap around the end. NaN without events.
    """
    rejected = np.asarray(rejected, bool)
    num_steps, num_cells = rejected.shape
    if not len(events.cell):
        return np.full(num_steps, np.nan)
    is_near = hop_neighbourhoods(senders, receivers, num_cells, max_hops)
    alarmed = (rejected.astype(np.float32) @ is_near.astype(np.float32)) > 0.0  # [T, N] an alarm near the cell
    soon = np.any([np.roll(alarmed, -delay, axis=0) for delay in range(max_delay_steps + 1)], axis=0)
    step = (np.asarray(events.onset) + np.arange(num_steps)[:, None]) % num_steps  # [T, K]
    return soon[step, np.asarray(events.cell)].mean(axis=1)


def hop_neighbourhoods(senders: np.ndarray, receivers: np.ndarray, num_cells: int, max_hops: int) -> np.ndarray:
    """[N, N] bool: which cells are at most `max_hops` undirected edges apart (a cell is near itself)."""
    one_hop = np.eye(num_cells, dtype=bool)
    one_hop[senders, receivers] = True
    one_hop[receivers, senders] = True
    is_near = np.eye(num_cells, dtype=bool)
    for _ in range(max_hops):
        is_near = (is_near.astype(np.float32) @ one_hop.astype(np.float32)) > 0.0
    return is_near


def rejection_clusters(rejected: np.ndarray, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, int]:
    """Labels [T, N] of the clusters of rejections (-1 where not rejected) and how many there are.

    Two rejections touch when they are at most one hop and at most one step apart.
    """
    num_cells = rejected.shape[1]
    loops = np.arange(num_cells)
    left = np.concatenate([senders, receivers, loops])  # every edge both ways: a touch may also run back in time
    right = np.concatenate([receivers, senders, loops])
    number = np.full(rejected.shape, -1)
    number[rejected] = np.arange(rejected.sum())
    same_step = _touching(number, number, left, right)
    next_step = _touching(number[:-1], number[1:], left, right)
    row, column = np.concatenate([same_step, next_step], axis=1)
    size = int(rejected.sum())
    touches = coo_array((np.ones(row.size, bool), (row, column)), shape=(size, size))
    num_clusters, cluster = connected_components(touches, directed=False)
    labels = np.full(rejected.shape, -1)
    labels[rejected] = cluster
    return labels, int(num_clusters)


def _touching(first: np.ndarray, second: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[2, P] pairs of rejection numbers joined by an edge, one from each of two [T, N] arrays of numbers."""
    pairs = np.stack([first[:, left], second[:, right]])  # [2, T, 2 E + N]
    return pairs[:, (pairs >= 0).all(axis=0)]
