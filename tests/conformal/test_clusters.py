"""Claims about the clusters of cells that share a conformal radius."""

import numpy as np

from stream_jax.conformal.clusters import cluster_cells, error_statistics, merge_small, num_clusters_for
from stream_jax.conformal.intervals import ConformalConfig

LONG = 600  # recording steps, above the limit for short recordings


def pooled_coverage(cal: np.ndarray, test: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Coverage at 90 % of each cluster's pooled order statistic: scores [W, N] -> [clusters]."""
    coverage = []
    for k in np.unique(cluster):
        pool = np.sort(cal[:, cluster == k].ravel())
        rank = int(np.ceil((len(pool) + 1) * 0.9))
        coverage.append(np.mean(test[:, cluster == k] <= pool[rank - 1]))
    return np.array(coverage)


def test_clusters_drawn_from_the_calibration_errors_under_cover():
    # Identical cells with t4 errors: whatever is clustered is noise. Cells sorted into a low-error cluster by their
    # own calibration errors get a radius that is too small for their test errors. One repetition of the worst of 15
    # clusters gives 0.81 to 0.86 against 0.88, so the mean of three is well apart.
    rng = np.random.default_rng(0)
    worst = {"other": [], "same": []}
    for _ in range(3):
        val, cal, test = rng.standard_t(4, size=(3, 50, 1, 293))
        for name, split in (("other", val), ("same", cal)):
            cluster = cluster_cells(split, np.ones(split.shape, bool), LONG, ConformalConfig())
            worst[name].append(pooled_coverage(np.abs(cal[:, 0]), np.abs(test[:, 0]), cluster).min())
    assert np.mean(worst["same"]) < np.mean(worst["other"]) - 0.02
    assert np.mean(worst["same"]) < 0.865 < np.mean(worst["other"])


def test_the_same_seed_gives_the_same_clusters():
    errors = np.random.default_rng(1).normal(size=(40, 4, 100)) * np.linspace(1.0, 3.0, 100)
    mask = np.ones(errors.shape, bool)
    first, second = (cluster_cells(errors, mask, LONG, ConformalConfig(seed=5)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_three_kinds_of_cells_are_told_apart_and_numbered_by_error():
    # Spreads 1, 2, 4 and skewness 0, 2, -2: far apart beside sampling errors of some 5 % and 0.4 from 400 draws.
    rng = np.random.default_rng(2)
    kind = np.repeat([2, 0, 1], 10)
    shape = (200, 2, 30)
    skewed = rng.exponential(size=shape) - 1.0
    errors = np.select([kind == 0, kind == 1], [rng.normal(size=shape), 2.0 * skewed], -4.0 * skewed)
    cluster = cluster_cells(errors, np.ones(errors.shape, bool), LONG, ConformalConfig(num_clusters=3))
    np.testing.assert_array_equal(cluster, kind)


def test_no_cluster_is_smaller_than_the_minimum():
    errors = np.random.default_rng(3).standard_t(3, size=(60, 4, 120))
    cluster = cluster_cells(errors, np.ones(errors.shape, bool), LONG, ConformalConfig(min_cluster=7))
    sizes = np.bincount(cluster)
    assert sizes.min() >= 7 and sizes.sum() == 120 and len(sizes) <= 15


def test_a_lone_point_joins_the_nearest_centroid():
    points = np.array([[0.0], [0.1], [5.0], [5.1], [4.0]])
    merged = merge_small(points, np.array([0, 0, 1, 1, 2]), min_size=2)
    np.testing.assert_array_equal(merged, [0, 0, 1, 1, 1])


def test_short_recordings_get_fewer_clusters():
    cfg = ConformalConfig()
    assert [num_clusters_for(steps, cfg) for steps in (299, 300)] == [5, 15]
    errors = np.random.default_rng(4).normal(size=(50, 1, 200))
    assert cluster_cells(errors, np.ones(errors.shape, bool), 299, cfg).max() + 1 <= 5


def test_statistics_ignore_missing_errors():
    # Cell 0 sees (-1, 3): mean |e| 2, std 2, skew 0. Cell 1 sees (0, 0, 3): mean 1, std sqrt(2), third central
    # moment (-1 - 1 + 8) / 3 = 2, skew 2 / 2 ** 1.5. Cell 2 sees nothing and takes the mean of the others.
    errors = np.array([[-1.0, 0.0, 9.0], [3.0, 0.0, 9.0], [9.0, 3.0, 9.0]])[:, None]
    mask = np.array([[True, True, False], [True, True, False], [False, True, False]])[:, None]
    known = np.array([[2.0, 2.0, 0.0], [1.0, np.sqrt(2.0), 2.0**-0.5]])
    np.testing.assert_allclose(error_statistics(errors, mask), [*known, known.mean(axis=0)], atol=1e-9)


def test_cells_without_any_difference_form_one_cluster():
    errors = np.ones((10, 2, 20))
    np.testing.assert_array_equal(cluster_cells(errors, np.ones(errors.shape, bool), LONG, ConformalConfig()), 0)
