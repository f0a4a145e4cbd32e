"""What is reported about a controller follows from its episodes by hand, and margins come from whole blocks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.rl import agent as agents
from stream_jax.rl import certificate, lyapunov, replay, safety, verification
from stream_jax.task import Limits, violation
from tests.rl.test_replay import episode as noise
from tests.rl.toy_road import ADJACENCY, HORIZON, INTERSECTIONS
from tests.rl.toy_settings import CFG

AGENT = agents.init(jax.random.key(0), ADJACENCY, CFG)._replace(margin=jnp.array(0.2))


def episodes(count):
    """Positive random roads of the toy's size, 12 steps each; nothing but their shapes matters."""
    draw = np.random.default_rng(0)
    some = lambda *shape: draw.random(shape).astype(np.float32)  # noqa: E731
    one = noise(0)
    view = one.view._replace(
        mean=some(count, 13, INTERSECTIONS, HORIZON),
        sigma=some(count, 13, INTERSECTIONS, HORIZON),
        p_value=some(count, 13, INTERSECTIONS),
        anomalous=np.zeros((count, 13, INTERSECTIONS), np.float32),
    )
    certificates = jax.tree.map(lambda leaf: np.zeros((count, 12), leaf.dtype), one.certificate)
    plan = np.zeros((count, 13, INTERSECTIONS, 9), np.float32)
    return one._replace(
        x=2.0 * some(count, 13, INTERSECTIONS, 10) * np.array([1.0] * 9 + [0.4], np.float32),
        view=view,
        clock=np.zeros((count, 13, 5), np.float32),
        plan=plan,
        proposed=plan[:, 1:],
        log_prob=plan[:, 1:, :, 0],
        certificate=certificates,
        traffic=np.zeros((count, 12), np.float32),
    )


EPISODES = episodes(6)
TERMS = verification._drift_terms(AGENT, EPISODES, ADJACENCY, cfg=CFG)


def test_drift_terms_follow_the_road_and_the_bound_holds_on_any_log():
    np.testing.assert_allclose(TERMS.value[:, 1:], TERMS.value_next[:, :-1], rtol=1e-5)  # one contiguous path
    x = EPISODES.x[2, 5]
    np.testing.assert_allclose(TERMS.value[2, 5], lyapunov.value(AGENT.lyapunov, x, CFG.lyapunov), rtol=1e-5)
    np.testing.assert_allclose(TERMS.violation[2, 5], violation(x, CFG.limits), rtol=1e-5)
    row = verification.verify(AGENT, EPISODES, ADJACENCY, CFG)
    assert row["identity_holds"] and row["violation"] <= row["bound"]
    shuffled = EPISODES._replace(x=EPISODES.x[:, ::-1])
    assert verification.verify(AGENT, shuffled, ADJACENCY, CFG)["identity_holds"]  # algebra: any path will do
    within = TERMS.value_next - TERMS.value_mean <= 0.2
    np.testing.assert_allclose(row["margin_coverage"], within.mean(), rtol=1e-6)


def test_a_margin_counts_blocks_of_steps_and_is_infinite_when_they_are_too_few():
    work = jax.jit(verification.margin, static_argnames="cfg")
    found = work(jax.random.key(1), AGENT, EPISODES, ADJACENCY, cfg=CFG)
    # Blocks of 2 in 6 episodes of 12 steps: 36 maxima, of which the ceil(37 * .9) = 34th is the margin.
    residuals = np.asarray(TERMS.value_next - TERMS.value_mean)
    maxima = np.sort(residuals.reshape(6, 6, 2).max(-1).ravel())
    np.testing.assert_allclose(found, maxima[33], rtol=1e-4)
    coarse = dataclasses.replace(CFG, margin_block=12)  # six blocks cannot promise 90 %
    assert np.isinf(work(jax.random.key(1), AGENT, EPISODES, ADJACENCY, cfg=coarse))
    mean = dataclasses.replace(CFG, margin="mean")
    expected = certificate.mean_margin(jax.random.key(1), jnp.asarray(residuals.ravel()), CFG.margin_block)
    np.testing.assert_allclose(work(jax.random.key(1), AGENT, EPISODES, ADJACENCY, cfg=mean), expected, rtol=1e-4)


def test_performance_counts_safe_episodes_and_violating_steps():
    x = np.zeros_like(EPISODES.x[:2])
    x[0, 3, 2, 8] = 1.5  # 180 s at one intersection in one step of the first episode: cost .5 of C2
    x[:, 0, :, 8] = 9.0  # the moment before the first step is not the controller's doing
    two = jax.tree.map(lambda leaf: leaf[:2], EPISODES)._replace(x=x)
    measured = verification.performance(two, CFG)
    assert float(measured.safe) == 0.5 and float(measured.violating) == 0.5
    np.testing.assert_allclose(measured.cost, [0.0, 0.5 / 24, 0.0], rtol=1e-5)
    # Reward 1 everywhere but for .5 * 1.5 at one of 96 intersections and steps.
    np.testing.assert_allclose(measured.reward, 1.0 - 0.75 / 96, rtol=1e-5)
    assert verification.summary(measured, CFG.limits)["cost_wait"] == float(measured.cost[1])


def test_the_filter_intervened_where_another_action_was_executed_whatever_it_found_feasible():
    plan = np.zeros_like(EPISODES.plan)
    plan[0, 4, 1, 2] = 0.3  # one entry of one of 6 * 12 actions
    flagged = EPISODES.certificate._replace(source=np.full((6, 12), safety.LEAST_EXCESS))
    measured = verification.performance(EPISODES._replace(plan=plan, certificate=flagged), CFG)
    np.testing.assert_allclose(measured.intervened, 1 / 72, rtol=1e-6)


def test_controllers_are_judged_by_the_goal_and_charged_by_the_limits_of_learning():
    x = np.zeros_like(EPISODES.x[:1])
    x[0, 3, 2, 8] = 110.0 / 120.0  # s of waiting, in 120 s
    one = jax.tree.map(lambda leaf: leaf[:1], EPISODES)._replace(x=x)
    measured = verification.performance(
        one, dataclasses.replace(CFG, limits=Limits(wait=100.0), judged_by=Limits(wait=120.0))
    )
    assert float(measured.safe) == 1.0 and float(measured.violating) == 0.0
    np.testing.assert_allclose(measured.cost, [0.0, 0.1 / 12, 0.0], rtol=1e-5)  # 110 / 100 - 1 in one of 12 steps
    strict = verification.performance(one, dataclasses.replace(CFG, limits=Limits(wait=100.0)))
    assert float(strict.safe) == 0.0 and float(strict.violating) == 1.0


def test_rows_on_disk_are_what_was_measured(tmp_path):
    replay.write(tmp_path, 0, EPISODES)
    again = verification.summary(verification.performance(replay.read(tmp_path, 0), CFG), CFG.limits)
    assert again == verification.summary(verification.performance(EPISODES, CFG), CFG.limits)
