"""Laws of a compiled road: vehicles are conserved, lights and saturation flows hold, waits are those of a queue."""

import functools
import math
import tempfile
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sim.compile_demand import compile_with_demand
from sim.demand import DemandConfig, TripPlanner, trip_rates
from stream_jax.road.controller import GREEN, RED
from stream_jax.road.env import Params, World
from stream_jax.road.look import look
from stream_jax.road.plans import PlanConfig, plan
from stream_jax.road.second import pass_second, rules
from stream_jax.road.world import NEVER, WorldConfig, lookahead, usual_drivers
from tests.road.small_world import TRAVEL, drive, exact_drivers, hour_of, one_signal, timed
from tests.small_road import SHORT, small_flow, small_network

CFG = WorldConfig()
FEW = {"max_examples": 4, "deadline": None, "phases": (Phase.generate,)}  # each compiles anew: nothing is shrunk


@functools.lru_cache
def small_grid() -> tuple:
    """A 2 x 2 grid with its demand, far beyond what it can serve."""
    network = small_network(Path(tempfile.mkdtemp(prefix="stream_jax-")))
    planner = TripPlanner(network, SHORT)
    rates = trip_rates(small_flow(), 10, 6000.0, (), DemandConfig(duration_s=900))
    return compile_with_demand(network, planner.roads, rates, small_flow()[9 : 9 + len(rates)], DemandConfig())


@pytest.mark.parametrize("controller", [lookahead(), plan(PlanConfig(60.0)), plan(PlanConfig(20.0, gap_out=True))])
def test_every_vehicle_is_outside_or_on_the_road_or_leaving_or_gone(controller):
    compiled, demand = small_grid()
    world, params = World(compiled.road, controller=controller), Params(usual_drivers(), demand)

    def one(state, key):
        state, measured = world.step(key, state, jnp.zeros((4, 9)), params)
        return state, (state._replace(hour=None, signal=None), measured)

    _, (states, measured) = jax.lax.scan(
        one, world.reset(jax.random.key(1), params), jax.random.split(jax.random.key(2), 20)
    )
    there = (states.lanes.ready < NEVER / 2).sum((1, 2))
    chex.assert_trees_all_equal(there, (states.entered - states.left).sum(1))
    on_the_way = states.inserted.sum(1) - states.finished - states.leaving.sum(1)
    chex.assert_trees_all_equal(there.astype(jnp.float32), on_the_way)
    assert states.due[-1].sum() > 1000 and there.max() > 100 and measured.queue.min() >= 0
    rank = jnp.sort(states.lanes.vehicle, axis=1)
    assert rank.min() >= 0 and (there <= np.sum(compiled.road.pocket + compiled.road.behind)).all()


def second_by_second(road, hour, controller, drivers, seconds):
    """[T, L] who crossed, [T, M] colours."""
    world, cfg = World(road, CFG, controller), CFG
    state = world.begin(hour)

    @jax.jit
    def one(state, second):
        signal, shown = controller.advance(
            state.signal, look(world.road, state, cfg), jnp.zeros((1, 9)), world.road.tables
        )
        rule = rules(world.road, drivers, state, cfg)
        noise = jnp.zeros(world.road.origins + world.road.lanes)
        after, _ = pass_second(
            world.road, drivers, rule, state._replace(signal=signal), shown, noise, second % cfg.control_s, cfg
        )
        return after, (after.left - state.left, shown[0])

    return jax.device_get(jax.lax.scan(one, state, jnp.arange(seconds))[1])


@settings(**FEW)
@given(seed=st.integers(0, 2**31))
def test_nothing_leaves_on_red(seed):
    rng = np.random.default_rng(seed)
    cycle = int(rng.integers(20, 80))
    split = int(rng.integers(5, cycle - 5))
    hour = hour_of([np.sort(rng.uniform(0, 200, 40)), np.sort(rng.uniform(0, 200, 40))])
    left, shown = second_by_second(one_signal(), hour, timed([(0, split), (split, cycle)], cycle), exact_drivers(), 300)
    assert left.sum() > 30 and not (left * (shown == RED)).any()


@settings(**FEW)
@given(headway=st.floats(1.0, 4.0), startup=st.floats(0.0, 3.0))
def test_discharge_never_exceeds_saturation(headway, startup):
    hour = hour_of([[0.5 * k for k in range(100)], []])
    drivers = exact_drivers(headway_s=np.full(3, headway), startup_s=startup)
    left, shown = second_by_second(one_signal(), hour, timed([(30, 60), (0, 1)], 60), drivers, 300)
    green = (shown[:, 0] == GREEN).reshape(-1, 60)
    per_cycle = left[:, 0].reshape(-1, 60).sum(1)
    # The first of a queue crosses `startup` after green begins, the others one headway after another.
    most = math.floor((30 - startup - 1e-3) / headway) + 1
    assert (per_cycle <= most).all() and per_cycle.max() >= min(most, 12) - 1 and green.sum() == 150


def test_a_longer_green_never_serves_fewer():
    hour = hour_of([np.arange(0, 600, 4.0), []])
    served = []
    for green in range(5, 60, 5):
        states, _ = drive(one_signal(), hour, timed([(0, green), (0, 1)], 60), exact_drivers(), 10)
        served.append(int(states.left[-1, 0]))
    assert served == sorted(served) and served[0] < served[-1]


