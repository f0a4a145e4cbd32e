"""Rivals on the toy road, through the same door as ours: they learn, survive a kill, and one runs in SUMO by name."""

import dataclasses
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import DataError
from experiments import presets
from experiments.cli.options import RunOptions
from experiments.evaluation import drives as evaluation
from experiments.evaluation import results
from experiments.methods.control import cpo, following_plan
from experiments.methods.control.controllers import make_method
from experiments.methods.control.ppo import Samples
from experiments.methods.control.road_task import road_task, step_maker, trajectories
from experiments.methods.control.task import experience, mean_cost, measure_units, remembered, signals
from experiments.stages import agent_stage, agents, rivals
from experiments.stages import control as control_stage
from experiments.stages.agent_road import CityDays
from stream_jax.rl import improvement, policy, replay, trial, verification
from stream_jax.rl import lycon_wrl_plus as lycon
from stream_jax.rl.agent import blank_state
from stream_jax.task import Limits
from stream_jax.types import CityView
from tests.rl import toy_road
from tests.rl.toy_road import ADJACENCY
from tests.rl.toy_settings import CFG
from tests.small_city import write_small_city

KEY = jax.random.key(0)
PLAIN = [name for name in agents.RIVALS if not name.endswith(agents.FOLLOWING)]
TOY = dataclasses.replace(CFG, rounds=4, imagined=1.0, limits=Limits(queue=10.0), validate_every=1)


class Killed(Exception):
    """Stands for the end of the process."""


def driven(name, learner, cfg=TOY, seed=77, episodes=16):
    make = step_maker(rivals.METHODS[name], rivals.settings(name, cfg), road_task(ADJACENCY, cfg), cfg)
    return replay.stack(toy_road.collect(make(KEY, learner, False), episodes, seed))


