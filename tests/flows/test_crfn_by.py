"""The detector learns conditional scales, ranks fairly across contexts, and rejects what it should and no more."""

import dataclasses
import math
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.fdr import CalibrationSizeWarning
from stream_jax.conformal.p_values import InvalidPValueWarning
from stream_jax.fit import TrainConfig
from stream_jax.flows import crfn_by
from stream_jax.flows.context import ContextConfig, FlowData, Neighbours, step_at
from stream_jax.flows.crfn_by import Calibration, FlowConfig, Judged
from stream_jax.flows.real_nvp import two_sided_radius

# Residuals here are far from their spread's unit, so the flow is not drawn back to them.
CFG = FlowConfig(num_layers=2, hidden=16, context=ContextConfig(features=16, lags=2, heads=2, embedding=2), shrink=0.0)
SINGLE = CFG.alone()
NLL = dataclasses.replace(CFG, score="nll")
TRAINING = TrainConfig(learning_rate=5e-3, batch=64, epochs=25, patience=25)
NODES, DIM = 6, 2
BASE_SCALE = np.array([0.3, 1.0, 3.0, 0.3, 1.0, 3.0])
NARROW, WIDE = [0, 3], [2, 5]
# Each cell hears all others.
OTHERS = np.array([[j for j in range(NODES) if j != i] for i in range(NODES)], np.int32)
NEIGHBOURS = Neighbours(jnp.asarray(OTHERS), jnp.ones(OTHERS.shape, bool))

detect = jax.jit(crfn_by.detect, static_argnums=2)


def calibrated(params, data, cfg, **given):
    return crfn_by.calibrate(params, crfn_by.judge(params, data, cfg), cfg, **given)


def found_in(params, calibration, data, cfg):
    return detect(calibration, crfn_by.judge(params, data, cfg), cfg)


def alone(score, tested):
    """Scores of one step whose cells weigh the same."""
    return Judged(score, jnp.ones(score.shape), tested)


def scale_at(num_steps):
    """True standard deviation [T, N]: by cell, and up and down with the time of day."""
    return BASE_SCALE * np.exp(0.5 * np.sin(2.0 * np.pi * np.arange(num_steps) / 24.0))[:, None]


def city(seed, num_steps, shared=0.0):
    """Gaussian residuals of known scale; `shared` is the correlation that a common shock of the step gives."""
    own_key, common_key = jax.random.split(jax.random.key(seed))
    own = jax.random.normal(own_key, (num_steps, NODES, DIM))
    common = jax.random.normal(common_key, (num_steps, 1, DIM))
    z = (math.sqrt(1.0 - shared) * own + math.sqrt(shared) * common) * scale_at(num_steps)[..., None]
    angle = 2.0 * jnp.pi * jnp.arange(num_steps) / 24.0
    clock = jnp.stack([jnp.sin(angle), jnp.cos(angle), jnp.zeros(num_steps), jnp.ones(num_steps)], axis=-1)
    # Measurements, not counts: a unit of 0 asks for no jitter.
    return FlowData(z, jnp.ones((num_steps, NODES), bool), jnp.zeros_like(z), clock, NEIGHBOURS)


@pytest.fixture(scope="module")
def fitted():
    """Two seeds fitted to independent cells; tests use the first."""
    params = crfn_by.fit(jax.random.split(jax.random.key(0), 2), city(1, 1200), CFG, TRAINING)
    assert params.score_mean.shape == (2,)
    return jax.tree.map(lambda leaf: leaf[0], params)


@pytest.fixture(scope="module")
def calibration(fitted):
    return calibrated(fitted, city(2, 1500), CFG)


@pytest.fixture(scope="module")
def detect_step(fitted, calibration):
    """One step of a control loop; raises if it is ever traced a second time."""

    @chex.assert_max_traces(n=1)
    def one(step, carried):
        judged, carried = crfn_by.step_judge(fitted.network, step, carried, CFG)
        return crfn_by.detect(calibration, judged, CFG), carried

    return jax.jit(one)


