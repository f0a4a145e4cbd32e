"""The grid has the phases that its geometry says, and other networks are read as far as they can be recognised."""

import pickle
import subprocess

import numpy as np
import pytest

import sim.binaries
from sim.binaries import find_binary
from sim.closures import Closures, RoadIncident, closing_lane
from sim.demand import closable_sides
from sim.errors import RoadError
from sim.network import GridConfig, build_grid, read_network
from tests.small_networks import main_street

PHASES_OF_A0 = (  # signal A0 of the grid: lane 2 turns left, lanes 0 and 1 go through or right
    ("B0A0.220.00_2",),  # 1: left from the east
    ("left0A0.220.00_0", "left0A0.220.00_1"),  # 2: from the west
    ("bottom0A0.220.00_2",),  # 3: left from the south
    ("A1A0.220.00_0", "A1A0.220.00_1"),  # 4: from the north
    ("left0A0.220.00_2",),  # 5: left from the west
    ("B0A0.220.00_0", "B0A0.220.00_1"),  # 6: from the east
    ("A1A0.220.00_2",),  # 7: left from the north
    ("bottom0A0.220.00_0", "bottom0A0.220.00_1"),  # 8: from the south
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="module")
def grid(cache):
    return build_grid(GridConfig(size=3), cache)


def netgenerate(path, *options):
    command = [find_binary("netgenerate"), *options, "--no-turnarounds", "true", "--output-file", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def same(left, right):
    return pickle.dumps(left) == pickle.dumps(right)


def test_signals_stand_in_rows_from_the_south_west(grid):
    assert grid.ids == ("A0", "B0", "C0", "A1", "B1", "C1", "A2", "B2", "C2")
    np.testing.assert_array_equal(grid.position[:4], [[300, 300], [600, 300], [900, 300], [300, 600]])
    # North, east, south, west of A0, of the centre B1 and of C2.
    np.testing.assert_array_equal(grid.neighbours[[0, 4, 8]], [[3, 1, -1, -1], [7, 5, 1, 3], [-1, -1, 5, 7]])


def test_lanes_belong_to_the_phases_that_the_compass_says(grid):
    assert grid.is_nema.all()
    assert grid.phase_lanes[0] == PHASES_OF_A0


def test_each_link_of_a_signal_is_green_in_exactly_one_phase(grid):
    for links, states, num_links in zip(grid.phase_links, grid.green_states, grid.num_links, strict=True):
        assert sorted(link for phase in links for link in phase) == list(range(num_links)) == list(range(16))
        for phase, state in zip(links, states, strict=True):
            assert [k for k, letter in enumerate(state) if letter in "Gg"] == list(phase)


def test_trips_begin_and_end_at_the_rim(grid):
    assert len(grid.entries) == len(grid.exits) == 12
    at = dict(zip(grid.entries, grid.entry_signal, strict=True)) | dict(zip(grid.exits, grid.exit_signal, strict=True))
    assert (at["bottom2C0"], at["right1C1"], at["B2top1"], at["A0left0"]) == (2, 5, 7, 0)


def test_a_vehicle_belongs_to_the_intersection_ahead_from_the_junction_behind_on(grid):
    ahead = {edge: grid.ids[grid.approach_signal[a]] for edge, a in grid.approach_of.items()}
    assert ahead["A0B0"] == ahead["A0B0.220.00"] == ahead[":A0B0.220.00_0"] == "B0"
    # A0's links 8 and 13 lead east from the south and the west, link 3 from the north in two parts.
    assert ahead[":A0_8"] == ahead[":A0_13"] == ahead[":A0_3"] == ahead[":A0_16"] == "B0"
    assert "A0left0" not in ahead


def test_distances_to_the_stop_line_go_on_upstream_of_the_turn_lanes(grid):
    # The link from A0 to B0 ends 12 m before the centre of B0, its turn lanes begin 80 m before the centre, and each
    # junction of the two parts is 8 m long: 64 m of stop-line lanes; upstream 204 m more, insides not counted.
    assert grid.stop_distance["A0B0.220.00_2"] == pytest.approx(64.0, abs=0.1)
    assert grid.stop_distance["A0B0_0"] == pytest.approx(64.0 + 204.0, abs=0.1)


def test_phases_feed_the_links_that_they_lead_into(grid):
    name = {a: edge for edge, a in grid.approach_of.items() if edge in grid.stop_edges}
    fed = [{name[a] for a in approaches} for approaches in grid.feeds[0]]
    to_b0, to_a1 = "A0B0.220.00", "A0A1.220.00"
    assert fed == [set(), {to_b0}, set(), set(), {to_a1}, {to_a1}, {to_b0}, {to_a1, to_b0}]


def test_reading_the_generated_file_gives_the_same_network_and_generating_again_the_same_file(grid, cache):
    assert same(read_network(grid.net_file), grid)
    written = grid.net_file.stat().st_mtime_ns
    assert same(build_grid(GridConfig(size=3), cache), grid)
    assert grid.net_file.stat().st_mtime_ns == written
    other = build_grid(GridConfig(size=3, link_m=250.0), cache)
    assert other.net_file != grid.net_file and other.position[0].tolist() == [250.0, 250.0]


def test_a_sumo_configuration_stands_for_its_network(grid):
    config = grid.net_file.parent / "town.sumocfg"
    config.write_text(f'<configuration><input><net-file value="{grid.net_file.name}"/></input></configuration>')
    assert same(read_network(config), grid)


def test_three_legged_signals_and_shared_left_lanes_keep_their_own_green_phases(tmp_path):
    # Without attached streets a 2 x 2 grid has corners of two legs; 3 x 3 has rims of three and a centre of four.
    net = read_network(
        netgenerate(tmp_path / "rim.net.xml", "--grid", "--grid.number", "3", "-j", "traffic_light", "-L", "1")
    )
    assert not net.is_nema.any()
    rim = net.ids.index("B0")
    greens = [links for links in net.phase_links[rim] if links]
    assert 2 <= len(greens) <= 8
    for links, state in zip(net.phase_links[rim], net.green_states[rim], strict=True):
        assert links == tuple(k for k, letter in enumerate(state) if letter in "Gg")
    served = {link for links in net.phase_links[rim] for link in links}
    assert served == set(range(net.num_links[rim]))


def test_a_network_without_signals_is_refused(tmp_path):
    path = netgenerate(tmp_path / "plain.net.xml", "--grid", "--grid.number", "3")
    with pytest.raises(RoadError, match="no traffic signals"):
        read_network(path)


def test_files_that_are_no_network_are_refused(tmp_path):
    with pytest.raises(RoadError, match="does not exist"):
        read_network(tmp_path / "nowhere.net.xml")
    (tmp_path / "torn.net.xml").write_text("<net><edge")
    with pytest.raises(RoadError, match="no readable SUMO network"):
        read_network(tmp_path / "torn.net.xml")
    (tmp_path / "empty.sumocfg").write_text("<configuration/>")
    with pytest.raises(RoadError, match="names no net-file"):
        read_network(tmp_path / "empty.sumocfg")


@pytest.mark.parametrize("wrong", [{"size": 1}, {"size": 11}, {"link_m": 100.0}, {"lanes": 0}, {"speed_mps": 0.0}])
def test_impossible_grids_are_refused(wrong):
    with pytest.raises(RoadError):
        GridConfig(**wrong)


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(sim.binaries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("SUMO_HOME", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RoadError, match="netgenerate was not found: install the package eclipse-sumo or set SUMO_HOME"):
        find_binary("netgenerate")


def test_a_closure_takes_the_through_lane_that_no_right_turn_needs_and_lasts_while_any_incident_lasts(grid):
    first, second = RoadIncident(0, 10.0, 30.0, "closure", 2), RoadIncident(0, 20.0, 40.0, "closure", 2)
    lane = closing_lane(grid, first)
    assert lane == "bottom0A0.220.00_1"
    closures = Closures(grid, (first, second))
    told = {t: change for t in range(60) if (change := closures.changes(t))}
    assert told == {10: [(lane, True)], 40: [(lane, False)]}
    with pytest.raises(RoadError, match="no closure"):
        closing_lane(grid, first._replace(signal=9))
    with pytest.raises(RoadError, match="no lane can be closed"):
        closing_lane(grid, first._replace(approach=4))


def test_a_closure_spares_a_lane_that_vehicles_from_a_street_behind_must_use(grid, tmp_path):
    # From B's side street one enters lanes 1 and 2 of the approach to A, of which 2 is for left turns: with lane 1
    # closed they could not go straight on. In the grid two lanes widen to three behind every junction.
    street = read_network(main_street(tmp_path))
    assert frozenset({"B-A_1", "B-A_2"}) in street.entered["B-A"]
    east = RoadIncident(0, 0.0, 1.0, "closure", 1)
    assert closing_lane(street._replace(entered=dict.fromkeys(street.entered, ())), east) == "B-A_1"
    with pytest.raises(RoadError, match="no lane can be closed on side 1"):
        closing_lane(street, east)
    assert [len(closable_sides(grid, signal)) for signal in range(9)] == [4] * 9
