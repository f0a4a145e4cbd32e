"""A user's .sumocfg is read whole, driven as it says, and refused in one sentence where it cannot be driven."""

import numpy as np
import pytest

from sim.errors import RoadError
from sim.nema import NemaController
from sim.network import read_network
from sim.own_programs import NativePrograms, actuated_programs
from sim.session import Scenario, Session
from sim.sumocfg import demand_of, read_sumocfg
from tests.small_networks import main_street

BEGIN = 3600
OPTIONS = '<net-file value="street.net.xml"/><route-files value="trips/a.rou.xml"/><begin value="3600"/>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("street")
    main_street(place)
    (place / "trips").mkdir()
    trips(place / "trips" / "a.rou.xml", "a", range(BEGIN, BEGIN + 20, 2))
    return place


def trips(path, name, departures):
    one = '<trip id="{}{}" depart="{}" from="west-A" to="B-east"/>'
    path.write_text(f"<routes>{''.join(one.format(name, k, at) for k, at in enumerate(departures))}</routes>")


def config(folder, options, name="my.sumocfg"):
    path = folder / name
    path.write_text(f"<configuration><input>{options}</input></configuration>")
    return path


def drive(path, driver=None, route_file=None, duration_s=240):
    network, said = read_network(path), read_sumocfg(path)
    demand = route_file or demand_of(said)
    whole = Scenario(demand, (), 0, duration_s, 1, -1, np.zeros((0, 2)), said.begin_s, said.file)
    with Session(network, driver or NemaController()) as session:
        session.reset(whole)
        while not session.done:
            session.step(np.zeros((2, 9)))
        return session.totals()


def test_every_part_of_a_configuration_is_read(folder):
    (folder / "detectors.add.xml").write_text("<additional/>")
    options = '<n v="street.net.xml"/><r value="trips/a.rou.xml"/><a value="detectors.add.xml"/>'
    said = read_sumocfg(config(folder, options + '<b value="1:00:00"/><e value="7200"/>'))
    assert (said.network.name, [path.name for path in said.routes]) == ("street.net.xml", ["a.rou.xml"])
    assert ([path.name for path in said.additional], said.begin_s, said.end_s) == (["detectors.add.xml"], 3600, 7200)
    said = read_sumocfg(config(folder, '<net-file value="street.net.xml"/><end value="-1"/>'))
    assert (said.routes, said.begin_s, said.end_s) == ((), 0, None)


def test_a_configuration_is_driven_from_its_begin_with_its_own_trips(folder):
    assert drive(config(folder, OPTIONS))["trips_finished"] == 10


def test_additional_files_are_loaded_also_beside_programs_that_sumo_runs(folder):
    trips(folder / "more.add.xml", "b", range(BEGIN, BEGIN + 10, 2))
    (folder / "more.add.xml").write_text((folder / "more.add.xml").read_text().replace("routes", "additional"))
    path = config(folder, OPTIONS + '<additional-files value="more.add.xml"/>')
    assert drive(path)["trips_finished"] == 15
    programs = actuated_programs(read_network(path), folder / "actuated.add.xml", 3, 5, 50)
    assert drive(path, NativePrograms(programs))["trips_finished"] == 15


def test_a_route_file_that_is_given_beside_it_takes_the_place_of_its_own(folder):
    trips(folder / "other.rou.xml", "c", [BEGIN, BEGIN + 5])
    assert drive(config(folder, OPTIONS), route_file=folder / "other.rou.xml")["trips_finished"] == 2


@pytest.mark.parametrize("duration_s", [120, 900])
def test_nothing_that_departs_is_an_error_after_ten_minutes_or_at_the_end(folder, duration_s):
    trips(folder / "early.rou.xml", "d", [10, 20])  # long before the begin
    path = config(folder, OPTIONS.replace("trips/a", "early"))
    with pytest.raises(RoadError, match=f"no vehicle of .*my.sumocfg departed in the {min(duration_s, 600) // 60} min"):
        drive(path, duration_s=duration_s)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "names no net-file"),
        ('<net-file value="none.net.xml"/>', "names none.net.xml, which does not exist"),
        ('<net-file value="street.net.xml"/>', "names no route-files"),
        (OPTIONS.replace("trips/a", "trips/z"), "names trips/z.rou.xml, which does not exist"),
        (OPTIONS + '<begin value="soon"/>', "begin='soon'"),
        (OPTIONS + '<end value="60"/>', "ends at 60 s, which is not after its begin"),
        ("<begin", "is no readable SUMO configuration"),
    ],
)
def test_a_configuration_that_cannot_be_driven_is_refused_in_a_sentence(folder, options, words):
    path = config(folder, options)
    with pytest.raises(RoadError, match=words):
        demand_of(read_sumocfg(path))


def test_entities_are_not_expanded(folder):
    path = folder / "bomb.sumocfg"
    path.write_text('<!DOCTYPE c [<!ENTITY x "street.net.xml">]><c><net-file value="&x;"/></c>')
    with pytest.raises(RoadError, match="entities"):
        read_sumocfg(path)
