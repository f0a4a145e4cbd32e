"""Claims about forecast errors, interval scores, calibration measures and their bootstrap intervals."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from stream_jax.conformal import bootstrap, diagnostics
from stream_jax.types import Forecast, Interval

RNG = np.random.default_rng(0)
Z90 = 1.6448536  # standard normal quantile of 0.95


def gaussian_city(num_steps: int = 500, sigma: float = 8.0) -> tuple[Forecast, np.ndarray, np.ndarray]:
    """A calibrated forecast about 100 of 2 horizons and 10 cells, its labels and a full mask."""
    shape = (num_steps, 2, 10)
    mean = RNG.uniform(80.0, 120.0, size=shape).astype(np.float32)
    target = (mean + sigma * RNG.normal(size=shape)).astype(np.float32)
    return Forecast(mean, np.full(shape, sigma, np.float32)), target, np.ones(shape, bool)


def central(forecast: Forecast, z: float = Z90) -> Interval:
    return Interval(forecast.mean - z * forecast.sigma, forecast.mean + z * forecast.sigma)


class ErrorVariants(chex.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_errors_by_hand(self):
        # Errors 3 and -1 (the third is masked), labels 6 and 2: RMSE sqrt(5), MAE 2, mean |y| 4.
        mean, target = jnp.array([3.0, 3.0, 0.0]), jnp.array([6.0, 2.0, 99.0])
        errors = self.variant(diagnostics.point_errors)(mean, target, jnp.array([True, True, False]))
        np.testing.assert_allclose(errors, [5**0.5 / 4, 5**0.5, 2.0, 4.0, 0.5], rtol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_interval_quality_by_hand(self):
        # [0, 4] holds 3; [1, 3] misses 5 by 2; [0, inf) holds 8; the empty set misses 8; the last is masked.
        issued = Interval(jnp.array([0.0, 1.0, 0.0, jnp.inf, 0.0]), jnp.array([4.0, 3.0, jnp.inf, 0.0, 1.0]))
        target, mask = jnp.array([3.0, 5.0, 8.0, 8.0, 9.0]), jnp.arange(5) < 4
        quality = self.variant(lambda *a: diagnostics.interval_quality(*a, alpha=0.1))(issued, target, mask)
        assert quality.coverage == 0.5 and quality.infinite_share == 0.25 and quality.empty_share == 0.25
        # Widths 4, 2 and 0 over three intervals; mean |y| = 6. Winkler (4 + 2 + 20 * 2) / 2.
        np.testing.assert_allclose([quality.riw, quality.winkler], [2.0 / 6.0, 23.0], rtol=1e-6)
        np.testing.assert_allclose(quality.efficiency, 0.5 / (2.0 / 6.0), rtol=1e-6)


def test_the_root_mean_square_is_never_below_the_mean_absolute_error():
    for scale in (0.1, 1.0, 30.0):
        target = RNG.standard_t(3, size=(50, 2, 4)) * scale
        errors = diagnostics.point_errors(jnp.zeros(target.shape), target, RNG.random(target.shape) < 0.7)
        assert errors.rmse >= errors.mae


def test_poisson_counts_reach_the_noise_floor_when_their_mean_is_known():
    # RMSE of Poisson(25) about its mean is 5: NRMSE 0.2. Relative sd of a variance from 40 000 draws is 0.7 %.
    target = RNG.poisson(25.0, size=(100, 4, 100)).astype(np.float32)
    errors = diagnostics.point_errors(jnp.full(target.shape, 25.0), target, np.ones(target.shape, bool))
    np.testing.assert_allclose([errors.noise_floor, errors.nrmse], 0.2, rtol=0.02)


def test_ninety_percent_gaussian_intervals_are_3_29_rmse_wide():
    # Width 2 * 1.645 sigma, RMSE sigma, one normaliser: RIW / NRMSE = 3.29. RMSE of 10 000 draws is good to 0.7 %.
    forecast, target, mask = gaussian_city()
    quality = diagnostics.interval_quality(central(forecast), target, mask, 0.1)
    errors = diagnostics.point_errors(forecast.mean, target, mask)
    np.testing.assert_allclose(quality.riw / errors.nrmse, 2 * Z90, rtol=0.03)


def test_doubling_the_data_doubles_widths_and_leaves_the_relative_width():
    forecast, target, mask = gaussian_city()
    issued = central(forecast)
    double = jax.tree.map(lambda x: 2.0 * x, issued)
    np.testing.assert_array_equal(diagnostics.width(double), 2.0 * diagnostics.width(issued))
    first, second = (diagnostics.interval_quality(i, c * target, mask, 0.1) for i, c in ((issued, 1.0), (double, 2.0)))
    assert first.riw == second.riw


def test_the_winkler_score_is_least_at_the_true_quantiles():
    forecast, target, mask = gaussian_city(2000)
    scores = {
        z: float(diagnostics.interval_quality(central(forecast, z), target, mask, 0.1).winkler)
        for z in (1.0, 1.3, Z90, 2.0, 2.5)
    }
    assert min(scores, key=scores.get) == Z90
    # Coverage / RIW is not proper: it prefers the intervals that cover least.
    narrow, right = (diagnostics.interval_quality(central(forecast, z), target, mask, 0.1) for z in (1.0, Z90))
    assert narrow.efficiency > right.efficiency


def test_the_gaussian_crps_is_the_integral_of_its_definition():
    # CRPS = integral of (F(x) - 1[x >= y]) ** 2, on a grid of step 0.002 in units of sigma = 2.
    grid = np.linspace(-30.0, 30.0, 30_001)
    for y in (-3.0, 1.0, 7.5):
        integral = np.trapezoid((stats.norm.cdf(grid, 1.0, 2.0) - (grid >= y)) ** 2, grid)
        crps = diagnostics.crps_gaussian(Forecast(jnp.float32(1.0), jnp.float32(2.0)), y)
        np.testing.assert_allclose(crps, integral, atol=2e-3)


def test_the_pinball_loss_by_hand():
    # At level 0.9, one above costs 0.9, one below costs 0.1.
    np.testing.assert_allclose(diagnostics.pinball(jnp.array([4.0, 6.0]), 5.0, 0.9), [0.9, 0.1], rtol=1e-5)


def test_calibrated_forecasts_have_uniform_pit_and_wrong_sigmas_do_not():
    # KS of 10 000 uniform draws exceeds 1.63 / 100 with probability 1 %; sigma halved moves the PIT by up to 0.16.
    forecast, target, mask = gaussian_city()
    right = diagnostics.pit_histogram(forecast, target, mask)
    wrong = diagnostics.pit_histogram(Forecast(forecast.mean, forecast.sigma / 2.0), target, mask)
    assert right.ks < 0.0163 and wrong.ks > 0.1
    np.testing.assert_allclose(right.share, 0.05, atol=4 * np.sqrt(0.05 * 0.95 / 10_000))
    expected = stats.kstest(np.asarray(diagnostics.pit_values(forecast, target)).ravel(), "uniform").statistic
    np.testing.assert_allclose(right.ks, expected, atol=1e-5)


def test_reliability_is_the_diagonal_for_a_calibrated_forecast_only():
    # Each observed coverage has standard error below 0.005.
    forecast, target, mask = gaussian_city()
    assert diagnostics.reliability(forecast, target, mask).error < 0.01
    narrow = diagnostics.reliability(Forecast(forecast.mean, forecast.sigma / 2.0), target, mask)
    # Half the sigma: nominal 50 % covers 2 Phi(0.337) - 1 = 0.264.
    np.testing.assert_allclose(narrow.observed[9], 0.264, atol=0.02)


def test_coverage_by_group_by_hand():
    hit = jnp.array([[[True, False, True]], [[True, True, False]]])
    mask = jnp.array([[[True, True, True]], [[True, False, True]]])
    by_cluster = diagnostics.coverage_by_group(hit, mask, jnp.array([0, 0, 2]), 3)
    np.testing.assert_allclose(by_cluster.coverage, [2 / 3, 0.0, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(by_cluster.count, [3, 0, 2])


def test_quintiles_split_the_observed_loads_evenly():
    load = RNG.permutation(100).astype(np.float32).reshape(5, 2, 10)
    quintile = diagnostics.load_quintile(load, np.ones(load.shape, bool))
    np.testing.assert_array_equal(quintile, load // 20)


def test_the_worst_decile_is_the_mean_of_the_least_covered_tenth_of_cells():
    # 20 cells covered 0, 5, 10, ... 95 % of 20 steps: the worst two have 0 and 5 %.
    hit = np.arange(20)[:, None] < np.arange(20)[None, :]  # [W, N]
    worst = diagnostics.worst_decile_coverage(hit[:, None], np.ones((20, 1, 20), bool))
    np.testing.assert_allclose(worst, 0.025, rtol=1e-5)


def test_the_bootstrap_mean_does_not_depend_on_the_block():
    # Every step is equally likely in a circular block, so replicates average to the sample mean; 4 standard errors.
    series = np.sin(np.arange(97) / 5.0) + 3.0
    sums = jnp.asarray(np.stack([series, np.ones(97)], axis=1), jnp.float32)
    for block in (1, 8, 30):
        totals = jax.jit(bootstrap.resampled_totals, static_argnums=(2, 3))(jax.random.key(block), sums, block, 2000)
        means = totals[:, 0] / totals[:, 1]
        assert abs(means.mean() - series.mean()) < 4 * means.std() / np.sqrt(2000)


def test_blocks_widen_the_interval_of_a_slow_series():
    # AR(0.9): the variance of a mean is (1 + 0.9) / (1 - 0.9) = 19 times that of independent steps.
    noise = RNG.normal(size=1000)
    series = np.zeros(1000)
    for t in range(1, 1000):
        series[t] = 0.9 * series[t - 1] + noise[t]
    sums = jnp.asarray(np.stack([series, np.ones(1000)], axis=1), jnp.float32)
    std = [
        float(bootstrap.block_bootstrap(jax.random.key(0), sums, bootstrap.ratio_of_totals, block).std)
        for block in (1, 40)
    ]
    assert std[1] > 2.5 * std[0]


def test_shared_shocks_leave_few_effective_labels():
    # All 20 cells of a step are covered or missed together: 300 x 20 labels are worth about 300. The relative error
    # of a bootstrap variance from 60 blocks is sqrt(2 / 60) = 18 %; twice and half leave room for four of them.
    hit = np.broadcast_to(RNG.random((300, 1, 1)) < 0.9, (300, 1, 20))
    sums = bootstrap.mean_sums(hit, np.ones(hit.shape, bool))
    coverage = bootstrap.block_bootstrap(jax.random.key(1), sums, bootstrap.ratio_of_totals, block=5)
    assert 150 < bootstrap.effective_sample_size(coverage) < 600


def test_the_bootstrap_of_nrmse_is_about_the_nrmse():
    forecast, target, mask = gaussian_city()
    sums = bootstrap.nrmse_sums(forecast.mean, target, mask)
    estimate = bootstrap.block_bootstrap(jax.random.key(2), sums, bootstrap.nrmse_of_totals, block=10)
    nrmse = diagnostics.point_errors(forecast.mean, target, mask).nrmse
    np.testing.assert_allclose(estimate.estimate, nrmse, rtol=1e-5)
    assert estimate.lower < nrmse < estimate.upper


def test_an_interval_holds_its_estimate_however_the_replicates_are_rounded():
    # 20 steps are less than one block of 24: every replicate adds the same 20 numbers in another order.
    for seed in range(20):
        sums, other = jax.random.uniform(jax.random.key(seed), (2, 20, 2))
        found = bootstrap.paired_difference(jax.random.key(seed), sums, other, bootstrap.ratio_of_totals, block=24)
        assert found.lower <= found.estimate <= found.upper
        assert found.upper - found.lower < 1e-5


def test_an_interval_holds_an_estimate_that_no_replicate_reaches():
    # The squared mean of centred numbers is 0 up to rounding, and that of every resampled period is larger.
    centred = RNG.normal(size=100)
    sums = jnp.asarray(np.stack([centred - centred.mean(), np.ones(100)], axis=1), jnp.float32)
    found = bootstrap.block_bootstrap(jax.random.key(4), sums, squared_mean, block=1)
    assert found.lower <= found.estimate < 1e-9 < found.upper


def squared_mean(totals):
    return bootstrap.ratio_of_totals(totals) ** 2


def test_pairing_sees_a_small_difference_that_separate_intervals_hide():
    # The second method's errors are the first's times 1.02, with a scale that swings over the steps.
    scale = np.exp(RNG.normal(size=(300, 1, 1)))
    error = (scale * RNG.normal(size=(300, 1, 20))).astype(np.float32)
    mask, target = np.ones(error.shape, bool), np.full(error.shape, 10.0, np.float32)
    sums = [bootstrap.nrmse_sums(target + c * error, target, mask) for c in (1.0, 1.02)]
    single = [bootstrap.block_bootstrap(jax.random.key(3), s, bootstrap.nrmse_of_totals, block=5) for s in sums]
    paired = bootstrap.paired_difference(jax.random.key(3), *sums, bootstrap.nrmse_of_totals, block=5)
    assert single[0].upper > single[1].lower
    assert paired.upper < 0.0


def test_a_results_row_agrees_with_its_parts():
    forecast, target, mask = gaussian_city(60)
    slot = (np.arange(60)[:, None] + 1 + np.arange(2)) % 672
    issued = central(forecast)
    row = diagnostics.evaluate(
        jax.random.key(4), forecast, issued, target, mask, np.arange(10) % 3, slot, alpha=0.1, block=6
    )
    quality = diagnostics.interval_quality(issued, target, mask, 0.1)
    assert all(isinstance(value, float) and np.isfinite(value) for value in row.values())
    np.testing.assert_allclose([row["coverage"], row["riw"]], [quality.coverage, quality.riw], rtol=1e-6)
    np.testing.assert_allclose(row["coverage"], (row["coverage_h1"] + row["coverage_h2"]) / 2.0, rtol=1e-5)
    assert row["coverage_lower"] <= row["coverage"] <= row["coverage_upper"]
    assert row["coverage_worst_cluster"] <= row["coverage"]
