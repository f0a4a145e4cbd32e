"""Volume under the precision-recall surface: how well scores rank anomalies that last, late or early alarms forgiven.

VUS-PR of Paparrizos et al., "Volume Under the Surface" (PVLDB 2022), here of many cells at once: an event is an
unbroken run of anomalous steps in one cell, and all cells share one threshold. Each buffer length gives one curve, in
which a step beside an event counts as partly anomalous and recall is multiplied by the share of events that are touched
at all; the volume is the mean area over buffer lengths. Two choices differ from the authors' program and are those of
the later re-implementations: where two slopes overlap the higher one counts, and events count one by one even if their
slopes touch. Every distinct score is a threshold, and area is summed in steps, as in average precision, instead of by
trapezoids over 250 thresholds. Host-side numpy in float64: events have no static shape.
"""

import numpy as np

DEFAULT_BUFFER = 8  # steps: an hour of quarter hours on either side of an event


def volume_under_pr_surface(
    scores: np.ndarray,
    is_anomaly: np.ndarray,
    *,
    tested: np.ndarray | None = None,
    max_buffer: int = DEFAULT_BUFFER,
) -> float:
    """Mean of the areas of buffer lengths 0 .. max_buffer, in [0, 1]; NaN without anomalies.

    Args:
        scores: [T, N], larger is more anomalous; NaN ranks last.
        is_anomaly: [T, N] bool; consecutive rows are consecutive steps.
        tested: [T, N] bool, False leaves a cell-step out of every count.
    """
    counted = np.ones(np.shape(scores), bool) if tested is None else np.asarray(tested, bool)
    ranked = np.where(np.isnan(scores), -np.inf, scores).astype(np.float64)
    label = np.asarray(is_anomaly, bool)
    if not (label & counted).any():
        return float("nan")
    areas = [_area(ranked, label, counted, buffer) for buffer in range(max_buffer + 1)]
    return float(np.mean(areas))


def soft_labels(is_anomaly: np.ndarray, buffer: int) -> np.ndarray:
    """1 in an event, sqrt(1 - d / buffer) up to buffer // 2 steps d before or after one in the same cell. [T, N]"""
    label = np.asarray(is_anomaly, np.float64).copy()
    for distance in range(1, buffer // 2 + 1):
        weight = np.sqrt(1.0 - distance / buffer)
        label[distance:] = np.maximum(label[distance:], weight * is_anomaly[:-distance])
        label[:-distance] = np.maximum(label[:-distance], weight * is_anomaly[distance:])
    return label


def _area(ranked: np.ndarray, is_anomaly: np.ndarray, counted: np.ndarray, buffer: int) -> float:
    """Area under the curve of one buffer length, sum over thresholds of (R_k - R_(k-1)) P_k."""
    label = soft_labels(is_anomaly, buffer)
    order = np.argsort(-ranked[counted], kind="stable")
    ordered = ranked[counted][order]
    last_tied = np.append(ordered[1:] != ordered[:-1], True)  # a threshold is passed once the whole tie has entered
    threshold = ordered[last_tied]  # [K] descending
    found = np.cumsum(label[counted][order])[last_tied]
    predicted = np.flatnonzero(last_tied) + 1.0
    # Half of what the slopes add is asked for, as by the authors, so recall can pass 1 and is cut there.
    positives = 0.5 * (is_anomaly[counted].sum() + label[counted].sum())
    best = np.sort(_best_scores(ranked, is_anomaly, counted, buffer // 2))  # [E] ascending
    touched = 1.0 - np.searchsorted(best, threshold, side="left") / best.size
    recall = np.minimum(found / positives, 1.0) * touched
    return float(np.sum(np.diff(recall, prepend=0.0) * found / predicted))


def _best_scores(ranked: np.ndarray, is_anomaly: np.ndarray, counted: np.ndarray, reach: int) -> np.ndarray:
    """Highest counted score at most `reach` steps from each event that has a counted step. [E]"""
    visible = np.where(counted, ranked, -np.inf)
    near = visible.copy()
    for distance in range(1, reach + 1):
        near[distance:] = np.maximum(near[distance:], visible[:-distance])
        near[:-distance] = np.maximum(near[:-distance], visible[distance:])
    # Cell after cell, with a normal step between them so that events of two cells do not join.
    gap = ((0, 1), (0, 0))
    inside = np.pad(is_anomaly, gap).T.ravel()
    starts = np.flatnonzero(inside & ~np.append(False, inside[:-1]))
    steps = np.flatnonzero(inside)
    first = np.searchsorted(steps, starts)
    best = np.maximum.reduceat(np.pad(near, gap).T.ravel()[steps], first)
    known = np.logical_or.reduceat(np.pad(counted, gap).T.ravel()[steps], first)
    return best[known]
