"""Signals see vehicles far upstream, along their routes, once each, and whether there is room behind the stop line."""

import subprocess

import numpy as np
import pytest

from sim.binaries import find_binary
from sim.eyes import Eyes
from sim.network import GridConfig, build_grid, read_network
from sim.stages import read_stages, state_string
from stream_jax.road.controller import GREEN, RED, YELLOW
from tests.small_networks import main_street

# A fork 250 m upstream of signal A; the stop edge "stop" is 15 m long and is reached over "long" only.
NODES = """<nodes>
  <node id="far" x="-600" y="0"/> <node id="fork" x="-250" y="0" type="priority"/>
  <node id="off" x="-250" y="300"/> <node id="joint" x="-15" y="0" type="priority"/>
  <node id="A" x="0" y="0" type="traffic_light"/> <node id="east" x="300" y="0"/>
  <node id="south" x="0" y="-300"/> <node id="north" x="0" y="300"/>
</nodes>"""
EDGES = [
    ("in", "far", "fork"),
    ("away", "fork", "off"),
    ("long", "fork", "joint"),
    ("stop", "joint", "A"),
    ("out", "A", "east"),
    ("up", "south", "A"),
    ("on", "A", "north"),
]
ROUTES = {"through": ("in", "long", "stop", "out"), "leaves": ("in", "away"), "cross": ("up", "on")}


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forked")
    (folder / "f.nod.xml").write_text(NODES)
    lines = [f'<edge id="{name}" from="{a}" to="{b}" numLanes="1" speed="10"/>' for name, a, b in EDGES]
    (folder / "f.edg.xml").write_text(f"<edges>{''.join(lines)}</edges>")
    command = [find_binary("netconvert"), "-n", "f.nod.xml", "-e", "f.edg.xml", "-o", "f.net.xml"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return read_network(folder / "f.net.xml")


def eyes_of(network, reach_m=400.0):
    stages = read_stages(network)
    return Eyes(network, stages, reach_m), stages


def look(eyes, *vehicles, pending=(), gone=()):
    """Vehicles are named after their route: through, through1, leaves, ..."""
    return eyes.look(vehicles, pending, gone, lambda name: ROUTES[name.rstrip("0123456789")])


def test_a_vehicle_is_seen_beyond_a_fork_and_a_short_stop_edge(forked):
    eyes, stages = eyes_of(forked)
    seen = look(eyes, ("through", ("in_0", 300.0, 10.0)))
    assert seen.count.sum() == 1
    # 50 m to the fork and 250 m from there to the signal, at 10 m/s; junctions take a little of it.
    assert seen.eta.max() == pytest.approx(30.0, abs=1.5)
    assert seen.movement[seen.count > 0].tolist() == [stages.movement_of["stop", "out"][1]]


def test_a_vehicle_that_turns_off_before_the_signal_or_is_too_far_is_not_seen(forked):
    eyes, _ = eyes_of(forked, reach_m=200.0)
    assert look(eyes, ("leaves", ("in_0", 340.0, 10.0))).count.sum() == 0
    assert look(eyes, ("through", ("in_0", 300.0, 10.0))).count.sum() == 0
    assert look(eyes, ("through", ("long_0", 60.0, 10.0))).count.sum() == 1


def test_places_are_in_order_of_distance_and_waiting_counts_standing_seconds(forked):
    eyes, _ = eyes_of(forked)
    for _ in range(3):
        seen = look(eyes, ("through1", ("long_0", 100.0, 10.0)), ("through2", ("stop_0", 10.0, 0.0)))
    row = np.argwhere(seen.count[0].sum(1) == 2).item()
    assert seen.waited[0, row, :2].tolist() == [3.0, 0.0]
    assert seen.eta[0, row, 0] < seen.eta[0, row, 1]


def test_a_vehicle_that_could_not_enter_waits_at_the_beginning_of_its_route(forked):
    eyes, _ = eyes_of(forked)
    for _ in range(5):
        seen = look(eyes, pending=["cross"])
    # "up" is 300 m long; the stop line lies some metres before the middle of the junction.
    assert seen.waited.max() == 5 and 27.0 < seen.eta.max() < 30.5


def test_who_passed_the_signal_or_ended_the_trip_is_forgotten(forked):
    eyes, _ = eyes_of(forked)
    look(eyes, ("through", ("stop_0", 10.0, 5.0)))
    assert look(eyes, ("through", ("out_0", 5.0, 5.0))).count.sum() == 0
    look(eyes, ("cross", ("up_0", 200.0, 0.0)))
    look(eyes, gone=["cross"])
    assert look(eyes, ("cross", ("up_0", 200.0, 9.0))).waited.max() == 0


def test_a_queue_behind_the_stop_line_takes_the_room(forked):
    eyes, stages = eyes_of(forked)
    movement = stages.movement_of["stop", "out"][1]
    assert look(eyes).room[0, movement] > 50
    # A vehicle stands 20 m behind the junction: two more places of 7.5 m.
    assert look(eyes, ("through", ("out_0", 20.0, 0.0))).room[0, movement] == 2
    assert look(eyes, ("through", ("out_0", 20.0, 9.0))).room[0, movement] > 50


def test_vehicles_upstream_are_spread_over_the_lanes_that_serve_their_turn(tmp_path):
    grid = build_grid(GridConfig(size=2), tmp_path)
    eyes, _ = eyes_of(grid)
    route = ("bottom0A0", "bottom0A0.220.00", "A0A1", "A0A1.220.00", "A1top0")
    cars = [(str(k), ("bottom0A0_0", 100.0 + 10.0 * k, 10.0)) for k in range(6)]
    seen = eyes.look(cars, (), (), lambda name: route)
    assert sorted(seen.count[0].sum(1).tolist())[-2:] == [3.0, 3.0]  # two lanes go straight on


def test_nema_pairs_are_the_stages_of_a_recognised_intersection_and_program_greens_those_of_others(tmp_path):
    street = read_network(main_street(tmp_path))
    stages = read_stages(street)
    nema, own = (int(np.flatnonzero(street.is_nema == flag)[0]) for flag in (True, False))
    assert stages.tables.stages[nema] == 8 and stages.tables.stages[own] == len(street.own_greens[own])
    assert read_stages(street, "own").states[nema] == street.own_greens[nema]
    for signal, moves in enumerate(stages.turns):
        assert stages.tables.serves[signal, :, : len(moves)].any(0).all()  # every movement is served somewhere


def test_a_clearance_shows_yellow_only_where_green_ends():
    states = ("GGrr", "GrGg")
    assert state_string(states, 0, 1, YELLOW) == "Gyrr"
    assert state_string(states, 0, 1, RED) == "Grrr"
    assert state_string(states, 1, 1, GREEN) == "GrGg"
