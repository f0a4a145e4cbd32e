"""Evidence of earlier steps and neighbours adds up as stated, finds what lasts and spreads, and keeps its level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.fdr import by_reject, step_up
from stream_jax.conformal.p_values import conformal_p_values
from stream_jax.flows import evidence
from stream_jax.flows.context import Neighbours
from stream_jax.flows.evidence import ALONE, EvidenceConfig

CFG = EvidenceConfig()
CELLS, LEVEL = 100, 0.05


def ring(cells):
    """Each cell hears the two on either side."""
    index = (np.arange(cells)[:, None] + np.array([-2, -1, 1, 2])) % cells
    return Neighbours(jnp.asarray(index, jnp.int32), jnp.ones(index.shape, bool))


@pytest.mark.parametrize(
    ("base", "carried", "score"),
    [
        ([2.0], [1.0], 3.0),  # goes on
        ([2.0], [5.0], 4.0),  # never more than doubled
        ([2.0], [-1.0], 1.0),  # a swing to the other side
        ([-2.0], [3.0], 2e-5),  # 0 but for a trace: it was tested
        ([3.0, 4.0], [1.0, 0.0], 5.6),  # 5 + (1, 0) . (3, 4) / 5
        ([0.0], [2.0], 0.0),
    ],
)
def test_a_lasting_radius_by_hand(base, carried, score):
    found = float(evidence.lasting_radius(jnp.array(base), jnp.array(carried)))
    assert found == pytest.approx(score, rel=1e-5, abs=1e-6) and (found > 0.0) == any(base)


def test_what_is_carried_fades_geometrically_and_is_limited():
    carried = jnp.zeros((1, 1))
    for value in (1.0, 40.0, 0.0):
        now = evidence.shown(jnp.array([[value]]), jnp.array([True]), CFG)
        carried = evidence.carry(carried, now, CFG)
    np.testing.assert_allclose(carried, [[0.3**3 + 6.0 * 0.3**2]], rtol=1e-5)
    assert float(evidence.shown(jnp.array([[4.0]]), jnp.array([False]), CFG)[0, 0]) == 0.0
    assert float(evidence.shown(jnp.array([[jnp.nan]]), jnp.array([True]), CFG)[0, 0]) == 0.0  # it would stay for good


def test_weights_by_hand():
    now = jnp.array([[0.0], [2.0], [9.0], [1.0]])
    observed = jnp.array([True, True, False, True])
    index = jnp.array([[1, 2], [0, 3], [0, 1], [3, 3]], jnp.int32)
    mask = jnp.array([[True, True], [True, True], [True, True], [False, False]])
    found = evidence.weights(now, observed, jnp.array([[0.0], [0.0], [0.0], [-0.7]]), Neighbours(index, mask), CFG)
    # Cell 0 hears cell 1 alone: exp(2 (2 - .5)); cells 1 and 2 hear means of 1/2 and 1; cell 3 has its own past only.
    np.testing.assert_allclose(found, np.exp([3.0, 0.0, 1.0, 0.4]), rtol=1e-5)
    far = evidence.weights(now, observed, jnp.full((4, 1), 9.0), Neighbours(index, mask), CFG)
    np.testing.assert_allclose(far, 30.0)


def test_a_weight_does_not_look_at_the_cell_that_it_weighs():
    now = jax.random.normal(jax.random.key(0), (8, 1))
    of = lambda now: evidence.weights(now, jnp.ones(8, bool), jnp.zeros((8, 1)), ring(8), CFG)  # noqa: E731
    slope = jax.jacfwd(of)(now)[..., 0]  # [N, N]
    np.testing.assert_array_equal(np.diag(slope), 0.0)
    assert float(jnp.abs(slope).max()) > 0.0


def recording(rng, steps):
    """Normal numbers, and events of three standard deviations over four steps and three neighbouring cells."""
    base, anomalous = rng.normal(size=(steps, CELLS)), np.zeros((steps, CELLS), bool)
    for start in range(4, steps - 8, 8):
        for cell in rng.choice(CELLS, 3, replace=False):
            place = np.ix_(np.arange(start, start + 4), np.arange(cell - 1, cell + 2) % CELLS)
            anomalous[place] = True
    return np.where(anomalous, base + 3.0, base).astype(np.float32), anomalous


def judged(base, cfg):
    """Scores and weights of a recording, [T, N] each."""
    seen = jnp.ones(CELLS, bool)

    def step(carried, row):
        now = evidence.shown(row[:, None], seen, cfg)
        weight = evidence.weights(now, seen, carried, ring(CELLS), cfg)
        return evidence.carry(carried, now, cfg), (evidence.lasting_radius(row[:, None], carried), weight)

    return jax.lax.scan(step, jnp.zeros((CELLS, 1)), jnp.asarray(base))[1]


def test_evidence_finds_more_of_what_lasts_and_spreads_and_keeps_the_level_where_it_ends():
    rng = np.random.default_rng(1)
    normal = rng.normal(size=(400, CELLS)).astype(np.float32)
    base, anomalous = recording(rng, 1200)
    found, rate, error = {}, {}, {}
    for name, cfg in (("alone", ALONE), ("evidence", CFG)):
        calibration, _ = jax.jit(judged, static_argnums=1)(normal, cfg)
        score, weight = jax.jit(judged, static_argnums=1)(base, cfg)
        p = conformal_p_values(calibration.reshape(-1), score)
        decide = jax.jit(jax.vmap(lambda p, w: step_up(p, LEVEL, weights=w).rejected))
        rejected = np.asarray(decide(p, weight))
        proportion = (rejected & ~anomalous).sum(1) / np.maximum(rejected.sum(1), 1)
        found[name], rate[name] = rejected[anomalous].mean(), proportion.mean()
        error[name] = proportion.reshape(-1, 8).mean(1).std() / np.sqrt(150)  # an event and its aftermath are 8 steps
        if name == "alone":
            plain = jax.jit(jax.vmap(lambda p: by_reject(p, LEVEL)))(p)
            np.testing.assert_array_equal(rejected, plain)
            np.testing.assert_allclose(score, np.abs(base), rtol=1e-6)
    assert found["evidence"] > 2.0 * found["alone"] > 0.0
    for name in found:
        assert rate[name] <= LEVEL + 3.0 * error[name]


def small_over_level(base, level, weigh=evidence.weights):
    """P(p <= w level) / level of the cells of a recording without anomalies, p by their rank in another."""
    normal = np.random.default_rng(8).normal(size=base.shape).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "weights", weigh)
        score, weight = judged(base, CFG)
    p = conformal_p_values(judged(normal, CFG)[0].reshape(-1), score)
    return float((p <= level * weight / weight.mean(1, keepdims=True)).mean() / level)


def test_weights_leave_small_p_values_of_independent_cells_about_as_rare_as_they_are():
    base = np.random.default_rng(7).normal(size=(3000, CELLS)).astype(np.float32)

    def tempted(now, observed, carried, neighbours, cfg):  # looks at the cell that it weighs
        return jnp.minimum(jnp.exp(2.0 * jnp.abs(now[:, 0])), 30.0)

    # 300 of 300,000 at 1e-3, against a calibration as large: a standard error of .08. The past is in score and weight,
    # which makes small ones a little more frequent (1.12 in a larger simulation).
    assert small_over_level(base, 1e-3) < 1.12 + 3 * 0.08
    assert small_over_level(base, 1e-3, tempted) > 3.0


def test_shocks_that_neighbours_share_cost_weighted_by_its_slack_and_weighted_bh_its_level():
    # All normal, blocks of five neighbours with correlation .6: the FDR is the chance of any rejection.
    rng = np.random.default_rng(9)
    shared, own = rng.normal(size=(3000, CELLS // 5)), rng.normal(size=(3000, CELLS))
    base = (np.sqrt(0.6) * np.repeat(shared, 5, axis=1) + np.sqrt(0.4) * own).astype(np.float32)
    calibration, _ = judged(base[:1000], CFG)
    score, weight = judged(base[1000:], CFG)
    p = conformal_p_values(calibration.reshape(-1), score)
    rate = {}
    for procedure in ("by", "bh"):
        decide = jax.vmap(lambda p, w, procedure=procedure: step_up(p, LEVEL, procedure=procedure, weights=w).rejected)
        rate[procedure] = float(decide(p, weight).any(1).mean())
        rate[f"plain {procedure}"] = float(decide(p, jnp.ones_like(weight)).any(1).mean())
    # Three standard errors of a share of 2000 steps at 5 % are .015.
    assert rate["plain by"] < 0.02 and rate["plain bh"] < LEVEL + 0.015
    assert rate["by"] < 0.06 + 0.015 and rate["bh"] > 2 * LEVEL


@pytest.mark.parametrize("wrong", [{"memory": 1.0}, {"largest": 0.5}, {"rate": -1.0}, {"limit": 0.0}])
def test_meaningless_settings_are_refused(wrong):
    with pytest.raises(ValueError):
        EvidenceConfig(**wrong)
