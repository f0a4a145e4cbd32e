"""The reaction treats phases and intersections alike, and a trial over the same hours decides how it begins."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl import lycon_wrl_plus as lycon
from stream_jax.rl import policy, reaction, trial
from stream_jax.rl.agent import TrialConfig, blank_state
from stream_jax.rl.safety import SafetyConfig
from stream_jax.task import Limits
from tests.rl import toy_road
from tests.rl.toy_road import ADJACENCY
from tests.rl.toy_settings import CFG

KEY = jax.random.key(3)
TRIAL = TrialConfig(hours=3)
UNFILTERED = dataclasses.replace(CFG, safety=SafetyConfig(mode="none"), trial=TRIAL)
GAIN = dict(zip(trial.NAMES, range(reaction.GAINS), strict=True))


def start():
    return lycon.start(KEY, ADJACENCY, UNFILTERED).agent


def crowded_state(key):
    state = blank_state(4, CFG)
    return state._replace(local=jax.random.uniform(key, state.local.shape, maxval=2.0))


def driven_by(agent, count=1, seed=5):
    return toy_road.collect(lycon.policy_step(KEY, agent, ADJACENCY, UNFILTERED, explore=False), count, seed)


def tried(agent):
    return driven_by(agent, TRIAL.hours, TRIAL.first_seed)


def with_minutes_lost(episode, count):
    lost = np.asarray(episode.x).copy()
    lost[1 : 1 + count, :, :8] = 100.0
    return episode._replace(x=lost)


def test_terms_by_hand():
    queues = jnp.array([0.0, 0.3, 0.1, 0.0, 0.0, 1.2, 0.0, 0.0])  # in 10 vehicles: mean .2
    state = blank_state(4, CFG)
    state = state._replace(
        local=state.local.at[0].set(jnp.append(queues, jnp.array([0.9, 0.0]))), mean=state.mean.at[0, -1].set(1.5)
    )
    found = reaction.terms(state)[0]
    names = trial.NAMES
    assert found.shape == (9, len(names))
    busy = dict(zip(names, np.asarray(found[5]), strict=True))
    assert busy["green_through"] == 1.0 and busy["green_left"] == 0.0
    np.testing.assert_allclose(busy["green_longer"], 2.0)  # 1.0 / 0.3, cut at 2
    np.testing.assert_allclose(busy["green_longer_crowded"], 2.0, rtol=1e-6)  # 2 times 1: 12 vehicles
    np.testing.assert_allclose([busy["green_waited"], busy["green_busy"]], [2.0 / 3.0, 0.0], rtol=1e-5)  # .9 in .7 .. 1
    np.testing.assert_allclose(found[2, GAIN["green_shorter"]], 1.0 / 3.0, rtol=1e-5)  # 0.1 / 0.3
    guard = dict(zip(names, np.asarray(found[8]), strict=True))
    np.testing.assert_allclose(
        [guard[f"guard_{name}"] for name in reaction.GUARD_TERMS], [1.0, 1.0, 2.0 / 3.0, 0.5, 0.0, 0.0], rtol=1e-5
    )
    assert not found[:8, len(reaction.GREEN_TERMS) :].any() and not found[8, : len(reaction.GREEN_TERMS)].any()


def test_a_full_network_is_busy_at_every_intersection_and_phase():
    state = blank_state(4, CFG)
    queues = state.local.at[:3, :8].set(1.0 / 6.0)  # 13.3 vehicles at 3 of 4: 10 on average, 1 unit
    found = reaction.terms(state._replace(local=queues))
    np.testing.assert_allclose(found[:, :8, GAIN["green_busy"]], np.full((4, 8), 0.8), rtol=1e-5)  # 1 in .6 .. 1.1


def test_intersections_in_another_order_get_the_same_reactions():
    state, order = crowded_state(KEY), jnp.array([2, 0, 3, 1])
    shuffled = jax.tree.map(lambda leaf: leaf[order] if leaf.shape[:1] == (4,) else leaf, state)
    np.testing.assert_array_equal(reaction.terms(shuffled), reaction.terms(state)[order])


def test_gains_move_the_action_and_without_them_it_is_the_default_plan():
    agent, state = start(), crowded_state(KEY)
    np.testing.assert_array_equal(policy.mean_action(agent.policy, state, ADJACENCY, CFG.policy), np.zeros((4, 9)))
    gains = jnp.zeros(reaction.GAINS).at[GAIN["green_longer"]].set(0.5)
    moved = policy.mean_action(trial.with_gains(agent, gains).policy, state, ADJACENCY, CFG.policy)
    np.testing.assert_allclose(moved, np.tanh(reaction.terms(state) @ gains), atol=1e-6)


def test_the_first_broken_minute_costs_most_and_what_happens_in_it_nothing():
    road = driven_by(start())[0]
    calm = road._replace(x=0.1 * np.asarray(road.x))
    lost = trial.scores([with_minutes_lost(calm, count) for count in (0, 1, 2, 8)], UNFILTERED)
    steps = -np.diff(lost) / [1, 1, 6]  # per minute
    assert steps[0] > steps[1] > steps[2] > 0
    worse = with_minutes_lost(calm, 8)
    worse.x[1:9] *= 2.0
    np.testing.assert_array_equal(trial.scores([worse], UNFILTERED), lost[3:])


def test_hours_are_judged_by_the_goal_and_not_by_the_tighter_limits_of_learning():
    road = driven_by(start())
    tight = dataclasses.replace(UNFILTERED, limits=Limits(queue=1e-3), judged_by=UNFILTERED.limits)
    np.testing.assert_array_equal(trial.scores(road, tight), trial.scores(road, UNFILTERED))
    assert trial.scores(road, dataclasses.replace(tight, judged_by=None)) < trial.scores(road, UNFILTERED)


@pytest.mark.slow
def test_following_queues_is_kept_on_the_toy_road_and_better_on_roads_that_it_was_not_tried_on():
    agent, rows = trial.choose(start(), tried, UNFILTERED, lambda _, get: get())
    assert [row["kind"] for row in rows] == ["trial"] and rows[0]["is_kept"] and rows[0]["gain"] > 0
    np.testing.assert_array_equal(trial.gains_of(agent), trial.following_gains())
    better, usual = (trial.scores(driven_by(one, 16, 77), UNFILTERED) for one in (agent, start()))
    assert (better > usual).all()  # two busy phases want more than the default plan gives, see toy_road


@pytest.mark.parametrize(
    "gains, is_kept",
    [
        ([1.0, 2.0, 3.0], True),
        ([-1.0, 1.0, -0.5], True),  # mean -.17, standard error .60: nothing that two standard errors could tell
        ([-1.0, -1.1, -0.9], False),  # mean -1, standard error .06
        ([-1.5, -0.5, -2.2], False),  # mean -1.4, standard error .49
        ([-2.0, 0.1, -1.2], True),  # mean -1.03, standard error .61
        ([0.0, 0.0, 0.0], True),
    ],
)
def test_the_plan_is_kept_unless_the_default_plan_is_better_by_two_standard_errors(gains, is_kept):
    def kept(plan, _):
        return {"default": np.array([0.3, -1.0, 0.5]), "following": np.array([0.3, -1.0, 0.5]) + gains}[plan]

    agent, rows = trial.choose(start(), None, UNFILTERED, kept)
    assert bool(np.asarray(trial.gains_of(agent)).any()) == rows[0]["is_kept"] == is_kept
    np.testing.assert_allclose(rows[0]["gain"], np.mean(gains), atol=1e-12)
    np.testing.assert_allclose(rows[0]["standard_error"], np.std(gains, ddof=1) / np.sqrt(3), atol=1e-12)


@pytest.mark.slow
def test_both_plans_meet_the_same_hours_and_kept_scores_are_not_driven_again(tmp_path):
    calls = []
    cfg = dataclasses.replace(CFG, trial=TRIAL, iterations=1, validate_every=0, episodes=4)

    def collect(step, count, first):
        calls.append((count, first))
        return toy_road.collect(step, count, first)

    first = lycon.fit(KEY, toy_road.collect, ADJACENCY, cfg, tmp_path / "one", False, collect, None, tmp_path / "trial")
    assert calls == [(TRIAL.hours, TRIAL.first_seed)] * 2
    assert sum(count for count, _ in calls) == trial.episodes(cfg)
    calls.clear()
    again = lycon.fit(KEY, toy_road.collect, ADJACENCY, cfg, tmp_path / "two", False, collect, None, tmp_path / "trial")
    assert calls == []
    chex.assert_trees_all_equal(again.agent, first.agent)


def test_agents_that_begin_alike_share_and_others_do_not():
    def changed(settings, **parts):
        return settings(dataclasses.replace(UNFILTERED, **parts))

    paid_for_l = dataclasses.replace(CFG.reward, soft_lyapunov=1.0, anomaly=0.0)  # neither moves a score
    blind = dataclasses.replace(CFG.state, use_uncertainty=False)
    for settings in (trial.settings, trial.first_settings):
        assert changed(settings, safety=SafetyConfig(mode="hard"), reward=paid_for_l, iterations=9) == changed(settings)
        assert changed(settings, reward=dataclasses.replace(CFG.reward, queue=9.0)) != changed(settings)
        assert changed(settings, judged_by=Limits(queue=1.0)) != changed(settings)
    assert changed(trial.settings, state=blind) == changed(trial.settings)
    assert changed(trial.first_settings, state=blind) != changed(trial.first_settings)
    sure = dataclasses.replace(TRIAL, doubt=0.0)  # another choice from the same scores
    assert changed(trial.settings, trial=sure) == changed(trial.settings)
    assert changed(trial.first_settings, trial=sure) != changed(trial.first_settings)


def counted(calls):
    def collect(step, count, first):
        calls.append(first)
        return toy_road.collect(step, count, first)

    return collect


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["soft", "none"])
def test_what_another_agent_drove_before_its_first_iteration_is_not_driven_again(tmp_path, mode):
    calls = []
    one = dataclasses.replace(CFG, trial=TRIAL, iterations=1, validate_every=1, episodes=4, validation_episodes=2)
    other = dataclasses.replace(one, safety=dataclasses.replace(CFG.safety, mode=mode))
    shared = {"first_dir": tmp_path / "first", "trial_dir": tmp_path / "trial"}
    lycon.fit(KEY, counted(calls), ADJACENCY, one, tmp_path / "one", **shared)
    calls.clear()
    found = lycon.fit(KEY, counted(calls), ADJACENCY, other, tmp_path / "other", **shared)
    assert calls == [other.validation_seed] * 2  # what it began with and what it learned, with its own filter
    alone = lycon.fit(KEY, toy_road.collect, ADJACENCY, other, tmp_path / "alone")
    chex.assert_trees_all_equal(found.agent, alone.agent)
    assert [row.get("safe") for row in found.rows] == [row.get("safe") for row in alone.rows]


@pytest.mark.slow
def test_a_trial_is_shared_by_agents_that_see_the_city_differently(tmp_path):
    calls = []
    one = dataclasses.replace(CFG, trial=TRIAL, iterations=1, validate_every=0, episodes=4)
    blind = dataclasses.replace(one, state=dataclasses.replace(CFG.state, use_uncertainty=False))
    lycon.fit(KEY, counted(calls), ADJACENCY, one, tmp_path / "one", trial_dir=tmp_path / "trial")
    calls.clear()
    shared = lycon.fit(KEY, counted(calls), ADJACENCY, blind, tmp_path / "blind", trial_dir=tmp_path / "trial")
    assert calls == [blind.first_seed]  # its own first episodes, and no trial
    alone = lycon.fit(KEY, toy_road.collect, ADJACENCY, blind, tmp_path / "alone")
    chex.assert_trees_all_equal(shared.agent, alone.agent)


@pytest.mark.slow
def test_plans_are_tried_in_hours_of_their_own_and_the_beginning_is_validated_with_the_first_filter():
    tried, usual = [], []
    cfg = dataclasses.replace(CFG, trial=TRIAL, iterations=1, validate_every=1, episodes=4, validation_episodes=2)
    found = lycon.fit(KEY, counted(usual), ADJACENCY, cfg, trial_collect=counted(tried))
    assert usual == [cfg.first_seed, cfg.validation_seed, cfg.validation_seed] and tried == [TRIAL.first_seed] * 2
    assert [row["kind"] for row in found.rows] == ["trial", "train", "validation", "validation"]
    begun, learned = found.rows[2:]
    assert [begun["iteration"], learned["iteration"]] == [0, 1] and "margin" in begun
    best = max((begun, learned), key=lambda row: (-row["violating"], row["reward"]))
    is_begun = np.array_equal(trial.gains_of(found.agent), trial.following_gains())
    assert is_begun == (best is begun)  # learning moves the gains


def test_settings_that_cannot_be_tried_with_are_refused():
    for wrong in ({"hours": 1}, {"hours": -2}, {"hours": 4, "doubt": -1.0}):
        with pytest.raises(ValueError, match="two hours or more"):
            TrialConfig(**wrong)
