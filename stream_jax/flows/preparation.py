"""From forecasts of a recording to the residuals that CRFN-BY reads.

Section 4.2 and what the paper leaves out. Four things are done to the residuals before a flow sees them:

1. The anchor. Over the train part, which the forecaster has seen, residuals are those of an anchor: a forecast that
   rests on nothing but the past of each origin, such as the same network before its training (`gnn`'s `untrained`).
2. The factor. Every sigma is widened by one fixed factor per lead and cluster of cells, chosen on the train part for
   the anchor and on the validation part for the forecaster.
3. The warm-up. On its first day a recording has no daily profile yet: nothing of it is tested or learned from.
4. Outages. A step in which the whole city breaks away from its forecasts is nobody's anomaly and is left out.

Then residuals are divided by how large they have lately been (`scale.py`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.conformal.clusters import cluster_cells
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.flows import residuals, scale
from stream_jax.flows.context import FlowData, Neighbours
from stream_jax.types import Forecast

FIT_DAYS = 7  # of the train part, the last, from which the flow learns; more days cost time and gain nothing


class Parts(NamedTuple):
    """What the steps of a recording are for, each part from its first step to the one after its last."""

    train: tuple[int, int]
    val: tuple[int, int]
    window: int  # steps of history behind a forecast
    horizon: int
    steps_per_day: int


class Record(NamedTuple):
    """Forecasts of consecutive origins, and what came of them."""

    forecast: Forecast  # [W, H, N] of the anchor over the train part, of the forecaster later
    target: Array  # [W, H, N]
    mask: Array  # [W, H, N] bool, True where the target was observed
    origins: np.ndarray  # [W]


class Factors(NamedTuple):
    """How much wider than their sigma errors are, [H, N] each."""

    anchor: Array
    network: Array


class Prepared(NamedTuple):
    """The steps of a recording as a detector reads them."""

    rows: FlowData  # [R, ...]
    time: np.ndarray  # [R] step of each row
    outage: np.ndarray  # [R] bool


class Fitting(NamedTuple):
    """What a detector learns from: the last days of the train part, and the validation part."""

    rows: FlowData
    time: np.ndarray  # [R] step of each row
    held_out: float  # share of the rows, the last, that lies in val and stops training early


def spoken(anchor: Forecast, network: Forecast, origins: np.ndarray, parts: Parts) -> Forecast:
    """The anchor's forecasts from origins of the train part, the network's from later ones. [W, H, N]"""
    is_train = jnp.asarray(origins < parts.train[1])[:, None, None]
    return jax.tree.map(lambda ours, theirs: jnp.where(is_train, ours, theirs), anchor, network)


def factors(record: Record, num_steps: int, parts: Parts, cfg: ConformalConfig) -> Factors:
    """The anchor's factors from the train part after its warm-up, the forecaster's from the validation part.

    Args:
        num_steps: of the whole recording, on which the number of clusters depends.
    """
    in_val = _windows(record.origins, parts.val, parts)
    in_train = _windows(record.origins, parts.train, parts) & (record.origins >= warm_up(parts))
    errors = np.asarray((record.target - record.forecast.mean) / record.forecast.sigma)[in_val]
    cluster = cluster_cells(errors, np.asarray(record.mask)[in_val], num_steps, cfg)

    def factor(chosen: np.ndarray) -> Array:
        some = _rows(record, chosen)
        return residuals.sigma_factor(some.forecast, some.target, some.mask, jnp.asarray(cluster), cfg.num_clusters)

    return Factors(factor(in_train), factor(in_val))


def prepare(
    record: Record,
    factor: Factors,
    clock: Array,
    neighbours: Neighbours,
    parts: Parts,
    leads: residuals.Leads = "mean",
) -> Prepared:
    """Residuals of all steps with forecasts of every lead, in units of how large they have lately been.

    Args:
        clock: [L, 4] of the whole recording.
        neighbours: from `context.neighbour_table`.
    """
    is_train = jnp.asarray(record.origins < parts.train[1])[:, None, None]
    sigma = record.forecast.sigma * jnp.where(is_train, factor.anchor, factor.network)
    forecast = record.forecast._replace(sigma=sigma)
    rows, time = residuals.residual_vectors(forecast, record.target, record.mask, record.origins, leads=leads)
    rows, outage = residuals.without_outages(rows)
    # The first day has no profile behind its forecasts; scales that followed it would have to come all the way back.
    warm = jnp.asarray(time >= warm_up(parts))
    rows = rows._replace(observed=rows.observed & warm[:, None])
    _, scaled = _rescale(scale.start_scale(rows.z.shape[1]), rows)
    flow = FlowData(scaled.z, scaled.observed, scaled.unit, clock[time], neighbours)
    return Prepared(flow, time, np.asarray(outage & warm))


def fitting_rows(prepared: Prepared, parts: Parts) -> Fitting:
    """The rows that a detector learns from, and which share of them stops its training early."""
    middle, last = parts.val
    first = max(warm_up(parts), middle - FIT_DAYS * parts.steps_per_day)
    chosen = (prepared.time >= first) & (prepared.time < last)
    share = (prepared.time[chosen] >= middle).mean()
    return Fitting(take(prepared.rows, chosen), prepared.time[chosen], float(share))


def warm_up(parts: Parts) -> int:
    """First step with a day of profile behind it, or the middle of a train part that is hardly longer than a day."""
    start, stop = parts.train
    return start + min(parts.steps_per_day + parts.horizon, (stop - start) // 2)


def part_of(record: Record, part: tuple[int, int], parts: Parts) -> Record:
    """The origins whose history and targets all lie in one part."""
    return _rows(record, _windows(record.origins, part, parts))


def take(rows: FlowData, mask: np.ndarray) -> FlowData:
    """Some consecutive rows."""
    return FlowData(rows.z[mask], rows.observed[mask], rows.unit[mask], rows.clock[mask], rows.neighbours)


def _rows(record: Record, chosen: np.ndarray) -> Record:
    return jax.tree.map(lambda leaf: leaf[chosen], record)


def _windows(origins: np.ndarray, part: tuple[int, int], parts: Parts) -> np.ndarray:
    """Origins whose history and targets all lie in one part. [W] bool"""
    return (origins >= part[0] + parts.window - 1) & (origins < part[1] - parts.horizon)


_rescale = jax.jit(scale.rescale_rows)
