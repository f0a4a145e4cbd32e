"""Each rival finds what it is made for, stays quiet on clean data, and leaves what was not observed alone."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from experiments.methods.detection import flow_quantile, isolation_forest, omni_anomaly, parametric, pca, usad
from experiments.methods.detection.pot import PotConfig
from stream_jax.fit import TrainConfig
from stream_jax.flows.crfn_by import FlowConfig
from tests.methods.small_residuals import flow_data, waves

KEY = jax.random.key(0)
HELD_OUT = 0.25
USAD = usad.UsadConfig(window=8, latent=6, epochs=40, batch=16, learning_rate=3e-3)
OMNI = omni_anomaly.OmniAnomalyConfig(
    window=8,
    latent=2,
    hidden=16,
    dense=16,
    flow_layers=2,
    samples=2,
    training=TrainConfig(learning_rate=1e-2, batch=32, epochs=30, patience=30, clip=10.0),
)
SMALL = {
    "isolation_forest": (isolation_forest, isolation_forest.IsolationForestConfig(trees=20)),
    "pca": (pca, pca.PcaConfig(components=1)),
    "gaussian": (parametric, parametric.ParametricConfig("gaussian")),
    "student_t": (parametric, parametric.ParametricConfig("student_t")),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_rival_without_windows_scores_all_observed_cells_and_no_other(name):
    rng = np.random.default_rng(1)
    observed = rng.random((40, 4)) < 0.8
    data = flow_data(rng.normal(size=(40, 4)), observed)
    module, cfg = SMALL[name]
    params = module.fit(KEY, data, cfg, HELD_OUT)
    found = np.asarray(module.scores(params, data, cfg))
    assert found.shape == (40, 4)
    np.testing.assert_array_equal(np.isnan(found), ~observed)
    again = module.scores(module.fit(KEY, data, cfg, HELD_OUT), data, cfg)
    np.testing.assert_array_equal(found, np.asarray(again))


def test_the_forest_finds_a_far_point_and_ranks_it_first():
    rng = np.random.default_rng(2)
    cfg = isolation_forest.IsolationForestConfig()
    params = isolation_forest.fit(KEY, flow_data(rng.normal(size=(200, 6))), cfg, HELD_OUT)
    values = rng.normal(size=(100, 6))
    clean = isolation_forest.scores(params, flow_data(values), cfg)
    values[50, 3] = 8.0
    found = isolation_forest.scores(params, flow_data(values), cfg)
    assert np.unravel_index(found.argmax(), found.shape) == (50, 3)
    assert found[50, 3] > params.threshold == pytest.approx(0.5)
    # What is usual is not isolated: the paper's rule flags the outer points of a normal cloud, not its middle.
    middle = (np.abs(values) < 0.5) & (np.abs(np.roll(values, 1, 1) + np.roll(values, -1, 1)) < 1.0)
    assert (clean[middle] > params.threshold).mean() < 0.01
    assert clean.max() < found[50, 3]


def test_pca_finds_a_cell_that_leaves_its_neighbours_though_its_value_is_usual():
    rng = np.random.default_rng(3)

    def common(num_steps):
        return rng.normal(size=(num_steps, 1)) * np.ones(5) + 0.1 * rng.normal(size=(num_steps, 5))

    cfg = pca.PcaConfig(components=1)
    params = pca.fit(KEY, flow_data(common(500)), cfg, HELD_OUT)
    values = common(2_000)
    clean = np.asarray(pca.scores(params, flow_data(values), cfg))
    # 10,000 normal cell-steps at the level 0.1 %: 10 are expected, 3 sd are 10 more.
    assert (clean > float(params.threshold)).sum() <= 20
    values[1_000] = 1.0
    values[1_000, 2] = -1.0  # no cell is further from 0 than usual
    found = np.asarray(pca.scores(params, flow_data(values), cfg))
    assert found[1_000, 2] > float(params.threshold)
    assert np.unravel_index(found.argmax(), found.shape) == (1_000, 2)
    assert not np.any(found[999] != clean[999])


def broken_wave(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A wave, and the same wave standing still in cell 1 for two steps where it should fall: the values are usual."""
    values = waves(rng, 256)
    broken = values.copy()
    top = 80 + int(values[80:88, 1].argmax())
    broken[top + 3 : top + 5, 1] = values[top, 1]
    return values, broken


@pytest.mark.slow
@pytest.mark.parametrize(("module", "cfg"), [(usad, USAD), (omni_anomaly, OMNI)], ids=["usad", "omni_anomaly"])
def test_a_broken_temporal_pattern_is_found_though_its_values_are_usual(module, cfg):
    rng = np.random.default_rng(4)
    params = module.fit(KEY, flow_data(waves(rng, 256)), cfg, HELD_OUT)
    values, broken = broken_wave(rng)
    observed = np.ones(values.shape, bool)
    observed[120:125, 2] = False
    clean = np.asarray(module.scores(params, flow_data(values), cfg))[8:]
    found = np.asarray(module.scores(params, flow_data(broken, observed), cfg))[8:]
    np.testing.assert_array_equal(np.isnan(found), ~observed[8:])
    assert np.abs(broken).max() <= np.abs(values).max()
    # The risk is 0.1 % where the law of the fitting scores still holds; ten times as much is allowed.
    assert (clean > params.threshold).mean() <= 0.01
    changed = (broken != values)[8:]
    assert (found[changed] > params.threshold).all()
    assert found[changed].min() > np.quantile(clean, 0.99)


