"""Claims about the road as an agent meets it: what it is shown when, what is kept, and who is whose neighbour."""

from functools import partial
from pathlib import Path

import chex
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evaluation import drives as evaluation
from experiments.methods.control import default_plan
from experiments.stages import agent_road
from experiments.stages.agent_road import CityDays, Driver
from sim.demand import DemandConfig, make_scenario
from sim.loop import Tick, run_episodes
from sim.network import GridConfig, build_grid
from sim.session import Scenario
from stream_jax.rl.lycon_wrl_plus import Decision
from stream_jax.types import Certificate, CityView, RoadMeasurement

SIGNALS, STEPS, DAY = 4, 12, 96


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return build_grid(GridConfig(size=2), tmp_path_factory.mktemp("grid"))


def days() -> CityDays:
    """After step t the forecast says t."""
    told = np.broadcast_to(np.arange(STEPS, dtype=np.float32)[:, None, None], (STEPS, SIGNALS, 4))
    plain = np.ones((STEPS, SIGNALS), np.float32)
    day = 2 * np.pi * np.arange(STEPS) / DAY
    clock = np.stack([np.sin(day), np.cos(day), np.sin(day / 7), np.cos(day / 7)], 1)
    return CityDays(CityView(told, 0 * told, plain, 0 * plain), clock.astype(np.float32), 900)


def scenario(first_step: int = 5, minutes: int = 20) -> Scenario:
    return Scenario(Path("none"), (), 0, 60 * minutes, 3, first_step, np.zeros((2, SIGNALS)))


def constant_policy(value: float):
    """Proposes one number everywhere and says that the filter halved it."""

    def step(seeds, time, x, view, plan, clock) -> Decision:
        count = len(seeds)
        proposed = np.full((count, SIGNALS, 9), value, np.float32)
        zero = np.zeros(count, np.float32)
        certificate = Certificate(zero, zero, zero, zero, zero, zero > 0, np.zeros(count, np.int32))
        return Decision(proposed / 2, proposed, np.zeros((count, SIGNALS), np.float32), certificate)

    return step


def road(rows: int) -> RoadMeasurement:
    each = np.zeros((rows, SIGNALS))
    return RoadMeasurement(np.zeros((rows, SIGNALS, 8)), *(each,) * 5, *(np.zeros(rows),) * 3)


def test_an_agent_is_shown_the_view_of_the_last_complete_step():
    # Control begins with city step 5, when step 4 has just been completed; 15 minutes later step 5 is complete, too.
    known = agent_road.moments(scenario(), days())
    chex.assert_trees_all_equal(known.view.mean[:, 0, 0], np.repeat([4.0, 5.0], [15, 6]).astype(np.float32))


def test_in_the_warm_up_the_step_before_is_in_progress_and_the_clock_leads_to_where_control_is_judged():
    filling = scenario()._replace(warmup_s=1200)
    known = agent_road.moments(filling, days(), warm_up=True)
    # 20 minutes: step 3 for five of them, when 2 is the last complete one, then step 4; then as without a warm-up.
    expected = np.repeat([2.0, 3.0, 4.0, 5.0], [5, 15, 15, 6]).astype(np.float32)
    chex.assert_trees_all_equal(known.view.mean[:, 0, 0], expected)
    chex.assert_trees_all_close(known.clock[20:], agent_road.moments(filling, days()).clock, atol=1e-5)
    chex.assert_trees_all_close(known.clock[:5, 4], np.arange(10, 15) / 15, atol=1e-5)


def test_the_clock_starts_with_the_step_and_its_share_grows_by_a_fifteenth_a_minute():
    clock = agent_road.clocks(scenario(), days().clock, 900)
    chex.assert_trees_all_close(clock[:15, 4], np.arange(15) / 15, atol=1e-5)
    assert clock[15, 4] < 1e-5
    chex.assert_trees_all_close(clock[15, :4], days().clock[6], atol=1e-5)  # a quarter of an hour later


def test_the_executed_action_is_the_plan_that_the_next_step_sees():
    seen = []

    def watching(seeds, time, x, view, plan, clock):
        seen.append(plan.copy())
        return constant_policy(0.4)(seeds, time, x, view, plan, clock)

    driver = Driver(watching, [scenario()], days())
    for step in range(2):
        once = np.array([True])
        driver(Tick(road(1), once, once & (step == 0), np.array([step]), np.array([0])))
    chex.assert_trees_all_close(seen[0], np.zeros((1, SIGNALS, 9)))
    chex.assert_trees_all_close(seen[1], np.full((1, SIGNALS, 9), 0.2))


def test_a_policy_drives_the_warm_up_too_and_only_the_plan_at_its_end_is_kept():
    driver = Driver(constant_policy(0.4), [scenario()._replace(warmup_s=120)], days())
    once = np.array([True])
    for step in (-2, -1, 0, 1):
        driver(Tick(road(1), once, once & (step == -2), np.array([step]), np.array([0])))
    assert len(driver.decisions[0]) == 2
    chex.assert_trees_all_close(driver.first[0], np.full((SIGNALS, 9), 0.2))


def test_an_episode_that_begins_again_forgets_what_was_decided():
    driver = Driver(constant_policy(0.4), [scenario()], days())
    once = np.array([True])
    for step, begins in ((0, True), (1, False), (0, True)):
        driver(Tick(road(1), once, np.array([begins]), np.array([step]), np.array([0])))
    assert len(driver.decisions[0]) == 1


def test_an_idle_environment_leaves_no_decision():
    driver = Driver(constant_policy(0.4), [scenario(), scenario()], days())
    driver(Tick(road(2), np.array([True, False]), np.array([True, False]), np.array([0, 0]), np.array([0, -1])))
    assert [len(made) for made in driver.decisions] == [1, 0]


def test_neighbours_of_a_two_by_two_grid_count_half_each(network):
    expected = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]) / 2
    chex.assert_trees_all_close(agent_road.adjacency(network), expected.astype(np.float32))


def test_what_is_collected_in_sumo_is_what_was_decided_and_measured(network, tmp_path):
    cfg = DemandConfig(warmup_s=60, duration_s=120)
    drawn = make_scenario(7, network, np.ones((STEPS, SIGNALS)), 5, 800.0, [], tmp_path, cfg)
    driver = Driver(constant_policy(0.4), [drawn], days())
    make_session = partial(evaluation.open_session, network, default_plan.driver)
    (one,) = run_episodes(make_session, [drawn], driver, workers=0)
    episode = driver.episode(0, one.road)
    chex.assert_shape(episode.x, (3, SIGNALS, 10))
    chex.assert_trees_all_close(episode.plan[0], np.full((SIGNALS, 9), 0.2))  # of the minute of warm-up
    chex.assert_trees_all_close(episode.plan[1:], one.action, atol=1e-7)
    chex.assert_trees_all_equal(episode.proposed, np.full((2, SIGNALS, 9), 0.4, np.float32))
    path = tmp_path / "decisions" / "000.npz"
    agent_road.save_decisions(path, driver.decisions[0], driver.first[0])
    made, first = agent_road.read_decisions(path)
    chex.assert_trees_all_equal((made, first), (agent_road.stacked(driver.decisions[0]), driver.first[0]))
    again = agent_road.rebuilt(one, path, days())
    chex.assert_trees_all_equal(again.plan, episode.plan)
    chex.assert_trees_all_close(jnp.asarray(again.x), jnp.asarray(episode.x))