def default_plan(seed=77, episodes=16):
    name = "ppo"
    blank = blank_state(toy_road.INTERSECTIONS, TOY)
    learner = rivals.METHODS[name].start(KEY, road_task(ADJACENCY, TOY), blank, rivals.settings(name, TOY))
    return driven(name, learner, seed=seed, episodes=episodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_every_rival_beats_the_default_plan_on_roads_it_has_not_seen(name):
    cfg = dataclasses.replace(TOY, iterations=6)
    fitted = rivals.fit(KEY, name, toy_road.collect, ADJACENCY, cfg)
    before, after = default_plan(), driven(name, fitted.learner.learner)
    np.testing.assert_array_equal(before.plan, np.zeros_like(before.plan))
    gain = after.traffic.mean(1) - before.traffic.mean(1)  # the same 16 seeds for both
    assert gain.mean() > 3.0 * gain.std() / 4.0
    kinds = [row["kind"] for row in fitted.rows]
    assert kinds == ["validation", *["train", "validation"] * cfg.iterations]


@pytest.mark.slow
def test_a_killed_rival_ends_in_the_same_bits_and_collects_nothing_twice(tmp_path):
    whole = rivals.fit(KEY, "ppo", toy_road.collect, ADJACENCY, TOY, tmp_path / "whole")
    last, calls = TOY.first_seed + TOY.episodes, []

    def dying(step, num_episodes, seed):
        if seed == last:
            raise Killed
        return toy_road.collect(step, num_episodes, seed)

    def reviving(step, num_episodes, seed):
        calls.append(seed)
        return toy_road.collect(step, num_episodes, seed)

    with pytest.raises(Killed):
        rivals.fit(KEY, "ppo", dying, ADJACENCY, TOY, tmp_path / "killed")
    resumed = rivals.fit(KEY, "ppo", reviving, ADJACENCY, TOY, tmp_path / "killed")
    chex.assert_trees_all_equal(resumed.run, whole.run)
    assert resumed.rows == whole.rows
    assert calls == [last, TOY.validation_seed]
    with pytest.raises(ValueError, match="belongs to another run"):
        rivals.fit(KEY, "cpo", toy_road.collect, ADJACENCY, TOY, tmp_path / "killed")


@pytest.mark.slow
def test_a_rival_is_paid_and_charged_as_ours_is():
    episodes = default_plan(episodes=3)
    task, rollouts = road_task(ADJACENCY, TOY), trajectories(episodes, TOY)
    agent = lycon.start(KEY, ADJACENCY, TOY).agent  # its typical sigma has an infinite unit, which leaves that term out
    real = improvement.real_rollouts(agent, episodes, ADJACENCY, TOY)
    units = measure_units(task, rollouts)
    chex.assert_trees_all_close(jnp.stack(units), improvement.reward_units(real, agent, TOY), rtol=1e-5)
    chex.assert_trees_all_close(mean_cost(task, rollouts), verification.performance(episodes, TOY).cost, rtol=1e-5)
    assert float(mean_cost(task, rollouts).sum()) > 0


@pytest.mark.parametrize("sharpness", [0.0, 4.0])
def test_every_intersection_is_judged_by_the_signals_of_ours(sharpness):
    cfg = dataclasses.replace(TOY, reward=dataclasses.replace(TOY.reward, cost_sharpness=sharpness, reward_clip=3.0))
    task, rollouts = road_task(ADJACENCY, cfg), trajectories(default_plan(episodes=3), cfg)
    paid = experience(task, measure_units(task, rollouts), rollouts).signals
    agent = lycon.start(KEY, ADJACENCY, cfg).agent
    real = improvement.real_rollouts(agent, default_plan(episodes=3), ADJACENCY, cfg)
    unit = improvement.reward_units(real, agent, cfg)
    still = agent.policy._replace(critic=jax.tree.map(jnp.zeros_like, agent.policy.critic))  # values 0: rewards alone
    alone = dataclasses.replace(cfg, ppo=dataclasses.replace(cfg.ppo, trace=0.0))
    ours = jax.vmap(lambda one: improvement.samples(still, one, agent, unit, ADJACENCY, alone).advantage)(real)
    chex.assert_trees_all_close(paid, ours, atol=1e-4)
    assert float(paid[..., 1:].max()) > 0


def test_an_intersections_own_signals_add_up_to_the_networks_whoever_is_next_to_whom():
    # On a road of four in a row the ends have two to share with and the others three: a mean of shared costs is not the
    # network's, 5/6 of it if all are charged alike.
    row = jnp.eye(4, k=1) + jnp.eye(4, k=-1)
    task, rollouts = road_task(row / row.sum(-1, keepdims=True), TOY), trajectories(default_plan(episodes=3), TOY)
    units = measure_units(task, rollouts)
    before, after = (jax.tree.map(lambda leaf, c=c: leaf[:, c], rollouts.states) for c in (slice(-1), slice(1, None)))
    own, shared = (
        jax.vmap(jax.vmap(lambda *step, c=credit: signals(c, task, units, *step)))(before, rollouts.action, after)
        for credit in (task.own, task.credited)
    )
    np.testing.assert_allclose(own[..., 0].mean(), 0.0, atol=1e-5)  # in units of these very rewards
    np.testing.assert_allclose(own[..., 1:].mean((0, 1, 2)), mean_cost(task, rollouts), rtol=1e-5)
    assert (shared[..., 1].mean() < 0.95 * own[..., 1].mean()).all()


def test_the_whole_network_moves_by_as_much_as_all_who_share_a_credit():
    # In a square three share the credit for what happens at one of them, a third each. Let every action take 1 off the
    # cost of its own intersection: a row's credit falls by 1/3 for its own action, and the mean over all by 3 times it.
    task = road_task(ADJACENCY, TOY)
    assert task.reach == 3.0
    samples = Samples(*(jnp.zeros((2, width)) for width in (1, 1)), jnp.zeros(2), jnp.arange(8.0).reshape(2, 4), None)
    chosen = cpo.constrained(samples, jnp.asarray(1), task.reach)
    np.testing.assert_array_equal(chosen.advantage, [[0.0, 6.0], [4.0, 18.0]])


@pytest.mark.parametrize("name", PLAIN)
def test_rivals_hold_the_direction_of_their_exploration_as_ours_does(name):
    cfg = dataclasses.replace(TOY, hold=5)
    method, chosen, task = rivals.METHODS[name], rivals.settings(name, cfg), road_task(ADJACENCY, cfg)
    state = blank_state(toy_road.INTERSECTIONS, cfg)
    step = step_maker(method, chosen, task, cfg)(KEY, method.start(KEY, task, state, chosen), True)
    still = jnp.zeros((4, 10)), toy_road.view(), jnp.zeros((4, 9)), jnp.zeros(5)
    seen = jax.tree.map(lambda leaf: leaf[None], still)
    at = [step(np.array([3]), time, *seen).proposed for time in (0, 4, 5)]
    np.testing.assert_array_equal(at[0], at[1])
    assert np.abs(at[1] - at[2]).max() > 1e-3


@pytest.mark.slow
def test_a_rival_keeps_what_it_began_with_if_nothing_learned_was_better(monkeypatch):
    falling = iter([3.0, 2.0, 1.0])
    monkeypatch.setattr(verification, "merit", lambda measured: np.array([next(falling), 0.0], np.float32))
    fitted = rivals.fit(KEY, "ppo", toy_road.collect, ADJACENCY, TOY)
    blank = blank_state(toy_road.INTERSECTIONS, TOY)
    task, chosen = road_task(ADJACENCY, TOY), rivals.settings("ppo", TOY)
    begun = rivals.METHODS["ppo"].start(jax.random.split(KEY, 3)[0], task, blank, chosen)
    chex.assert_trees_all_equal(fitted.learner.learner, begun)
    assert [row["is_kept"] for row in fitted.rows if row["kind"] == "validation"] == [True, False, False]
    assert agent_stage.kept_iteration(fitted.rows) == 0


def moment(seed=1):
    """A state of the toy road with queues to follow and a city that says something."""
    queues = 2.0 * jax.random.uniform(jax.random.key(seed), (toy_road.INTERSECTIONS, 10))
    return blank_state(toy_road.INTERSECTIONS, TOY)._replace(local=queues)


@pytest.mark.parametrize("name", [name for name in agents.RIVALS if name not in PLAIN])
def test_a_rival_may_begin_with_the_plan_that_ours_begins_with(name):
    task, chosen, state = rivals.task_of(name, ADJACENCY, TOY), rivals.settings(name, TOY), moment()
    begun = rivals.start(name, ADJACENCY, TOY)
    step = step_maker(rivals.METHODS[name], chosen, task, TOY)(KEY, begun, False)
    seen = jax.tree.map(lambda leaf: leaf[None], (state.local, toy_road.view(), state.plan, state.clock))
    made = step(np.array([3]), 0, *seen)
    ours = lycon.start(KEY, ADJACENCY, TOY).agent
    following = trial.with_gains(ours, trial.following_gains())
    expected = policy.mean_action(following.policy, state, ADJACENCY, TOY.policy)
    chex.assert_trees_all_close(made.action[0], expected, atol=1e-6)  # float32 in another order
    assert np.abs(made.action).max() > 0.2 and np.abs(made.proposed).max() < 1e-6
    assert chosen == rivals.settings(name.removesuffix(agents.FOLLOWING), TOY)  # all else is alike


def test_an_action_corrects_the_plan_in_the_road_in_the_world_model_and_in_what_the_next_state_remembers():
    task, state = rivals.task_of("la_mbda:following", ADJACENCY, TOY), moment()
    plan = following_plan.plan(state)
    correction = jnp.full_like(plan, 0.25).at[0].set(3.0)  # drawn outside of [-1, 1] at the first intersection
    driven_plan = jnp.clip(plan + jnp.clip(correction, -1.0, 1.0), -1.0, 1.0)
    chex.assert_trees_all_close(task.driven(state, correction), driven_plan)
    chex.assert_trees_all_close(task.advance(state, correction, state.local).plan, driven_plan)
    usual = road_task(ADJACENCY, TOY)
    chex.assert_trees_all_close(task.inputs(state, correction), usual.inputs(state, driven_plan))
    chex.assert_trees_all_equal(usual.driven(state, correction), jnp.clip(correction, -1.0, 1.0))


def test_rivals_that_begin_otherwise_are_not_taken_for_each_other(tmp_path):
    begun = make_method("following_plan", SimpleNamespace(network=None), 600.0, tmp_path)
    assert rivals.first_plan("cpo:following") == begun.folder and rivals.first_plan("cpo") == "default_plan"
    assert rivals.learned_from("cpo", TOY) == rivals.settings("cpo", TOY) != rivals.learned_from("cpo:following", TOY)
    assert "begins_with" in rivals.as_dict("cpo:following", TOY).keys() - rivals.as_dict("cpo", TOY).keys()


def test_memory_has_one_shape_and_forgets_the_oldest():
    first, second = (trajectories(default_plan(seed=seed, episodes=2), TOY) for seed in (1, 5))
    short, full = remembered([first], 3), remembered([first, second], 3)
    np.testing.assert_array_equal(short.states.local, np.asarray(first.states.local)[[1, 0, 1]])
    assert full.log_prob.shape == short.log_prob.shape
    np.testing.assert_array_equal(full.states.local[:2], second.states.local[::-1])


def test_every_rival_has_the_budget_of_ours():
    updates = TOY.rounds * TOY.ppo.epochs
    assert rivals.settings("ppo", TOY).rounds * rivals.settings("ppo", TOY).ppo.epochs == updates
    assert rivals.settings("cpo", TOY).rounds * rivals.settings("cpo", TOY).ppo.epochs == updates
    # Half of what ours learns from is imagined here; these take all their steps on what was collected or imagined.
    assert rivals.settings("sac_lagrangian", TOY).passes == 2.0 * updates
    dreaming = rivals.settings("la_mbda", TOY)
    assert dreaming.passes == 2.0 * updates
    assert (dreaming.worlds, dreaming.horizon) == (TOY.world.members, TOY.world.horizon)


@pytest.mark.slow
def test_a_rival_learns_in_sumo_by_its_name_and_is_read_back(tmp_path, console, monkeypatch):
    write_small_city(tmp_path / "data", num_steps=1200, side=4)
    flat = np.ones((1200, 4, 4), np.float32)
    view = CityView(flat, 0.1 * flat, flat[..., 0], 0.0 * flat[..., 0])
    days = CityDays(view, np.zeros((1200, 4), np.float32), 900)
    # What the city says is not what is tested here.
    monkeypatch.setattr(agent_stage.system, "upstream_system", lambda *_: None)
    monkeypatch.setattr(agent_stage.system, "city_days", lambda *_: days)
    args = RunOptions(
        preset="smoke", levels=("heavy",), episodes=1, workers=1, seeds=1, controllers=("default_plan", "ppo")
    )
    monkeypatch.setattr(agent_stage, "kept_iteration", lambda _: 1)  # what has learned nothing is not driven again
    monkeypatch.setattr(control_stage, "workers_of", lambda _: 0)  # a process for every drive takes seconds to start
    file = control_stage.control(args, tmp_path, console)
    rows = [row for row in results.read_rows(file) if row["method"] == "ppo"]
    of = {row["metric"]: row for row in rows}
    assert {"reward", "safety", "violating_steps", "travel_time", "reward_minus_default"} <= set(of)
    # Two iterations of 4 episodes, of which ours has one and a race instead, and two validations on 2; a smoke episode
    # has 60 s + 300 s.
    assert of["sumo_steps"]["value"] == (2 * 4 + 2 * 2) * 360
    kept = sorted((tmp_path / "control").glob("agents/heavy-*/ppo-*/seed0/replay/*.npz"))
    kept += sorted((tmp_path / "control").glob("heavy/ppo-*/seed0/*.npz"))
    times = [path.stat().st_mtime_ns for path in kept]
    assert len(kept) == 3
    control_stage.control(args, tmp_path, console)
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert [row for row in results.read_rows(file) if row["method"] == "ppo"] == rows


def test_a_rival_that_has_kept_its_start_has_the_episodes_of_the_default_plan(tmp_path):
    for name, text in (("000-a.npz", b"driven"), ("001-b.npz", b"driven too")):
        (tmp_path / "default").mkdir(exist_ok=True)
        (tmp_path / "default" / name).write_bytes(text)
    (tmp_path / "rival").mkdir()
    (tmp_path / "rival" / "000-a.npz").write_bytes(b"its own")
    evaluation.take_over(tmp_path / "default", tmp_path / "rival")
    found = {path.name: path.read_bytes() for path in (tmp_path / "rival").iterdir()}
    assert found == {"000-a.npz": b"its own", "001-b.npz": b"driven too"}
    curve = [{"kind": "validation", "iteration": 0, "is_kept": True}]
    worse = {"kind": "validation", "iteration": 3, "is_kept": False}
    assert agent_stage.kept_iteration([*curve, worse]) == 0
    assert agent_stage.kept_iteration([*curve, worse | {"is_kept": True}]) == 3


def test_rivals_are_not_in_the_default_list():
    for names in (["all"], *(preset.controllers for preset in presets.CONTROL.values())):
        assert control_stage.chosen_controllers(names)[1] == [agents.OURS]
    assert control_stage.chosen_controllers(["cpo", "ppo"]) == ([], ["cpo", "ppo"])
    with pytest.raises(DataError, match="trpo"):
        control_stage.chosen_controllers(["ppo", "trpo"])