def brute_force(departures, is_green, headway, startup):
    """Moments at which the vehicles of one lane cross, one after the other. Args: is_green: by second."""
    moments, free = [], 0.0
    for depart in departures:
        ready = depart + TRAVEL
        second = int(ready)
        while True:
            if second >= len(is_green):
                return moments
            if not is_green[second]:
                if ready < second + 1:
                    free = max(free, second + 1 + startup)
            elif (moment := max(ready, free, second)) < second + 1:
                break
            second += 1
        moments.append(moment)
        free = moment + headway
    return moments


@settings(**FEW)
@given(seed=st.integers(0, 2**31))
def test_delays_and_waits_are_those_of_a_queue_worked_out_vehicle_by_vehicle(seed):
    rng = np.random.default_rng(seed)
    departures = np.sort(rng.choice(np.arange(1, 400), 50, replace=False)).astype(float)
    low = int(rng.integers(10, 40))
    is_green = np.arange(900) % 60 >= low
    moments = brute_force(departures, is_green, 2.0, 1.5)
    drivers = exact_drivers(headway_s=np.full(3, 2.0), startup_s=1.5)
    states, measured = drive(one_signal(40), hour_of([departures, []]), timed([(low, 60), (0, 1)], 60), drivers, 15)
    assert len(moments) == 50 == int(states.left[-1, 0])
    # float32 keeps moments of an hour to a quarter of a millisecond.
    assert float(states.delay[-1]) == pytest.approx(sum(moments) - sum(departures) - 50 * TRAVEL, abs=0.1)
    # A vehicle halts from its arrival at the queue until the wave reaches it: at most its delay and the way up.
    delays = np.array(moments) - departures - TRAVEL
    assert float(measured.wait.max()) <= delays.max() + 0.54 * 12 + 1
    assert float(measured.wait.max()) >= delays.max() - 2.0 * 12 - 1


def test_vehicle_seconds_are_those_of_all_trips():
    # Two vehicles meet green all the time: 20 s to the stop line and 3 s behind it, counted at the end of each second.
    hour = hour_of([[0.0, 5.0], []])
    _, measured = drive(one_signal(), hour, timed([(0, 60), (0, 1)], 60), exact_drivers(), 2)
    assert float(measured.finished.sum()) == 2 and abs(float(measured.travel_time.sum()) - 46) <= 4


def test_the_gradient_of_the_delay_agrees_with_finite_differences():
    # Moments are continuous in the headway; no vehicle here is the last one through a green, where they would jump.
    hour = hour_of([[0.0, 1.0, 2.0, 3.0, 4.0, 70.0, 71.0], []])

    def delay(headway):
        drivers = exact_drivers(headway_s=jnp.full(3, headway))
        return drive(one_signal(), hour, timed([(40, 60), (0, 1)], 60), drivers, 4)[0].delay[-1]

    slope = jax.jacfwd(delay)(2.0)
    # Five of a queue: 0 + 1 + 2 + 3 + 4 headways, then two: 0 + 1.
    assert float(slope) == pytest.approx(11.0, rel=1e-4)
    assert float((delay(2.05) - delay(1.95)) / 0.1) == pytest.approx(float(slope), rel=1e-2)


def test_who_overflows_a_pocket_blocks_those_behind_him():
    # Lane 0 never has green: its third vehicle stands where lane 1 begins, and shuts in whoever came later.
    hour = hour_of([[0.0, 2.0, 4.0], [20.0]])
    for pocket, served in ((2, 0), (3, 1)):
        states, _ = drive(one_signal(pocket, behind=6), hour, timed([(0, 0), (0, 60)], 60), exact_drivers(), 2)
        assert int(states.left[-1, 1]) == served


def test_a_closed_lane_takes_nobody_in():
    hour = hour_of([[10.0, 70.0], []])._replace(
        closed=np.array([0], np.int32),
        closed_from=np.array([60.0], np.float32),
        closed_to=np.array([180.0], np.float32),
    )
    states, measured = drive(one_signal(), hour, timed([(0, 60), (0, 1)], 60), exact_drivers(), 5)
    assert states.inserted[:, 0].tolist() == [1, 1, 1, 2, 2]
    assert float(measured.wait[2].max()) == pytest.approx(110.0, abs=2)  # since 70 s, at the end of the third minute


def test_one_control_step_traces_once():
    compiled, demand = small_grid()
    world, params = World(compiled.road), Params(usual_drivers(), demand)
    step = jax.jit(chex.assert_max_traces(world.step, n=1))
    state = world.reset(jax.random.key(0), params)
    for number in range(3):
        state, _ = step(jax.random.key(number), state, jnp.full((4, 9), 0.1 * number), params)


def test_environments_and_drivers_can_be_vmapped():
    compiled, demand = small_grid()
    world, keys = World(compiled.road), jax.random.split(jax.random.key(0), 3)
    drivers = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, 1.5 * leaf]), usual_drivers())
    params = Params(drivers, demand)
    axes = Params(0, None)
    states = jax.vmap(world.reset, (0, axes))(keys, params)
    together, _ = jax.vmap(world.step, (0, 0, 0, axes))(keys, states, jnp.zeros((3, 4, 9)), params)
    alone = world.step(
        keys[1],
        world.reset(keys[1], params._replace(drivers=usual_drivers())),
        jnp.zeros((4, 9)),
        Params(usual_drivers(), demand),
    )[0]
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], together.lanes), alone.lanes, atol=1e-3)
