"""A user's own trips: when episodes begin, what SUMO drives in them, and what cannot be meant is one sentence."""

import gzip

import numpy as np
import pytest

from experiments.evaluation.drives import scenario_digest
from sim import own_trips
from sim.errors import RoadError
from sim.nema import NemaController
from sim.network import read_network
from sim.session import Session
from tests.small_networks import main_street


def trips_file(folder, departs, name="my.rou.xml"):
    lines = (f'<trip id="{n}" depart="{at}" from="west-A" to="B-east"/>' for n, at in enumerate(departs))
    path = folder / name
    text = f"<routes>{''.join(lines)}</routes>"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def met(network, scenario):
    """Vehicles that SUMO let depart in the episode after its warm-up."""
    with Session(network, NemaController()) as session:
        session.reset(scenario)
        while not session.done:
            session.step(np.zeros((len(network.ids), 9), np.float32))
        return session.totals()["vehicles"]


def test_departures_are_read_from_trips_vehicles_and_flows_of_packed_files_too(tmp_path):
    found = own_trips.read_own_trips(trips_file(tmp_path, [30, 65, 290], "my.rou.xml.gz"))
    assert found.departs.tolist() == [True, True, False, False, True] and found.end_s == 291
    path = tmp_path / "flows.rou.xml"
    path.write_text(
        '<routes><flow id="f" begin="120" end="0:04:00" number="9" from="a" to="b"/>'
        '<vehicle id="v" depart="0"/><vehicle id="w" depart="triggered"/></routes>'
    )
    assert own_trips.read_own_trips(path).departs.tolist() == [True, False, True, True, True]


def test_episodes_begin_where_something_departs_and_end_before_the_trips_do(tmp_path):
    found = own_trips.read_own_trips(trips_file(tmp_path, [*range(600, 1800, 10), *range(5400, 7200, 10)]))
    starts = own_trips.start_minutes(found, 600)
    assert starts[0] == 10 and starts[-1] == (found.end_s - 600) // 60
    assert not set(starts) & set(range(30, 85))  # nothing departs in the five minutes after those
    episodes = own_trips.windows(found, range(1000, 1010), 60, 540, 1.0, 2)
    assert all(one.begin_s // 60 in starts and one.duration_s == 540 for one in episodes)
    assert len({one.begin_s for one in episodes}) == 10
    assert len({scenario_digest(one) for one in episodes}) == 10


def test_short_trips_make_shorter_episodes_of_whole_minutes(tmp_path):
    found = own_trips.read_own_trips(trips_file(tmp_path, range(0, 400, 10)))
    (episode,) = own_trips.windows(found, range(1), 60, 2400, 1.0, 2)
    assert (episode.begin_s, episode.duration_s) == (0, 300)
    with pytest.raises(RoadError, match="over before a warm-up of 600 s"):
        own_trips.windows(found, range(1), 600, 2400, 1.0, 2)


def test_sumo_drives_the_trips_of_the_window_times_the_factor(tmp_path):
    network = read_network(main_street(tmp_path))
    found = own_trips.read_own_trips(trips_file(tmp_path, [0, *range(300, 960, 6)]))
    first = own_trips.windows(found, range(1), 60, 300, 1.0, 2)[0]._replace(begin_s=300)
    assert met(network, first) == 50  # one every six seconds for five minutes
    half, twice = (met(network, first._replace(scale=factor)) for factor in (0.5, 2.0))
    assert abs(half - 25) <= 1 and abs(twice - 100) <= 1
    assert len({scenario_digest(first._replace(scale=factor)) for factor in (0.5, 1.0, 2.0)}) == 3


def test_a_flow_is_entered_in_its_middle(tmp_path):
    network = read_network(main_street(tmp_path))
    path = tmp_path / "flow.rou.xml"
    path.write_text('<routes><flow id="f" begin="0" end="3600" period="10" from="west-A" to="B-east"/></routes>')
    episode = own_trips.windows(own_trips.read_own_trips(path), range(1), 60, 300, 1.0, 2)[0]
    assert abs(met(network, episode._replace(begin_s=1200)) - 30) <= 1


def test_a_configuration_brings_its_begin_its_end_and_its_network(tmp_path):
    net = main_street(tmp_path)
    trips_file(tmp_path, range(0, 3600, 10))
    files = f'<net-file value="{net.name}"/><route-files value="my.rou.xml"/>'
    path = tmp_path / "my.sumocfg"
    path.write_text(f'<configuration>{files}<begin value="600"/><end value="1800"/></configuration>')
    found = own_trips.read_own_trips(path)
    assert found.departs[10] and not found.departs[:10].any() and found.end_s == 1791  # after the last trip
    own_trips.check_network(found, net)
    own_trips.check_network(found, path)
    with pytest.raises(RoadError, match=r"is about the network .*, not other.net.xml"):
        own_trips.check_network(found, tmp_path.relative_to(tmp_path) / "other.net.xml")
    first = own_trips.windows(found, range(1), 60, 300, 1.0, 2)[0]
    assert met(read_network(path), first) == 30
    before = scenario_digest(first)
    trips_file(tmp_path, range(0, 3600, 20))
    assert scenario_digest(first) != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no file of trips"),
        ("<routes/>", "departs"),
        ("<routes>", "is no readable SUMO file"),
        ('<!DOCTYPE r [<!ENTITY a "b">]><routes/>', "declares XML entities"),
    ],
)
def test_what_cannot_be_driven_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "bad.rou.xml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RoadError, match=said):
        own_trips.read_own_trips(path)
