"""Greedy and max-pressure choose the phase that a hand would choose, and change it with a yellow."""

import itertools

import numpy as np
import pytest

from experiments.methods.phase_rules import PhaseRule, RuleConfig
from sim.network import read_network
from sim.session import Scenario, Session
from tests.small_networks import main_street


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    return read_network(main_street(tmp_path_factory.mktemp("street")))


def rule(street, is_pressure=False, **options):
    driver = PhaseRule(RuleConfig(is_pressure, **options))
    driver.reset(street)
    return driver


def look(driver, vehicles, seconds=1):
    """Vehicles by name: (lane, route); they stand 5 m before the end of their lane."""
    length = driver._network.stop_distance
    for _ in range(seconds):
        seen = [(name, (lane, length.get(lane, 100.0) - 5.0, 0.0)) for name, (lane, _) in vehicles.items()]
        driver.see(seen, (), (), lambda name: vehicles[name][1])


def greens(driver, signal, lane):
    """Whether the signal's chosen stage has green for a lane."""
    network = driver._network
    place = network.ids.index(signal)
    state = driver._stages.states[place][driver._target[place]]
    return any(state[link.index] in "Gg" for link in network.links[place] if link.lane == lane)


def test_greedy_shows_the_phase_whose_lanes_hold_most_vehicles(street):
    side = {f"s{k}": ("side-B_1", ("side-B", "B-east")) for k in range(2)}
    main = {f"m{k}": ("A-B_1", ("A-B", "B-east")) for k in range(3)}
    driver = rule(street)
    look(driver, side)
    driver.states(None)
    assert greens(driver, "B", "side-B_1")
    driver = rule(street)
    look(driver, side | main)
    driver.states(None)
    assert greens(driver, "B", "A-B_1")


def test_pressure_holds_back_what_would_join_a_queue(street):
    # Three wait at A to go east, where twelve wait on two lanes: each lane that feeds these takes 6 from its phase.
    west = {f"w{k}": ("west-A_0", ("west-A", "A-B", "B-east")) for k in range(3)}
    ahead = {f"b{k}": (f"A-B_{k % 2}", ("A-B", "B-east")) for k in range(12)}
    driver = rule(street, is_pressure=True)
    look(driver, west)
    driver.states(None)
    assert greens(driver, "A", "west-A_0")
    driver = rule(street, is_pressure=True)
    look(driver, west | ahead)
    driver.states(None)
    assert not greens(driver, "A", "west-A_0")


def test_guarded_whoever_waited_a_minute_at_red_goes_first(street):
    main = {f"m{k}": ("A-B_1", ("A-B", "B-east")) for k in range(5)}
    side = {"s": ("side-B_1", ("side-B", "B-east"))}
    driver = rule(street, is_pressure=True, guard_s=60.0)
    look(driver, side | main)
    driver.states(None)
    assert greens(driver, "B", "A-B_1")
    driver._stage = driver._target
    look(driver, side | main, seconds=61)
    driver._time = 10
    driver.states(None)
    assert greens(driver, "B", "side-B_1")


def test_every_change_is_three_seconds_of_yellow_and_seven_of_green_at_least(street, tmp_path):
    ways = [("west-A", "B-east"), ("north-A", "A-south"), ("side-B", "A-west")]
    trips = "".join(
        f'<trip id="{k}" depart="{3 * k}" from="{ways[k % 3][0]}" to="{ways[k % 3][1]}"/>' for k in range(60)
    )
    (tmp_path / "t.rou.xml").write_text(f"<routes>{trips}</routes>")
    driver = rule(street)
    shown = {name: [] for name in street.ids}
    states = driver.states

    def record(prices):
        news = dict(states(prices))
        for name, seen in shown.items():
            seen.append(news.get(name, seen[-1] if seen else None))
        return list(news.items())

    driver.states = record
    with Session(street, driver) as session:
        session.reset(Scenario(tmp_path / "t.rou.xml", (), 0, 300, 1, -1, np.zeros((0, 2))))
        while not session.done:
            session.step(np.zeros((2, 9)))
        assert session.totals()["trips_finished"] == 60
    for seen in shown.values():
        runs = [(state, len(list(same))) for state, same in itertools.groupby(seen)]
        assert len(runs) > 3
        for (state, seconds), (following, _) in itertools.pairwise(runs):
            assert seconds == 3 if "y" in state else seconds >= 7
            cut = [a in "Gg" and b not in "Gg" for a, b in zip(state, following, strict=True)]
            assert not any(cut) or "y" in following  # no green ends without a yellow
