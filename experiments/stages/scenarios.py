"""The scenarios of stage `detect` whose recording is changed: anomalies that are injected into it."""

import jax.numpy as jnp
import numpy as np

from data.injection import InjectionConfig, inject_anomalies
from stream_jax.flows.preparation import Record
from stream_jax.types import ForecastData, TrafficSeries

CONTAMINATION = 0.02  # of the calibration part, in the scenario that has it
# What is injected into which part; other scenarios leave the recording as it is.
CHANGED = {
    "injected": {"test": InjectionConfig()},
    "contaminated": {"test": InjectionConfig(), "calibration": InjectionConfig(rate=CONTAMINATION)},
}


def change(
    name: str, data: ForecastData, usual: np.ndarray, parts: dict[str, tuple[int, int]], seeds: list[int]
) -> tuple[TrafficSeries, np.ndarray]:
    """The recording with the scenario's anomalies, history included, and the kind of each cell-step. [L, N]

    Args:
        usual: [N] size of an ordinary error, by which anomalies are sized.
        parts: steps of the parts that the scenario changes.
        seeds: of the drawing, beside the part's number.
    """
    kind = np.zeros(data.series.values.shape[:2], np.int8)
    if name not in CHANGED:
        return data.series, kind
    values, observed = np.array(data.series.values), np.asarray(data.series.observed[..., 0])
    edges = (np.asarray(data.graph.senders), np.asarray(data.graph.receivers))
    for number, (part, injection) in enumerate(CHANGED[name].items()):
        start, stop = parts[part]
        rng = np.random.default_rng([*seeds, number])
        result = inject_anomalies(
            rng, values[start:stop, :, 0], usual, *edges, config=injection, observed=observed[start:stop]
        )
        values[start:stop, :, 0] = result.values
        kind[start:stop] = result.kind
    return data.series._replace(values=jnp.asarray(values)), kind


def deviation(anchor: Record) -> np.ndarray:
    """Standard deviation of each cell's one-step error, at least one. [N]"""
    error = np.asarray(anchor.target - anchor.forecast.mean)[:, 0]
    masked = np.ma.masked_array(error, ~np.asarray(anchor.mask)[:, 0])
    return np.maximum(np.ma.filled(masked.std(axis=0), 1.0), 1.0)
