"""Any network with routes becomes a compiled road; what cannot be represented is said."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.compile_road import compile_road, hour_of, joined
from sim.demand import DemandConfig, TripPlanner
from sim.errors import RoadError
from sim.network import read_network
from sim.routes import read_departures
from stream_jax.road.env import World
from stream_jax.road.plans import PlanConfig, plan
from stream_jax.road.world import NEVER, usual_drivers
from tests.small_road import small_network, small_scenario

TOWN = Path(__file__).parents[2] / "examples" / "town.net.xml.gz"


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    network = small_network(folder)
    scenario = small_scenario(network, folder)
    return network, scenario, compile_road(network, [edges for _, edges in read_departures(scenario.route_file)])


def test_a_grid_has_pockets_that_begin_from_the_lane_beside(grid):
    network, _, compiled = grid
    road = compiled.road
    left, through, kerb = (compiled.lanes[f"{network.stop_edges[0]}_{lane}"] for lane in (2, 1, 0))
    # A turn lane of 80 m less the junction is 64 m: eight vehicles of 7.5 m.
    assert road.pocket[left] == 8 and road.behind[left] > 20
    assert road.siblings[left].tolist() == [through] and road.siblings[through].tolist() == [left]
    assert road.siblings[kerb].tolist() == [road.lanes]


def test_a_route_is_the_stop_lines_that_it_crosses(grid):
    network, _, compiled = grid
    signal_of = dict(zip(network.stop_edges, network.approach_signal.tolist(), strict=True))
    wide = compiled.road.turn.shape[1]
    for route, hop in list(compiled.hops.items())[:20]:
        edges = route.split()
        signals = [signal_of[edge] for edge in edges[:-1] if edge in signal_of]
        found = []
        while hop >= 0:
            found.append(int(compiled.road.hop_movement[hop]) // wide)
            if compiled.road.hop_is_last[hop]:
                break
            hop += 1
        assert found == signals


def test_an_hour_has_every_trip_of_the_scenario_at_its_origin(grid):
    network, scenario, compiled = grid
    hour, trips = hour_of(compiled, network, scenario), read_departures(scenario.route_file)
    assert hour.first[-1] == sum(compiled.hops[edges] >= 0 for _, edges in trips)
    for number in range(len(compiled.origins)):
        departures = hour.depart[hour.first[number] : hour.first[number + 1]]
        assert (np.diff(departures) >= 0).all()


def test_shorter_hours_are_filled_up_behind_their_end(grid):
    network, scenario, compiled = grid
    hour = hour_of(compiled, network, scenario)
    short = hour._replace(depart=hour.depart[:-3], hop=hour.hop[:-3], first=np.minimum(hour.first, len(hour.hop) - 3))
    both = joined([hour, short])
    assert both.depart.shape == (2, len(hour.depart)) and both.first[1, -1] == len(hour.hop) - 3


def test_a_route_that_the_road_does_not_know_is_refused(grid):
    network, scenario, compiled = grid
    with pytest.raises(RoadError, match="was not compiled for"):
        hour_of(compiled._replace(hops={}), network, scenario)


def test_a_town_with_programs_of_its_own_is_driven_and_what_is_missing_is_said(tmp_path):
    network = read_network(TOWN)
    planner = TripPlanner(network, DemandConfig(warmup_s=60, duration_s=600))
    scenario = planner.scenario(0, np.ones((8, len(network.ids))), 2, 900.0, (), tmp_path)
    compiled = compile_road(network, [edges for _, edges in read_departures(scenario.route_file)])
    assert any("junctions without signals" in sentence for sentence in compiled.left_out)
    world, hour = World(compiled.road, controller=plan(PlanConfig(30.0))), hour_of(compiled, network, scenario)

    def one(state, key):
        return world.drive(key, state, jnp.zeros((len(network.ids), 9)), usual_drivers())

    state, measured = jax.lax.scan(one, world.begin(hour), jax.random.split(jax.random.key(0), 20))
    there = int((state.lanes.ready < NEVER / 2).sum())
    assert int(state.inserted.sum()) == there + int(state.finished + state.leaving.sum())
    assert float(state.finished) > 0.9 * len(hour.depart) and float(measured.queue.sum()) > 0


def test_trips_without_edges_are_refused(tmp_path):
    path = tmp_path / "trips.xml"
    path.write_text('<routes><trip id="a" depart="0" from="x" to="y"/></routes>')
    with pytest.raises(RoadError, match="duarouter"):
        read_departures(path)
