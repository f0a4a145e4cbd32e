"""Groups cells whose forecast errors are alike, so that they can share a conformal radius.

Implements Sec. "Spatially-Adaptive Conformal Calibration", Step 1, on the host. The errors come from the validation
split: clusters drawn from the calibration errors would sort the very scores that they are to be calibrated with, and
lose coverage in the clusters of small errors.
"""

import numpy as np
from sklearn.cluster import KMeans

from stream_jax.conformal.intervals import ConformalConfig

NUM_RESTARTS = 10
STD_EPS = 1e-9  # below this a statistic says nothing about the cells


def num_clusters_for(recording_steps: int, cfg: ConformalConfig) -> int:
    """Clusters that a recording of this length can calibrate."""
    return min(cfg.num_clusters, cfg.short_clusters) if recording_steps < cfg.short_steps else cfg.num_clusters


def cluster_cells(errors: np.ndarray, mask: np.ndarray, recording_steps: int, cfg: ConformalConfig) -> np.ndarray:
    """Cluster of each cell, [N] int32, numbered from 0 by rising mean absolute error.

    Args:
        errors: [W, H, N] signed validation errors, in the unit of the scores: (y - mean) / sigma.
        mask: [W, H, N] bool.
        recording_steps: length of the whole recording.
        cfg: number and smallest size of clusters, seed.
    """
    features = error_statistics(errors, mask)  # [N, 3]
    standardised = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), STD_EPS)
    num_distinct = len(np.unique(standardised, axis=0))
    num_clusters = min(num_clusters_for(recording_steps, cfg), num_distinct)
    kmeans = KMeans(num_clusters, init="k-means++", random_state=cfg.seed).set_params(n_init=NUM_RESTARTS)
    labels = merge_small(standardised, kmeans.fit_predict(standardised), cfg.min_cluster)
    present = np.unique(labels)
    by_error = np.argsort([features[labels == k, 0].mean() for k in present])
    number = np.empty(len(present), np.int32)
    number[by_error] = np.arange(len(present))
    return number[np.searchsorted(present, labels)]


def error_statistics(errors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean absolute error, deviation and skewness of each cell [N, 3]; a cell never observed gets the mean."""
    num_cells = errors.shape[-1]
    masked = np.ma.masked_array(np.asarray(errors, np.float64), ~np.asarray(mask)).reshape(-1, num_cells)
    spread = masked.std(axis=0)
    third = ((masked - masked.mean(axis=0)) ** 3).mean(axis=0)
    skew = third / np.maximum(spread, STD_EPS) ** 3
    columns = [np.abs(masked).mean(axis=0), spread, np.ma.where(spread > STD_EPS, skew, 0.0)]
    return np.stack([np.ma.filled(c, c.mean() if c.count() else 0.0) for c in columns], axis=1)


def merge_small(points: np.ndarray, labels: np.ndarray, min_size: int) -> np.ndarray:
    """Moves the smallest cluster below min_size into the one of nearest centroid until none is too small."""
    labels = labels.copy()
    while True:
        present, sizes = np.unique(labels, return_counts=True)
        if len(present) == 1 or sizes.min() >= min_size:
            return labels
        smallest = present[np.argmin(sizes)]
        centroids = np.stack([points[labels == k].mean(axis=0) for k in present])
        distance = np.linalg.norm(centroids - points[labels == smallest].mean(axis=0), axis=1)
        distance[present == smallest] = np.inf
        labels[labels == smallest] = present[np.argmin(distance)]
