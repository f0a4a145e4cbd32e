"""Where and when the recording's own incidents make it unclear whether a cell is normal."""

import numpy as np

from data.loader import TrafficDataset
from stream_jax.conformal import event_metrics

AFTERMATH = 8  # steps after a logged incident in which it and its neighbours count as neither normal nor anomalous


def surroundings(dataset: TrafficDataset) -> tuple[np.ndarray, np.ndarray]:
    """Cells within a hop of a logged incident until its effect on forecasts is over, and the labels. [L, N] each"""
    log = dataset.events()
    shape = (dataset.manifest["steps"], dataset.manifest["cells"])
    if log is None:
        return np.zeros(shape, bool), np.zeros(shape, np.int8)
    is_near = event_metrics.hop_neighbourhoods(dataset.graph.senders, dataset.graph.receivers, shape[1], max_hops=1)
    near = (log["label"] > 0) @ is_near.astype(np.int32) > 0
    for lag in range(1, AFTERMATH + 1):
        near[lag:] |= (log["label"][:-lag] > 0) @ is_near.astype(np.int32) > 0
    return near, log["label"]
