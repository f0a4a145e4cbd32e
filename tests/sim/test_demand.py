"""City flow becomes trips: reproducible to the byte, in the right number and place, with the city's incidents."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from sim.demand import (
    DEMAND_LEVELS,
    CityIncident,
    DemandConfig,
    city_incidents,
    make_scenario,
    trip_rates,
    waking_steps,
)
from sim.errors import RoadError
from sim.network import Network
from sim.routes import edges_of, find_paths, phase_counts, read_roads, read_trips
from tests.small_road import SHORT, small_flow, small_network, small_scenario

HOUR = DemandConfig(warmup_s=0, duration_s=3600)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return small_network(tmp_path_factory.mktemp("net"))


def departures(path: Path) -> np.ndarray:
    return np.array([float(vehicle.get("depart")) for vehicle in ET.parse(path).getroot().iter("vehicle")])


def test_the_same_seed_writes_the_same_bytes_and_another_does_not(grid, tmp_path):
    first = small_scenario(grid, tmp_path / "a", seed=3)
    again = small_scenario(grid, tmp_path / "b", seed=3)
    other = small_scenario(grid, tmp_path / "c", seed=4)
    assert first.route_file.read_bytes() == again.route_file.read_bytes()
    assert first.route_file.read_bytes() != other.route_file.read_bytes()


def test_departures_are_sorted_and_as_many_as_poisson_allows(grid, tmp_path):
    scenario = make_scenario(0, grid, small_flow(), 5, 3000.0, (), tmp_path, HOUR)
    depart = departures(scenario.route_file)
    assert (np.diff(depart) >= 0).all() and depart.min() >= 0 and depart.max() <= 3600
    # Steps 5..8 of flow 20 + step against a mean of 29.5 over 20 steps: 3000 x 26.5 / 29.5 trips in the hour.
    mean = 3000.0 * 26.5 / 29.5
    assert abs(len(depart) - mean) < 4 * np.sqrt(mean)  # four Poisson standard deviations


def test_twice_the_flow_at_an_intersection_is_twice_its_trips():
    flow = np.ones((10, 4))
    flow[6, 2] = 2.0
    rates = trip_rates(flow, 6, 3600.0, (), DemandConfig(duration_s=1800))
    assert rates.shape == (3, 4)  # the warm-up has step 5, then come steps 6 and 7
    np.testing.assert_allclose(rates[1, 2], 2 * rates[1, 0])
    # 3600 vehicles per hour are one a second, shared by four intersections; the mean flow is 41 / 40.
    np.testing.assert_allclose(rates[0], 0.25 * 40 / 41)


def test_a_surge_raises_the_demand_around_it_for_as_long_as_it_lasts():
    events = (CityIncident(1, 6, 7, "surge"),)
    cfg = DemandConfig(duration_s=1800)
    calm, surged = (trip_rates(np.ones((10, 4)), 6, 3600.0, incidents, cfg) for incidents in ((), events))
    expected = calm.copy()
    expected[1, 1] *= cfg.surge
    np.testing.assert_allclose(surged, expected)


@pytest.mark.parametrize("kind", ["accident", "closure", "collision"])
def test_an_incident_of_the_city_closes_a_lane_at_its_intersection(grid, tmp_path, kind):
    # Step 10 begins when the warm-up of 60 s ends; the incident of step 10 alone ends 900 s later, after the episode.
    scenario = small_scenario(grid, tmp_path, incidents=(CityIncident(2, 10, 11, kind),))
    (closure,) = scenario.incidents
    assert (closure.signal, closure.kind) == (2, "closure")
    assert (closure.start_s, closure.end_s) == (60.0, 240.0)


@pytest.mark.parametrize(("kind", "start", "stop"), [("outage", 10, 11), ("closure", 8, 9), ("closure", 11, 12)])
def test_what_does_not_touch_the_road_or_the_episode_closes_nothing(grid, tmp_path, kind, start, stop):
    assert small_scenario(grid, tmp_path, incidents=(CityIncident(2, start, stop, kind),)).incidents == ()


def test_a_cells_incident_belongs_to_the_area_that_holds_most_of_it():
    weights = np.array([[0.2, 1.0, 0.0], [0.7, 0.0, 0.0]])
    events = {
        "start": np.array([1, 2, 3]),
        "stop": np.array([2, 4, 5]),
        "cell": np.array([0, 2, 1]),  # cell 2 lies outside all areas
        "kind": np.array([1, 1, 2]),
        "kinds": np.array(["accident", "surge"]),
    }
    found = city_incidents(events, weights)
    assert found == [CityIncident(1, 1, 2, "accident"), CityIncident(0, 3, 5, "surge")]
    assert city_incidents(None, weights) == []


def test_episodes_begin_in_waking_hours_and_end_inside_their_part():
    slots = np.arange(4 * 96) % (7 * 96)
    steps = waking_steps(slots, (96, 288), DemandConfig())  # 2400 s are three steps
    hour = steps % 96 // 4
    assert hour.min() == 6 and hour.max() == 21
    assert steps.min() >= 97 and steps.max() + 3 <= 288


@pytest.mark.parametrize(
    ("flow", "step", "rate", "said"),
    [
        (np.ones((20, 4)), 20, 100.0, "does not fit in 20 steps"),
        (np.ones((20, 5)), 1, 100.0, "flow must be"),
        (np.zeros((20, 4)), 1, 100.0, "not all zero"),
        (np.ones((20, 4)), 1, 0.0, "positive number"),
    ],
)
def test_demand_that_makes_no_sense_is_refused_in_one_sentence(grid, tmp_path, flow, step, rate, said):
    with pytest.raises(RoadError, match=said):
        make_scenario(0, grid, flow, step, rate, (), tmp_path)


def test_routes_are_connected_and_drivers_differ(grid):
    roads = read_roads(grid)
    paths = find_paths(roads, np.random.default_rng(0), 8)
    turns = set(zip(roads.turn_from.tolist(), roads.turn_to.tolist(), strict=True))
    num_ways = []
    for origin in np.flatnonzero(roads.origin_is_entry & (roads.origin_signal == 0)):
        for goal in np.flatnonzero(roads.goal_is_exit & (roads.goal_signal == 3)):  # the opposite corner
            ways = {edges_of(roads, paths, perception, origin, goal) for perception in range(8)}
            num_ways.append(len(ways))
            for way in ways:
                assert way[0] == roads.origins[origin] and way[-1] == roads.goals[goal]
                assert all(turn in turns for turn in itertools.pairwise(way))
    assert len(num_ways) == 4 and max(num_ways) > 1


def test_every_trip_passes_the_intersection_that_sent_it_out(grid, tmp_path):
    scenario = small_scenario(grid, tmp_path, cfg=SHORT)
    trips = read_trips(scenario.route_file)
    passed = [phase_counts(grid, [trip]).sum() for trip in trips]
    assert len(trips) > 20 and min(passed) >= 1
    np.testing.assert_allclose(phase_counts(grid, trips).sum(), sum(passed))


def test_levels_grow_and_heavy_has_a_queue_limit_that_binds():
    rates = [DEMAND_LEVELS[name].vehicles_per_hour for name in ("moderate", "heavy", "overload")]
    assert rates == sorted(rates) and rates[0] < rates[2]
    assert DEMAND_LEVELS["heavy"].limits.queue < DEMAND_LEVELS["moderate"].limits.queue