def test_likelihood_beats_the_unconditional_gaussian_and_nears_the_entropy(fitted):
    data = city(3, 1500)
    nll = -float(jax.jit(crfn_by.log_density, static_argnums=2)(fitted, data, CFG).mean())
    entropy = DIM * (np.log(scale_at(1500)).mean() + 0.5 * math.log(2.0 * math.pi * math.e))
    gaussian = 0.5 * DIM * (math.log(2.0 * math.pi * math.e) + math.log(np.square(scale_at(1500)).mean()))
    assert gaussian - entropy > 1.0
    # 5400 training cells for ~2500 weights; the mean of 9000 terms of variance D / 2 = 1 adds 3 / sqrt(9000) = 0.03.
    assert nll == pytest.approx(entropy, abs=0.1)


@pytest.mark.parametrize("level", [0.05, 0.01])
@pytest.mark.parametrize("cfg", [SINGLE, CFG], ids=["single steps", "memory"])
def test_null_p_values_of_held_out_data_keep_their_level(fitted, level, cfg):
    p_value = found_in(fitted, calibrated(fitted, city(2, 1500), cfg), city(4, 1500), cfg).p_value
    # 9000 tested against 9000: three standard errors of a difference of two binomial shares of independent scores. A
    # memory of .3 correlates those of a cell one step apart by less than .3: at most a factor of (1 + .6)^(1/2).
    tolerance = 3.0 * math.sqrt((1.6 if cfg is CFG else 1.0) * 2.0 * level * (1.0 - level) / 9000)
    assert float((p_value <= level).mean()) == pytest.approx(level, abs=tolerance)


@pytest.mark.slow
def test_a_flow_fitted_to_its_own_calibration_scores_makes_null_p_values_too_small():
    small = city(5, 24)
    # The held-out quarter repeats steps that the fit has seen, so nothing stops it from learning them by heart.
    rows = jnp.arange(32) % 24
    repeated = FlowData(*(leaf[rows] for leaf in small[:4]), NEIGHBOURS)
    long = TrainConfig(learning_rate=1e-2, batch=24, epochs=80, patience=80)
    params = crfn_by.fit(jax.random.key(0), repeated, CFG, long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationSizeWarning)
        calibration = calibrated(params, small, CFG)
    p_value = found_in(params, calibration, city(6, 1500), CFG).p_value
    # Valid p-values would stay within 0.05 + 3 sqrt(0.05 * 0.95 (1 / 144 + 1 / 9000)) = 0.105.
    assert float((p_value <= 0.05).mean()) > 0.2


def test_pooled_likelihood_finds_wide_contexts_anomalous_and_the_radius_does_not(fitted, calibration):
    null = city(7, 1500)
    by_nll = found_in(fitted, calibrated(fitted, city(2, 1500), NLL), null, NLL).p_value <= 0.01
    by_radius = found_in(fitted, calibration, null, CFG).p_value <= 0.01
    narrow, wide = (float(by_nll[:, cells].mean()) for cells in (NARROW, WIDE))
    assert wide > 0.02 and narrow < 0.002
    # 3000 cells a group: 3 sqrt(0.01 * 0.99 (1 / 3000 + 1 / 9000)) = 0.006, and as much for the imperfect fit.
    for cells in (NARROW, WIDE):
        assert float(by_radius[:, cells].mean()) == pytest.approx(0.01, abs=0.012)


def with_anomaly(data, sizes=8.0):
    """Every cell's neighbour 4 is pushed by 8 of its own standard deviations at all times."""
    push = sizes * scale_at(data.z.shape[0])[:, 4, None]
    return data._replace(z=data.z.at[:, 4].add(push))


def test_an_anomaly_leaves_the_p_values_of_its_neighbours_alone(fitted, calibration):
    found = found_in(fitted, calibration, with_anomaly(city(8, 1500, shared=0.6)), CFG)
    neighbours = jnp.array([0, 1, 2, 3, 5])
    assert float((found.p_value[:, 4] <= 0.01).mean()) > 0.95
    assert float((found.p_value[:, neighbours] <= 0.01).mean()) <= 0.015