def test_added_up_the_adversarial_terms_of_usad_cancel():
    cfg = usad.UsadConfig(window=2, latent=3)
    networks = usad._start(KEY, 8, cfg)
    flat = jax.random.uniform(jax.random.key(1), (5, 8))
    seen = np.ones((5, 8), bool)
    plain = usad._total_loss({}, networks, flat, seen, 1.0, (0, 1), cfg)  # 1 / n = 1: no adversarial term at all
    for share in (0.5, 0.1):
        both = usad._total_loss({}, networks, flat, seen, share, (0, 1), cfg)
        assert float(both) == pytest.approx(share * float(plain), rel=1e-5)
        first = usad._total_loss({}, networks, flat, seen, share, (0,), cfg)
        assert float(first) != pytest.approx(share * float(plain) / 2, rel=1e-2)


def test_the_fitted_student_law_has_the_degrees_of_freedom_that_were_drawn():
    values = stats.t.rvs(4.0, loc=0.1, scale=2.0, size=(500, 10), random_state=5)
    params = parametric.fit(KEY, flow_data(values), parametric.ParametricConfig("student_t"), HELD_OUT)
    assert params.degrees_of_freedom == pytest.approx(4.0, abs=0.8)
    assert params.scale == pytest.approx(2.0, rel=0.06)
    p = parametric.tail_probability(params, parametric.scores(params, flow_data(values), None))
    # Uniform under its own law: the Kolmogorov distance of 5,000 values is below 1.63 / sqrt(5000) at 1 %.
    assert stats.kstest(p.ravel(), "uniform").statistic < 0.023


def test_the_gaussian_law_believes_too_little_of_heavy_tails_and_the_student_law_does_not():
    values = stats.t.rvs(3.0, size=(500, 10), random_state=6)
    share = {}
    for law in ("gaussian", "student_t"):
        cfg = parametric.ParametricConfig(law)
        params = parametric.fit(KEY, flow_data(values), cfg, HELD_OUT)
        share[law] = np.mean(
            parametric.tail_probability(params, parametric.scores(params, flow_data(values), cfg)) < 1e-3
        )
    assert share["gaussian"] > 5e-3 and share["student_t"] < 2e-3


def test_the_flows_own_tail_probability_is_that_of_a_normal_vectors_length():
    length = np.array([0.5, 1.96, 4.0, np.nan])
    one = flow_quantile.FlowQuantileParams(None, 1)
    np.testing.assert_allclose(flow_quantile.tail_probability(one, length), 2 * stats.norm.sf(length))
    three = flow_quantile.FlowQuantileParams(None, 3)
    np.testing.assert_allclose(flow_quantile.tail_probability(three, length), stats.chi2.sf(length**2, 3))
    with pytest.raises(ValueError, match="radius"):
        flow_quantile.FlowQuantileConfig(flow=dataclasses.replace(FlowConfig().alone(), score="nll"))


def test_the_random_walk_prior_is_the_joint_normal_law_that_it_stands_for():
    # Cov(z_s, z_t) = min(s, t) + [s = t] for s_1 ~ N(0, 1): the walk's variance grows by one a step.
    step = np.arange(1, 6)
    covariance = np.minimum(step[:, None], step[None]) + np.eye(5)
    latent = np.random.default_rng(7).normal(size=(5, 2))
    expected = sum(stats.multivariate_normal.logpdf(latent[:, d], np.zeros(5), covariance) for d in range(2))
    assert float(omni_anomaly.random_walk_log_density(latent)) == pytest.approx(expected, rel=1e-5)


def test_a_planar_flow_reports_the_log_determinant_of_its_jacobian():
    flows = omni_anomaly._PlanarFlows(3)
    point = jax.random.normal(jax.random.key(1), (1, 3))
    params = jax.tree.map(lambda leaf: leaf + 0.7, flows.init(KEY, point))  # far from the identity
    jacobian = jax.jacobian(lambda z: flows.apply(params, z[None])[0][0])(point[0])
    _, expected = np.linalg.slogdet(np.asarray(jacobian))
    assert float(flows.apply(params, point)[1][0]) == pytest.approx(expected, rel=1e-4)


def test_sizes_that_make_no_sense_are_refused():
    for make in (
        lambda: usad.UsadConfig(window=0),
        lambda: omni_anomaly.OmniAnomalyConfig(latent=0),
        lambda: pca.PcaConfig(level=1.0),
        lambda: PotConfig(risk=0.0),
    ):
        with pytest.raises(ValueError):
            make()
