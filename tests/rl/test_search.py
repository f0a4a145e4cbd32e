"""The reaction treats phases and intersections alike, and paired drives find its gains on the toy road."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl import lycon_wrl_plus as lycon
from stream_jax.rl import policy, reaction, search
from stream_jax.rl.agent import SearchConfig, blank_state
from stream_jax.rl.agent_store import AgentStore
from stream_jax.rl.safety import SafetyConfig
from tests.rl import toy_road
from tests.rl.toy_road import ADJACENCY
from tests.rl.toy_settings import CFG

KEY = jax.random.key(3)
SEARCH = SearchConfig(generations=6, pairs=6, spread=0.3)
UNFILTERED = dataclasses.replace(CFG, safety=SafetyConfig(mode="none"), search=SEARCH)
GAIN = dict(zip(search.NAMES, range(reaction.GAINS), strict=True))


def start():
    return lycon.start(KEY, ADJACENCY, UNFILTERED).agent


def crowded_state(key):
    state = blank_state(4, CFG)
    return state._replace(local=jax.random.uniform(key, state.local.shape, maxval=2.0))


def test_terms_by_hand():
    queues = jnp.array([0.0, 0.3, 0.1, 0.0, 0.0, 1.2, 0.0, 0.0])  # in 10 vehicles: mean .2
    state = blank_state(4, CFG)
    state = state._replace(
        local=state.local.at[0].set(jnp.append(queues, jnp.array([0.9, 0.0]))), mean=state.mean.at[0, -1].set(1.5)
    )
    found = reaction.terms(state)[0]
    names = search.NAMES
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
    moved = policy.mean_action(search.with_gains(agent, gains).policy, state, ADJACENCY, CFG.policy)
    np.testing.assert_allclose(moved, np.tanh(reaction.terms(state) @ gains), atol=1e-6)


def test_changes_have_unit_variance_and_the_share_in_common_that_is_asked_for():
    draws = search.changes(KEY, 40, dataclasses.replace(SEARCH, pairs=4000, common=0.3))
    pairs = jnp.stack([draws[:, 0].ravel(), draws[:, 1].ravel()])  # 48 000 draws at two intersections
    # Four standard errors of a variance and of a covariance of normals: 4 sqrt(2 / n), 4 sqrt((1 + r^2) / n).
    np.testing.assert_allclose(jnp.cov(pairs), [[1.0, 0.3], [0.3, 1.0]], atol=0.026)


def test_a_step_goes_up_a_slope_and_one_gridlock_does_not_turn_it():
    slope = jnp.arange(1.0, len(search.NAMES) + 1.0)
    draws = jax.random.normal(KEY, (16, 4, len(search.NAMES)))
    honest = search.ascent(2.0 * draws @ slope, draws, 0.3)
    # E[vote times draw] is along the slope; 64 differences in 14 dimensions leave an angle, not a right one.
    assert float(honest @ slope) > 0.8 * float(jnp.linalg.norm(honest) * jnp.linalg.norm(slope))
    tipped = search.ascent((2.0 * draws @ slope).at[0, 0].set(-1e6), draws, 0.3)
    assert float(tipped @ slope) > 0.75 * float(jnp.linalg.norm(tipped) * jnp.linalg.norm(slope))


def test_an_hour_that_no_plan_changes_has_little_to_say():
    draws = jax.random.normal(KEY, (5, 4, len(search.NAMES)))
    decided = jnp.ones((5, 4)).at[0].set(0.0)
    silent, whisper = (search.ascent(decided.at[0].set(size), draws, 0.3) for size in (0.0, 1e-3))
    loud = search.ascent(decided.at[0].set(1.0), draws, 0.3)
    # A thousandth of the others' differences is a thousandth of their vote, not a whole one.
    assert float(jnp.linalg.norm(whisper - silent)) < 0.01 * float(jnp.linalg.norm(loud - silent))


def test_beyond_a_limit_nothing_else_counts():
    road = toy_road.collect(lycon.policy_step(KEY, start(), ADJACENCY, UNFILTERED, explore=False), 1, 5)[0]
    lost = road._replace(x=np.asarray(road.x).copy())
    lost.x[:, :, :8] = 100.0
    worse = lost._replace(x=2.0 * lost.x)
    first, second = (search.scores([one], ADJACENCY, UNFILTERED) for one in (lost, worse))
    np.testing.assert_array_equal(first, second)
    assert first.max() < search.scores([road], ADJACENCY, UNFILTERED).min()


def test_the_search_finds_green_for_queues_on_the_toy_road():
    agent, rows = search.find_gains(KEY, start(), toy_road.collect, ADJACENCY, UNFILTERED, lambda _, get: get())
    assert [row["iteration"] for row in rows] == list(range(SEARCH.generations))

    def driven(one):
        step = lycon.policy_step(KEY, one, ADJACENCY, UNFILTERED, explore=False)
        return search.scores(toy_road.collect(step, 16, 77), ADJACENCY, UNFILTERED)

    assert (driven(agent) > driven(start())).all()  # same 16 roads, none of them searched on
    assert rows[-1]["green_longer"] > 0  # the two busy phases of toy_road want more than the default plan gives


def test_kept_scores_are_not_driven_again_and_give_the_same_gains(tmp_path):
    calls = []

    def collect(*args):
        calls.append(args[1:])
        return toy_road.collect(*args)

    store = AgentStore(tmp_path, "mine")
    first, _ = search.find_gains(KEY, start(), collect, ADJACENCY, UNFILTERED, store.scores)
    assert len(calls) == 2 * SEARCH.generations and calls[0] == calls[1]  # both signs meet the same episodes
    calls.clear()
    again, _ = search.find_gains(KEY, start(), collect, ADJACENCY, UNFILTERED, store.scores)
    store.close()
    assert calls == []
    chex.assert_trees_all_equal(again, first)


def test_agents_that_search_alike_share_scores_and_others_do_not():
    def changed(**parts):
        return search.settings(dataclasses.replace(UNFILTERED, **parts))

    hard = dataclasses.replace(CFG.reward, soft_lyapunov=1.0, anomaly=0.0)  # neither moves a score
    assert changed(safety=SafetyConfig(mode="hard"), reward=hard, iterations=9) == changed()
    assert changed(state=dataclasses.replace(CFG.state, use_uncertainty=False)) != changed()
    assert changed(reward=dataclasses.replace(CFG.reward, queue=9.0)) != changed()


@pytest.mark.parametrize("mode", ["soft", "none"])
def test_what_another_agent_drove_before_its_first_iteration_is_not_driven_again(tmp_path, mode):
    calls = []

    def collect(step, count, first):
        calls.append(first)
        return toy_road.collect(step, count, first)

    one = dataclasses.replace(CFG, search=SEARCH, iterations=1, validate_every=1, episodes=4, validation_episodes=2)
    other = dataclasses.replace(one, safety=dataclasses.replace(CFG.safety, mode=mode))
    assert search.settings(one) == search.settings(other)
    lycon.fit(KEY, collect, ADJACENCY, one, tmp_path / "one", search_dir=tmp_path / "search")
    calls.clear()
    shared = lycon.fit(KEY, collect, ADJACENCY, other, tmp_path / "other", search_dir=tmp_path / "search")
    assert calls == [other.validation_seed]  # after the iteration, with its filter
    alone = lycon.fit(KEY, toy_road.collect, ADJACENCY, other, tmp_path / "alone")
    chex.assert_trees_all_equal(shared.agent, alone.agent)
    assert [row.get("safe") for row in shared.rows] == [row.get("safe") for row in alone.rows]


def test_each_intersection_of_each_episode_is_driven_by_its_own_change():
    offsets = jnp.zeros((2, 4, reaction.GAINS)).at[1, 2, GAIN["guard_always"]].set(0.4)
    step = search._varied(start(), offsets, 50, ADJACENCY, UNFILTERED)
    plain, changed = toy_road.collect(step, 2, 50)
    assert np.abs(plain.proposed).max() == 0.0
    expected = np.where(np.arange(4) == 2, np.tanh(0.4), 0.0)
    np.testing.assert_allclose(
        changed.proposed[..., 8], np.broadcast_to(expected, changed.proposed.shape[:2]), rtol=1e-6
    )


def test_a_place_is_judged_by_what_happens_near_it():
    road = toy_road.collect(lycon.policy_step(KEY, start(), ADJACENCY, UNFILTERED, explore=False), 1, 5)[0]
    fuller = road._replace(x=np.asarray(road.x) + np.where(np.arange(4) == 0, 0.2, 0.0)[None, :, None])
    # Without prices: whether a limit is broken depends on the whole network.
    free = dataclasses.replace(UNFILTERED, search=dataclasses.replace(SEARCH, price=0.0))
    before, after = (search.scores([one], ADJACENCY, free)[0] for one in (road, fuller))
    near = (np.asarray(ADJACENCY)[0] > 0) | (np.arange(4) == 0)
    assert (after[near] < before[near]).all()
    np.testing.assert_array_equal(after[~near], before[~near])


def test_settings_that_cannot_be_searched_with_are_refused():
    with pytest.raises(ValueError, match="1 pair"):
        SearchConfig(generations=1, pairs=0)
