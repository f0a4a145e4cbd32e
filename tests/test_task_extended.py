"""A fourth constraint and a tenth action entry are written here alone, and every part of the library follows."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evaluation import drives
from experiments.methods.control import ppo as ppo_rival
from experiments.methods.control.road_task import road_task, trajectories
from experiments.methods.control.task import experience, measure_units
from sim.loop import Episode
from stream_jax.rl import agent as agents
from stream_jax.rl import bounds, lycon_wrl_plus, objective, replay, verification
from stream_jax.task import GREENS, PHASES, ActionPart, ActionSpace, Constraint, Limits, costs, limit, local_of
from stream_jax.types import RoadMeasurement
from tests.rl import toy_road
from tests.rl.toy_settings import CFG

LONGEST_QUEUE = Constraint(  # of any phase of an intersection, in vehicles
    text="longest queue {:4.0f}",
    mean_metric="longest_phase_queue",
    max_metric=None,
    is_local=True,
    value=lambda local: 10.0 * local.queue.max((-2, -1)),
    excess=lambda value, limit: value / limit - 1.0,
    amount=lambda local: 10.0 * local.queue.max(-1),
    room=lambda limit: limit,
    share=lambda local, limit: jnp.maximum(10.0 * local.queue.max(-1) / limit - 1.0, 0.0),
)


@dataclasses.dataclass(frozen=True)
class FourLimits(Limits):
    """The three limits and one on the longest queue of a phase."""

    phase_queue: float = limit(12.0, LONGEST_QUEUE)


TEN = ActionSpace("greens_and_speed", (*GREENS.parts, ActionPart("speed", 1)))
FOUR = FourLimits(queue=20.0)
WIDER = dataclasses.replace(CFG, action=TEN, limits=FOUR, iterations=1, imagined=1.0, rounds=1, validate_every=0)
collect = functools.partial(toy_road.collect, actions=TEN.size)
NAMES = ("queue", "wait", "served", "phase_queue")


@pytest.fixture(scope="module")
def learned():
    """One iteration of learning with ten entries and four limits."""
    return lycon_wrl_plus.fit(jax.random.key(0), collect, toy_road.ADJACENCY, WIDER)


def test_a_tenth_entry_stands_after_the_nine():
    assert (GREENS.size, TEN.size) == (9, 10)
    assert (TEN.place("max_green"), TEN.place("guard"), TEN.place("speed")) == (slice(0, 8), slice(8, 9), slice(9, 10))
    with pytest.raises(KeyError, match="speed"):
        GREENS.place("speed")


def test_a_fourth_cost_stands_behind_the_three_and_leaves_them_alone():
    x = jnp.zeros((2, 10)).at[1, 3].set(1.8)  # 18 vehicles in one phase: 18 / 12 - 1 = 0.5
    chex.assert_trees_all_equal(costs(x, FOUR)[:3], costs(x, Limits(queue=20.0)))
    np.testing.assert_allclose(costs(x, FOUR)[3], 0.5, rtol=1e-6)
    assert FOUR.names == NAMES
    broken, charged = objective.broken(x, FOUR), objective.local_costs(x, FOUR, CFG.reward)
    assert broken[:, 3].tolist() == [False, True]
    np.testing.assert_allclose(charged[:, 3], [0.0, 1.0], rtol=1e-6)  # mean 0.5, all of it the second's
    np.testing.assert_allclose(objective.nearness(x, FOUR)[:, 3], [0.0, 1.0])


@pytest.mark.slow
def test_a_fresh_agent_proposes_ten_entries_and_prices_four_costs():
    state = lycon_wrl_plus.start(jax.random.key(0), toy_road.ADJACENCY, WIDER)
    blank = agents.blank_state(toy_road.INTERSECTIONS, WIDER)
    decision = agents.act(jax.random.key(1), state.agent, blank, blank.plan, toy_road.ADJACENCY, WIDER, explore=True)
    chex.assert_shape([decision.action, decision.proposed], (toy_road.INTERSECTIONS, 10))
    chex.assert_shape(state.multipliers, (4,))


@pytest.mark.slow
def test_learning_fits_filters_and_reports_all_four_by_name(learned):
    train, *_ = (row for row in learned.rows if row["kind"] == "train")
    assert [name.removeprefix("cost_") for name in train if name.startswith("cost_")] == list(NAMES)
    assert [name.removeprefix("multiplier_") for name in train if name.startswith("multiplier_")] == list(NAMES)
    assert bool(learned.agent.fitted) and np.isfinite(train["loss_value"])
    world = bounds.world_jacobian(learned.agent.world, toy_road.ADJACENCY, WIDER.world, TEN.size)
    assert world.state >= 1.0 and world.action > 0.0


def test_a_certificate_is_made_of_ten_entries_and_four_limits(learned):
    step = lycon_wrl_plus.policy_step(jax.random.key(2), learned.agent, toy_road.ADJACENCY, WIDER, explore=False)
    driven = replay.stack(collect(step, 4, 77))
    row = verification.verify(learned.agent, driven, toy_road.ADJACENCY, WIDER)
    assert row["identity_holds"]


@pytest.mark.slow
def test_a_rival_learns_ten_entries_under_four_prices():
    task = road_task(toy_road.ADJACENCY, WIDER)
    settings = ppo_rival.PPORivalConfig(WIDER.policy, WIDER.ppo, 1)
    blank = agents.blank_state(toy_road.INTERSECTIONS, WIDER)
    learner = ppo_rival.start(jax.random.key(0), task, blank, settings)

    def step(seeds, time, x, view, plan, clock):
        shape = (len(seeds), toy_road.INTERSECTIONS)
        action = jax.random.uniform(jax.random.key(time), (*shape, 10), minval=-1.0)
        nothing = jnp.zeros(len(seeds))
        certificate = agents.Certificate(*(nothing,) * 5, nothing > 0, nothing)
        return agents.Decision(np.asarray(action), np.asarray(action), np.zeros(shape), certificate)

    memory = trajectories(replay.stack(collect(step, 4, 5)), WIDER)
    better, _ = ppo_rival.improve(
        jax.random.key(1), learner, memory, memory, measure_units(task, memory), task, settings
    )
    action, _ = ppo_rival.act(jax.random.key(2), better, task.observe(blank), settings, False)
    chex.assert_shape(action, (toy_road.INTERSECTIONS, 10))
    chex.assert_shape(experience(task, measure_units(task, memory), memory).signals[0, 0], (toy_road.INTERSECTIONS, 5))


def test_rows_of_a_drive_name_the_fourth_limit():
    steps, each = 4, np.ones((4, 2), np.float32)
    queue = np.zeros((steps, 2, PHASES), np.float32)
    queue[2, 0, 5] = 18.0
    road = RoadMeasurement(queue, *(each,) * 5, *(np.ones(steps, np.float32),) * 3)
    totals = {"mean_travel_time_s": 1.0, "teleports": 0.0}
    scores = drives.score(Episode(0, None, road, None, totals, None), FOUR)
    assert scores["steps_over_phase_queue"] == 1.0 and scores["violating_steps"] == 1.0
    assert scores["longest_phase_queue"] == pytest.approx(6.0)  # 18, 0 and 0 of the three steps after the first
    row = {row["metric"]: row for row in drives.summarise([{0: scores}], FOUR)}["longest_phase_queue"]
    assert row["limit"] == 12.0


def test_every_limit_can_be_shown_to_a_person():
    local = local_of(jnp.zeros((2, 10)))
    shown = [bound.constraint.text.format(float(bound.constraint.value(local))) for bound in FOUR.bounds]
    assert shown == ["queue   0.0", "wait    0 s", "served 100%", "longest queue    0"]