def test_one_extreme_cell_is_rejected_and_a_masked_one_never(detect_step):
    quiet = city(9, 4)._replace(z=jnp.full((4, NODES, DIM), 0.1, jnp.float32))
    extreme = quiet._replace(z=quiet.z.at[3, 1].set(20.0).at[3, 2].set(jnp.inf))
    extreme = extreme._replace(observed=extreme.observed.at[3, 2].set(False))
    found, _ = detect_step(step_at(extreme, 3, CFG.context.lags), jnp.zeros((NODES, DIM)))
    np.testing.assert_array_equal(found.rejected, np.arange(NODES) == 1)
    assert float(found.p_value[2]) == 1.0 and float(found.score[2]) == 0.0
    chex.assert_tree_all_finite(found._replace(rejected=None))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"p_value": "full"}, 1 / 1000),
        ({"p_value": "label_trim"}, 1 / 1000),
        ({"p_value": "paper_trim"}, 1 / 980),  # ceil(0.02 * 999) = 20 largest removed
        ({"p_value": "calibration_conditional"}, 1 - 0.1 ** (1 / 499)),  # b_1 = 1 - failure^(1 / k), k = 499
        ({"procedure": "bh"}, 1 / 1000),
        ({"procedure": "e_bh"}, 1 / 1000),
    ],
)
def test_every_variant_rejects_an_extreme_score_at_its_smallest_p_value(change, expected):
    ranked = jnp.linspace(0.0, 3.0, 999)
    calibration = Calibration(ranked, ranked.mean(), ranked.std(), jnp.asarray(999))
    score = jnp.array([1.0, 40.0, 50.0, jnp.nan])
    tested = jnp.array([True, True, False, False])
    cfg = dataclasses.replace(CFG, **change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InvalidPValueWarning)
        found = detect(calibration, alone(score, tested), cfg)
    np.testing.assert_array_equal(found.rejected, [False, True, False, False])
    np.testing.assert_allclose(found.p_value[1:], [expected, 1.0, 1.0], rtol=1e-4)


def test_the_exponential_tail_goes_below_the_smallest_rank():
    ranked = jnp.linspace(0.0, 3.0, 999)
    calibration = Calibration(ranked, ranked.mean(), ranked.std(), jnp.asarray(999))
    cfg = dataclasses.replace(CFG, p_value="exp_tail")
    found = detect(calibration, alone(jnp.array([40.0, 1.5]), jnp.ones(2, bool)), cfg)
    assert float(found.p_value[0]) < 1e-9 and float(found.p_value[1]) == pytest.approx(0.5, abs=0.01)


def test_steps_one_by_one_equal_the_block_and_are_traced_once(fitted, calibration, detect_step):
    data = with_anomaly(city(10, 1500))
    data = data._replace(observed=data.observed.at[2, 3].set(False))
    block = found_in(fitted, calibration, data, CFG)
    steps, carried = [], jnp.zeros((NODES, DIM))
    for row in range(5):
        found, carried = detect_step(step_at(data, row, CFG.context.lags), carried)
        steps.append(found)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
    chex.assert_trees_all_close(stacked, jax.tree.map(lambda leaf: np.asarray(leaf[:5]), block), rtol=1e-3)
    assert block.rejected[:5, 4].all()


def test_labelled_outliers_leave_the_calibration_and_screened_cells_too(fitted, calibration):
    data = city(2, 1500)
    dirty = data._replace(z=data.z.at[:30, 1].add(20.0))
    labels = jnp.zeros((1500, NODES), bool).at[:30, 1].set(True)
    trimmed = calibrated(fitted, dirty, dataclasses.replace(CFG, p_value="label_trim"), is_outlier=labels)
    screened = calibrated(fitted, dirty, CFG, screen=~labels)
    assert int(trimmed.count) == int(screened.count) == 9000 - 30
    np.testing.assert_allclose(trimmed.scores, screened.scores)
    with pytest.raises(ValueError, match="is_outlier"):
        calibrated(fitted, data, dataclasses.replace(CFG, p_value="label_trim"))


