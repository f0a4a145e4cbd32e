"""The look-ahead controller drives SUMO: trips finish, prices steer it, and it repeats itself exactly."""

import functools

import numpy as np
import pytest

from sim.errors import RoadError
from sim.lookahead import LookaheadDriver, decode_prices
from sim.network import read_network
from sim.session import Scenario, Session
from sim.stages import state_string
from stream_jax.road.controller import RED, YELLOW
from tests.small_networks import main_street
from tests.small_road import default_session, small_network, small_scenario


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return small_network(tmp_path_factory.mktemp("networks"))


def drive(session, scenario, prices=None):
    with session:
        session.reset(scenario)
        told = np.zeros((len(session.network.ids), 9)) if prices is None else prices
        roads = []
        while not session.done:
            roads.append(session.step(told))
        return roads, session.totals()


@pytest.mark.slow
def test_trips_are_shorter_than_under_the_default_plan_and_a_second_drive_is_the_same(grid, tmp_path):
    scenario = small_scenario(grid, tmp_path, rate=2400.0)
    roads, ours = drive(Session(grid, LookaheadDriver()), scenario)
    again, _ = drive(Session(grid, LookaheadDriver()), scenario)
    _, plan = drive(default_session(grid), scenario)
    assert ours["mean_travel_time_s"] < plan["mean_travel_time_s"]
    for first, second in zip(roads, again, strict=True):
        np.testing.assert_array_equal(first.queue, second.queue)


def test_prices_change_who_waits(grid, tmp_path):
    scenario = small_scenario(grid, tmp_path, rate=2400.0)
    prices = np.zeros((4, 9))
    prices[:, [1, 5]] = 1.0  # phases 2 and 6
    calm, _ = drive(Session(grid, LookaheadDriver()), scenario)
    priced, _ = drive(Session(grid, LookaheadDriver()), scenario, prices)
    queues = [np.mean([road.queue[:, [1, 5]].sum() for road in roads]) for roads in (calm, priced)]
    assert queues[1] < queues[0]


def test_programs_of_a_users_own_are_driven_too(tmp_path):
    street = read_network(main_street(tmp_path))
    trips = "".join(
        f'<trip id="{k}" depart="{3 * k}" from="{a}" to="{b}"/>'
        for k, (a, b) in enumerate([("west-A", "B-east"), ("north-A", "A-south"), ("side-B", "A-west")] * 10)
    )
    (tmp_path / "t.rou.xml").write_text(f"<routes>{trips}</routes>")
    scenario = Scenario(tmp_path / "t.rou.xml", (), 0, 240, 1, -1, np.zeros((0, 2)))
    _, totals = drive(Session(street, LookaheadDriver()), scenario)
    assert totals["trips_finished"] == 30


def test_prices_of_another_shape_or_nan_are_refused():
    with pytest.raises(RoadError, match="prices must be numbers"):
        decode_prices(np.zeros((4, 8)))
    with pytest.raises(RoadError, match="prices must be numbers"):
        decode_prices(np.full((4, 9), np.nan))
    assert decode_prices(np.full((1, 9), 7.0)).max() == 1.0


def test_a_road_on_which_nothing_departs_is_an_error(grid, tmp_path):
    (tmp_path / "late.rou.xml").write_text('<routes><trip id="0" depart="5000" from="bottom0A0" to="A1top0"/></routes>')
    scenario = Scenario(tmp_path / "late.rou.xml", (), 0, 900, 1, -1, np.zeros((0, 4)))
    with pytest.raises(RoadError, match=r"no vehicle of .* departed"):
        drive(Session(grid, LookaheadDriver()), scenario)


def test_a_turn_that_loses_its_protection_sees_yellow_before_it_yields():
    states = ("rrG", "GGg")
    show = functools.partial(state_string, states, clears_turns=True)
    assert show(0, 1, YELLOW) == "rry" and show(0, 1, RED) == "rrr" and show(1, 0, YELLOW) == "yyg"
    assert state_string(states, 0, 1, YELLOW) == "rrG"


def test_the_driver_shows_that_yellow(grid):
    driver = LookaheadDriver()
    driver.reset(grid)
    driver._stages = driver._stages._replace(states=(("rrG", "GGg"),) * 4)
    changing = np.zeros(4, np.int32)
    driver._state = driver._state._replace(stage=changing, target=changing + 1, colour=changing + YELLOW)
    assert {state for _, state in driver._news()} == {"rry"}
