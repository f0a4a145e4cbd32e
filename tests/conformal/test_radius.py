"""Claims about the conformal radius as an order statistic, and the adaptive step."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.intervals import (
    aci_update,
    conformal_radius,
    contains,
    interval_at,
    masked_conformal_radius,
)
from stream_jax.conformal.order_statistics import cluster_radius, conformal_rank
from stream_jax.types import Forecast


class RadiusVariants(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_nine_scores_at_ten_percent_give_the_ninth_smallest(self):
        # (9 + 1) * 0.9 = 9 exactly; float32 arithmetic that rounds it up to 10 would say infinity.
        radius = self.variant(conformal_radius)(jnp.arange(9.0, 0.0, -1.0), 0.1)
        assert radius == 9.0

    @chex.variants(with_jit=True, without_jit=True)
    def test_masked_scores_count_for_nothing(self):
        scores, mask = jnp.array([5.0, 1.0, 99.0, 3.0]), jnp.array([True, True, False, True])
        # n = 3, alpha = 0.5: rank ceil(4 * 0.5) = 2 of (1, 3, 5).
        assert self.variant(masked_conformal_radius)(scores, mask, 0.5) == 3.0


def test_ranks_are_exact_wherever_the_product_is_a_whole_number():
    # alpha = j / (n + 1) makes (n + 1)(1 - alpha) = n + 1 - j whole: the rank must be that, for every n and j.
    n = np.arange(1, 1500)[:, None]
    j = np.arange(1, 1500)[None, :]
    rank = conformal_rank(n, (j / (n + 1)).astype(np.float32))
    np.testing.assert_array_equal(np.asarray(rank)[j <= n], (n + 1 - j)[j <= n])


def test_fewer_scores_than_the_level_needs_give_the_whole_line():
    # 1 / 0.1 - 1 = 9 scores are needed at 10 %.
    assert conformal_radius(np.arange(8.0), 0.1) == np.inf
    assert conformal_radius(np.arange(9.0), 0.1) == 8.0
    assert conformal_radius(np.zeros(0), 0.1) == np.inf


def test_a_level_of_zero_or_less_is_the_whole_line_and_of_one_or_more_the_empty_set():
    scores = np.arange(50.0)
    levels = jnp.array([-0.3, 0.0, 1.0, 1.2])
    radius = jax.vmap(conformal_radius, in_axes=(None, 0))(scores, levels)
    np.testing.assert_array_equal(radius, [np.inf, np.inf, -np.inf, -np.inf])
    forecast = Forecast(mean=jnp.array([0.0, 5.0, 1e6]), sigma=jnp.ones(3))
    labels = jnp.array([0.0, 5.0, 1e6])
    assert contains(interval_at(jnp.inf, forecast), labels).all()
    assert not contains(interval_at(-jnp.inf, forecast), labels).any()


@pytest.mark.parametrize("rows", [1, 126, 127, 128, 300])  # counts are summed in blocks of at most 127 rows
def test_pooled_radii_are_the_order_statistics_wherever_the_search_begins(rows):
    rng = np.random.default_rng(rows)
    scores = np.abs(rng.standard_t(3, (rows, 2, 7))).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = np.inf
    scores[:, 1, 3] = 0.0  # ties, at the smallest score there is
    cluster = np.array([0, 0, 1, 1, 1, 2, 2])
    alpha = np.array([[0.1, 0.5], [0.02, 0.97], [0.3, 1e-3]], np.float32)
    expected = np.empty_like(alpha)
    for c, h in np.ndindex(alpha.shape):
        pool = np.sort(scores[:, h, cluster == c].ravel())
        pool = pool[np.isfinite(pool)]
        rank = int(conformal_rank(len(pool), alpha[c, h]))
        expected[c, h] = np.inf if rank > len(pool) else -np.inf if rank < 1 else pool[rank - 1]
    near = [None, *(jnp.full(alpha.shape, guess) for guess in (0.0, 1e-30, 1.0, 1e30, np.inf, np.nan))]
    for guess in [*near, expected, 1.001 * expected]:
        np.testing.assert_array_equal(jax.jit(cluster_radius)(scores, cluster, alpha, guess), expected)


@pytest.mark.parametrize("n", [9, 19, 50])
def test_coverage_is_exactly_rank_over_n_plus_one(n):
    # Exchangeable scores: P(new <= k-th of n) = k / (n + 1). 100 000 repetitions: 4 standard errors = 0.0038.
    rank = {9: 9, 19: 18, 50: 46}[n]  # ceil((n + 1) * 0.9)
    scores = jax.random.exponential(jax.random.key(n), (100_000, n + 1))
    radius = jax.jit(jax.vmap(conformal_radius, in_axes=(0, None)))(scores[:, :n], 0.1)
    assert abs(jnp.mean(scores[:, n] <= radius) - rank / (n + 1)) < 0.0038


def test_the_update_takes_floats_arrays_and_maps():
    assert aci_update(0.1, 1.0, 0.1, 0.05) == pytest.approx(0.055)
    assert aci_update(0.1, 0.0, 0.1, 0.05) == pytest.approx(0.105)
    levels = jax.jit(jax.vmap(aci_update, in_axes=(0, 0, None, None)))(jnp.zeros(2), jnp.array([0.0, 1.0]), 0.1, 0.5)
    np.testing.assert_allclose(levels, [0.05, -0.45], rtol=1e-6)


def test_one_radius_for_all_horizons_over_covers_the_first_and_under_covers_the_last():
    # Half-normal scores of sd 1, 1.3, 1.6, 2; the pooled 90 % radius q solves mean(2 Phi(q / sd) - 1) = 0.9, which
    # gives coverage 0.988, 0.945, 0.883, 0.785. 4 standard errors of 40 000 labels around 0.785 are 0.008.
    sd = jnp.array([1.0, 1.3, 1.6, 2.0])
    scores = jnp.abs(jax.random.normal(jax.random.key(0), (2, 40_000, 4))) * sd
    pooled = jnp.mean(scores[1] <= conformal_radius(scores[0].ravel(), 0.1), axis=0)
    np.testing.assert_allclose(pooled, [0.988, 0.945, 0.883, 0.785], atol=0.009)
    own = jnp.mean(scores[1] <= jax.vmap(conformal_radius, in_axes=(1, None))(scores[0], 0.1), axis=0)
    np.testing.assert_allclose(own, 0.9, atol=0.009)


def test_counting_any_missed_cell_as_a_miss_covers_far_too_much():
    # The ten cells are independent; "any" at 10 % needs each covered with 0.9 ** 0.1 = 0.9895, a radius of 2.56, the
    # mean needs 1.645.
    target = 100.0 + jax.random.normal(jax.random.key(9), (20_000, 10))
    score = jnp.abs(target - 100.0)
    each, largest = conformal_radius(score.ravel(), 0.1), conformal_radius(score.max(axis=1), 0.1)
    np.testing.assert_allclose([each, largest], [1.645, 2.56], atol=0.04)
    assert abs(jnp.mean(score <= largest) - 0.9895) < 0.002


def test_cells_that_share_shocks_make_the_radius_far_less_certain_than_their_number_says():
    # 19 cells whose errors are half a common factor, all of it AR(0.8). The true coverage of a radius from 134 steps
    # has standard deviation 0.022 over recordings, from 672 steps 0.011; independent labels would give
    # sqrt(0.09 / (134 * 19)) = 0.006. The standard error of a deviation from 300 recordings is 4 %.
    rng = np.random.default_rng(0)
    for steps, expected in ((134, 0.022), (672, 0.011)):
        shocks = rng.standard_normal((steps, 300, 20)).astype(np.float32)  # the last column is the common factor
        slow = shocks.copy()
        for step in range(1, steps):
            slow[step] = 0.8 * slow[step - 1] + 0.6 * shocks[step]
        errors = np.sqrt(0.5) * (slow[..., :19] + slow[..., 19:])  # [steps, recordings, cells]
        scores = jnp.abs(jnp.moveaxis(errors, 1, 0).reshape(300, -1))
        radius = jax.vmap(conformal_radius, (0, None))(scores, 0.1)
        coverage = 2.0 * jax.scipy.stats.norm.cdf(radius) - 1.0
        np.testing.assert_allclose(coverage.std(), expected, rtol=0.16)