def test_too_few_calibration_scores_warn_with_the_number_needed(fitted):
    # 6 (1 + 1/2 + ... + 1/6) / 0.05 - 1 = 293.
    with pytest.warns(CalibrationSizeWarning, match="at least 293"):
        calibrated(fitted, city(2, 1500), CFG, screen=jnp.arange(1500)[:, None] < 48)  # 288 scores


def nearly_empty_city(num_steps=400):
    """Counts of mean 0.05 in cells whose forecasts say so: one vehicle is three residual units."""
    counts = jax.random.poisson(jax.random.key(15), 0.05, (num_steps, NODES, 1)).astype(jnp.float32)
    data = city(1, num_steps)
    return data._replace(z=3.0 * (counts - 0.05), unit=jnp.full_like(counts, 3.0)), counts


@pytest.mark.slow
def test_one_vehicle_in_an_empty_cell_is_rare_but_no_wonder_when_counts_are_spread_out():
    # P(y >= 1) = 1 - e^-0.05 = 0.049, so a calibrated radius of one vehicle is near the normal law's 1.97. A flow that
    # sees bare whole numbers shrinks onto the zeros, and its radius keeps growing with training.
    data, counts = nearly_empty_city()
    radius = {}
    for jitter in (0.0, 1.0):
        cfg = dataclasses.replace(SINGLE, jitter=jitter)
        params = crfn_by.fit(jax.random.key(0), data, cfg, dataclasses.replace(TRAINING, epochs=15))
        found = jax.jit(crfn_by.scores, static_argnums=2)(params, data, cfg)
        radius[jitter] = float(jnp.median(found[counts[..., 0] == 1.0]))
    assert 1.2 < radius[1.0] < 3.5 and radius[0.0] > 1.5 * radius[1.0]


def test_two_sided_radius_by_hand():
    # Two dimensions: 1 - F = exp(-r^2 / 2). r = 2: -log(2 e^-2) = 1.3069; r^2 = 200: 100 - log 2, where F rounds to 1;
    # r = 0.1: F = 0.0049875, -log(0.009975) = 4.6077; the median r^2 = 2 log 2 scores 0.
    radius = jnp.array([2.0, math.sqrt(200.0), 0.1, math.sqrt(2.0 * math.log(2.0))])
    base = jnp.stack([radius, jnp.zeros(4)], axis=-1)
    expected = [2.0 - math.log(2.0), 100.0 - math.log(2.0), 4.6077, 0.0]
    np.testing.assert_allclose(two_sided_radius(base), expected, atol=1e-3)


def test_a_stuck_sensor_is_found_by_the_two_sided_score_only():
    base = jax.random.normal(jax.random.key(13), (3000, DIM))
    new = jax.random.normal(jax.random.key(14), (NODES, DIM)).at[0].set(1e-3)
    one_sided = lambda base: jnp.linalg.norm(base, axis=-1)  # noqa: E731
    for score, found in ((one_sided, False), (jax.jit(two_sided_radius), True)):
        values = score(jnp.concatenate([base, new]))
        calibration = Calibration(jnp.sort(values[:3000]), jnp.zeros(()), jnp.ones(()), jnp.asarray(3000))
        rejected = detect(calibration, alone(values[3000:], jnp.ones(NODES, bool)), CFG).rejected
        assert bool(rejected[0]) == found


@pytest.mark.parametrize(
    "change",
    [{"two_sided": True, "score": "nll"}, {"two_sided": True}, {"level": 0.0}, {"held_out": 1.0}, {"shrink": 1.5}],
)
def test_meaningless_settings_are_refused(change):
    with pytest.raises(ValueError):
        FlowConfig(**change)


def test_data_without_a_held_out_part_are_refused():
    data = city(1, 8)
    with pytest.raises(ValueError, match="early stopping"):
        crfn_by.fit(jax.random.key(0), data._replace(observed=data.observed.at[6:].set(False)), CFG, TRAINING)
