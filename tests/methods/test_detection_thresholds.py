"""Thresholds that need no labels: peaks over threshold and the limit of the squared prediction error."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.methods.detection.pca import spe_limit
from experiments.methods.detection.pot import PotConfig, fit_generalised_pareto, pot_threshold


@pytest.mark.parametrize("risk", [1e-2, 1e-3])
def test_peaks_over_threshold_recover_the_quantile_of_an_exponential_law(risk):
    scores = np.random.default_rng(0).exponential(size=20_000)
    found = pot_threshold(scores, PotConfig(risk=risk, tail=0.05))
    # Tail of 1,000 excesses: the shape has sd (1 + 0) / sqrt(1000) = 0.032 and moves the quantile by shape x^2 / 2 with
    # x = log(0.05 / risk), the scale has sd sqrt(2 / 1000) = 0.045 and moves it by x; three of both are allowed.
    reach = np.log(0.05 / risk)
    assert found == pytest.approx(-np.log(risk), abs=3 * (0.032 * reach**2 / 2 + 0.045 * reach + 0.03))


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.3])
def test_the_fitted_pareto_law_is_the_one_that_was_drawn(shape):
    excess = stats.genpareto.rvs(shape, scale=2.0, size=20_000, random_state=1)
    found_shape, found_scale = fit_generalised_pareto(excess)
    # sd of the shape (1 + shape) / sqrt(n) < 0.01, of the scale about scale sqrt(2 / n) = 0.02.
    assert found_shape == pytest.approx(shape, abs=0.03)
    assert found_scale == pytest.approx(2.0, abs=0.07)


def test_the_fit_is_at_least_as_likely_as_scipys():
    excess = stats.genpareto.rvs(0.1, size=500, random_state=2)
    ours = stats.genpareto.logpdf(excess, *_with_location(fit_generalised_pareto(excess))).sum()
    theirs = stats.genpareto.logpdf(excess, *stats.genpareto.fit(excess, floc=0.0)).sum()
    assert ours >= theirs - 1e-3


def test_a_heavier_tail_and_a_smaller_risk_move_the_threshold_up():
    rng = np.random.default_rng(3)
    light, heavy = rng.exponential(size=5_000), rng.standard_t(3, size=5_000)
    assert pot_threshold(light, PotConfig(risk=1e-4)) > pot_threshold(light, PotConfig(risk=1e-2))
    excess_of = {
        name: pot_threshold(x, PotConfig(1e-4)) / np.quantile(x, 0.98)
        for name, x in (("light", light), ("heavy", heavy))
    }
    assert excess_of["heavy"] > excess_of["light"]


def test_scores_that_are_not_numbers_do_not_count_and_none_at_all_is_refused():
    scores = np.random.default_rng(4).exponential(size=1_000)
    with_gaps = np.concatenate([scores, np.full(500, np.nan)])
    assert pot_threshold(with_gaps, PotConfig()) == pot_threshold(scores, PotConfig())
    with pytest.raises(ValueError, match="at least one score"):
        pot_threshold(np.full(3, np.nan), PotConfig())
    with pytest.raises(ValueError, match="risk"):
        PotConfig(risk=0.1, tail=0.02)


@pytest.mark.parametrize("eigenvalues", [[1.0], [3.0, 1.0, 0.5, 0.1], [1.0] * 20])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_spe_limit_holds_its_level_on_gaussian_data(eigenvalues, level):
    spe = np.square(np.random.default_rng(5).normal(size=(100_000, len(eigenvalues)))) @ np.array(eigenvalues)
    share = np.mean(spe > float(spe_limit(jnp.array(eigenvalues), level)))
    # An approximation: a tenth too many alarms at most, and a third too few where one eigenvalue dominates. Three
    # binomial standard deviations come on top.
    noise = 3 * np.sqrt(level / 100_000)
    assert level * 2 / 3 - noise < share < 1.1 * level + noise


def _with_location(law: tuple[float, float]) -> tuple[float, float, float]:
    return law[0], 0.0, law[1]
