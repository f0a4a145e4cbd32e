"""A session measures what a hand can work out, repeats itself exactly, and fails in one sentence."""

import functools
import os
import signal
import subprocess

import numpy as np
import pytest

from sim.binaries import find_binary
from sim.closures import RoadIncident
from sim.errors import RoadError
from sim.loop import run_episodes
from sim.nema import GREEN, RED, NemaController
from sim.network import GridConfig, build_grid, read_network
from sim.own_programs import NativePrograms, nema_programs
from sim.session import Scenario, Session, SessionConfig

NORTHWARD = "bottom0A0 bottom0A0.220.00 A0A1 A0A1.220.00 A1top0"  # through A0 and A1, phase 8 at both
CAR = '<vType id="car" sigma="0" speedDev="0"/>'  # drives like all others, without chance
A0, A1 = 0, 2  # index in the 2 x 2 grid
NORTHBOUND = 7  # index of phase 8


class Northbound:
    """Phase 8 green everywhere from a given second on, all else red."""

    def __init__(self, first_green: int) -> None:
        self.first_green = first_green

    def reset(self, network):
        self.second = 0

    def update(self, detectors, plan):
        light = np.full((4, 8), RED)
        light[:, NORTHBOUND] = GREEN if self.second >= self.first_green else RED
        self.second += 1
        self.detectors = detectors
        return light


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return build_grid(GridConfig(size=2), tmp_path_factory.mktemp("networks"))


def routes(path, body):
    path.write_text(f"<routes>{CAR}{body}</routes>")
    return path


def cars(count, depart=0):
    route = f'<route edges="{NORTHWARD}"/>'
    return "".join(
        f'<vehicle id="{k}" type="car" depart="{depart}" departSpeed="max" departLane="best">{route}</vehicle>'
        for k in range(count)
    )


def busy(path):
    """Every entry to every exit, 1800 vehicles an hour."""
    pairs = [("bottom0A0", "A1top0"), ("left0A0", "B0right0"), ("right1B1", "A1left1"), ("top1B1", "A0left0")]
    pairs += [("bottom1B0", "A1left1"), ("left1A1", "B0bottom1"), ("top0A1", "B1right1"), ("right0B0", "A1top0")]
    flows = (
        f'<flow id="f{k}" begin="0" end="900" probability="0.0625" from="{a}" to="{b}" departLane="best"/>'
        for k, (a, b) in enumerate(pairs)
    )
    return routes(path, "".join(flows))


def scenario(route_file, warmup_s=0, duration_s=180, incidents=(), seed=1):
    return Scenario(route_file, incidents, warmup_s, duration_s, seed, -1, np.zeros((0, 4)))


def whole_episode(session, episode, actions=None):
    measured = [session.reset(episode)]
    rng = np.random.default_rng(0)
    while not session.done:
        measured.append(session.step(rng.uniform(-1, 1, (4, 9)) if actions is None else actions))
    return measured


def assert_same(left, right):
    assert len(left) == len(right)
    for step, other in zip(left, right, strict=True):
        for name, a, b in zip(step._fields, step, other, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def test_one_car_at_a_red_light_is_measured_as_worked_by_hand(grid, tmp_path):
    with Session(grid, Northbound(first_green=100)) as session:
        steps = whole_episode(session, scenario(routes(tmp_path / "one.rou.xml", cars(1))), np.zeros((4, 9)))[1:]
        totals = session.totals()
    queue, wait, served, arrived = (
        np.array([getattr(s, f) for s in steps]) for f in ("queue", "wait", "served", "arrived")
    )
    # 285 m at 13.89 m/s are 20.5 s, braking at 4.5 m/s2 adds 1.5 s: the car halts in second 22 or 23 and stands until
    # the light turns green at 100: 37 or 38 s of the first minute, 40 s (and no start-up second) of the second.
    halted = queue[0, A0, NORTHBOUND] * 60
    assert 37 <= round(halted) <= 38
    np.testing.assert_allclose(queue[1, A0, NORTHBOUND] * 60, 40, atol=1e-3)
    assert queue.sum() * 60 == pytest.approx(halted + 40)  # nothing is counted elsewhere, the second light is green
    np.testing.assert_allclose(wait[:, A0], [halted, halted + 40, 0], atol=1e-3)
    np.testing.assert_array_equal(wait[:, A1], 0)
    np.testing.assert_array_equal(arrived[:, [A0, A1]], [[1, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(served[:, [A0, A1]], [[0, 0], [1, 0], [0, 1]])
    np.testing.assert_array_equal(steps[2].served_window[[A0, A1]], [1, 1])
    assert [float(s.finished) for s in steps] == [0, 0, 1]
    # From the light, 600 m: 43 s at full speed and 13.89 / (2 * 2.6) = 2.7 s lost in starting, so about 146 s.
    assert steps[0].travel_time == steps[1].travel_time == 60 and 140 <= totals["mean_travel_time_s"] <= 147
    assert totals["mean_travel_time_s"] == sum(float(s.travel_time) for s in steps)
    assert totals["trips_finished"] == totals["vehicles"] == 1 and totals["longest_wait_s"] == wait.max()


def test_the_seconds_of_green_are_those_that_the_driver_showed(grid, tmp_path):
    # Phase 8 is red for 100 s and green from then on: 0, 20 and 60 s of three minutes; nothing else is ever green.
    with Session(grid, Northbound(first_green=100)) as session:
        session.reset(scenario(routes(tmp_path / "one.rou.xml", cars(1))))
        greens = []
        while not session.done:
            session.step(np.zeros((4, 9)))
            greens.append(session.green)
    np.testing.assert_array_equal(np.array(greens)[:, :, NORTHBOUND].T, [[0, 20, 60]] * 4)
    assert np.delete(greens, NORTHBOUND, axis=2).sum() == 0


def test_the_greens_of_an_episode_are_kept_without_its_warm_up(grid, tmp_path):
    # Second 100 lies in the second minute; the first is the warm-up.
    episode = scenario(routes(tmp_path / "one.rou.xml", cars(1)), warmup_s=60, duration_s=120)
    make = functools.partial(Session, grid, Northbound(first_green=100))
    for step_fn in (None, lambda tick: np.zeros((1, 4, 9), np.float32)):
        (driven,) = run_episodes(make, [episode], step_fn, workers=0)
        np.testing.assert_array_equal(driven.green[:, :, NORTHBOUND].T, [[20, 60]] * 4)


def test_vehicles_that_cannot_enter_queue_and_wait_at_their_first_intersection(grid, tmp_path):
    # 100 cars want to start at second 0 on a link that holds 76; all halt in the end, the last since second 0.
    with Session(grid, Northbound(first_green=10_000)) as session:
        steps = whole_episode(session, scenario(routes(tmp_path / "jam.rou.xml", cars(100))), np.zeros((4, 9)))[1:]
    assert steps[0].arrived[A0] == 100 and steps[2].queue[A0, NORTHBOUND] == 100
    assert [float(s.wait[A0]) for s in steps] == [60, 120, 180]
    assert all(s.travel_time == 6000 for s in steps)
    assert session.driver.detectors.queue[A0, NORTHBOUND] == 100
    assert session.driver.detectors.occupied[A0].tolist() == [False] * 7 + [True]
    assert 150 < session.driver.detectors.front_wait[A0, NORTHBOUND] < 160  # the first car halted after some 22 s


def test_a_vehicle_moved_by_force_is_counted_as_such_and_not_as_served(grid, tmp_path):
    # It halts after some 22 s and is lifted over the red light 60 s later; the next approach sees it arrive.
    with Session(grid, Northbound(first_green=10_000), SessionConfig(teleport_s=60)) as session:
        path = routes(tmp_path / "one.rou.xml", cars(1))
        steps = whole_episode(session, scenario(path, duration_s=120), np.zeros((4, 9)))[1:]
    assert [float(s.teleports) for s in steps] == [0, 1] and session.totals()["teleports"] == 1
    assert steps[1].served_window.tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(steps[1].arrived_window[[A0, A1]], [1, 1])
    assert steps[1].wait[A0] in (60, 61)


def test_a_detector_reaches_upstream_of_a_stop_edge_that_is_shorter_than_it(tmp_path):
    # Turn lanes of 17 m leave 1 m of stop edge between two junctions: a car halts before it, in the junction upstream.
    command = [find_binary("netgenerate"), "--grid", "--grid.number", "2", "--grid.attach-length", "300", "-L", "2"]
    command += ["--grid.length", "300", "--turn-lanes", "1", "--turn-lanes.length", "17", "-j", "traffic_light"]
    command += ["--no-turnarounds", "true", "-o", str(tmp_path / "short.net.xml")]
    subprocess.run(command, check=True, capture_output=True)
    network = read_network(tmp_path / "short.net.xml")
    edges = ["bottom0A0", "bottom0A0.283.00", "A0A1", "A0A1.283.00", "A1top0"]
    assert network.is_nema.all() and network.stop_distance[f"{edges[1]}_0"] < 1.5
    path = routes(tmp_path / "one.rou.xml", cars(1).replace(NORTHWARD, " ".join(edges)))
    with Session(network, Northbound(first_green=10_000)) as session:
        session.reset(scenario(path))
        session.step(np.zeros((4, 9)))
    assert session.driver.detectors.occupied[A0].tolist() == [False] * 7 + [True]
    assert session.driver.detectors.front_wait[A0, NORTHBOUND] > 30


def test_the_queue_ahead_is_downstream_of_the_phase_that_feeds_it(grid, tmp_path):
    class OnlyFirst(Northbound):
        def update(self, detectors, plan):
            light = super().update(detectors, plan)
            light[A1] = RED
            return light

    with Session(grid, OnlyFirst(first_green=0)) as session:
        whole_episode(session, scenario(routes(tmp_path / "ahead.rou.xml", cars(10))), np.zeros((4, 9)))
    seen = session.driver.detectors
    assert seen.queue[A1, NORTHBOUND] == 10 and seen.queue.sum() == 10
    # Into the link from A0 to A1: from the west turning left (5), from the east turning right (6), from the south (8).
    assert np.flatnonzero(seen.downstream[A0]).tolist() == [4, 5, 7]
    assert seen.downstream.sum() == 30


def test_with_a_lane_closed_only_one_lane_passes_until_it_opens_again(grid, tmp_path):
    flow = f'<flow id="f" type="car" begin="0" end="420" period="1" from="{NORTHWARD.split()[0]}" to="A1top0"/>'
    path = routes(tmp_path / "flow.rou.xml", flow.replace("/>", ' departSpeed="max" departLane="best"/>'))
    closure = RoadIncident(A0, 60.0, 240.0, "closure", approach=2)
    served = {}
    for name, incidents in (("open", ()), ("closed", (closure,))):
        with Session(grid, Northbound(0)) as session:
            steps = whole_episode(session, scenario(path, 60, 360, incidents), np.zeros((4, 9)))[1:]
            served[name] = [float(s.served[A0]) for s in steps]
            assert session.totals()["teleports"] == 0
    assert min(served["open"]) >= 55  # of 60 that come a minute
    # One lane: 1 s of headway and 7.5 m a car at 13.89 m/s are 1.54 s, 39 a minute.
    assert max(served["closed"][:3]) <= 39 and max(served["closed"][3:]) > 55


def test_the_same_seed_gives_the_same_episode_and_another_seed_another(grid, tmp_path):
    path = busy(tmp_path / "busy.rou.xml")
    with Session(grid, NemaController()) as session:
        first = whole_episode(session, scenario(path, 120, 300))
        again = whole_episode(session, scenario(path, 120, 300))
        other = whole_episode(session, scenario(path, 120, 300, seed=2))
    assert_same(first, again)
    assert any((a.queue != b.queue).any() for a, b in zip(first, other, strict=True))
    # Vehicles are neither lost nor invented: served, or still there.
    served, arrived = first[-1].served_window.sum(), first[-1].arrived_window.sum()
    assert arrived > 150 and arrived - 60 < served <= arrived


def test_libsumo_and_traci_measure_the_same(grid, tmp_path):
    path = busy(tmp_path / "busy.rou.xml")
    closure = (RoadIncident(A0, 30.0, 100.0, "closure", 2),)
    runs = []
    for backend in ("libsumo", "traci"):
        with Session(grid, NemaController(), SessionConfig(backend=backend)) as session:
            runs.append(whole_episode(session, scenario(path, 60, 120, closure)))
    assert_same(*runs)


def test_a_sumo_that_dies_is_an_error_and_closing_stays_clean(grid, tmp_path):
    session = Session(grid, NemaController(), SessionConfig(backend="traci"))
    session.reset(scenario(busy(tmp_path / "busy.rou.xml"), 60, 600))
    os.kill(session.process_id, signal.SIGKILL)
    with pytest.raises(RoadError, match="SUMO stopped in mid-episode"):
        session.step(np.zeros((4, 9)))
    session.close()
    assert session.done


def test_a_second_libsumo_session_in_a_process_is_refused(grid, tmp_path):
    path = busy(tmp_path / "busy.rou.xml")
    with Session(grid, NemaController()) as first, Session(grid, NemaController()) as second:
        first.reset(scenario(path))
        with pytest.raises(RoadError, match="already runs a libsumo session"):
            second.reset(scenario(path))
        first.step(np.zeros((4, 9)))  # the first is unharmed
        first.close()
        second.reset(scenario(path))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("no xml", "invalid document structure|could not start"),
        ('<routes><trip id="0" depart="0" from="nowhere" to="A1top0"/></routes>', "nowhere"),
        (
            '<routes><vehicle id="0" depart="3"><route edges="bottom0A0 A1top0"/></vehicle></routes>',
            "stopped in mid-episode.*no valid route",
        ),
    ],
)
def test_an_invalid_route_file_is_an_error_and_the_next_episode_runs(grid, tmp_path, content, what):
    bad = tmp_path / "bad.rou.xml"
    bad.write_text(content)
    with Session(grid, NemaController()) as session:
        with pytest.raises(RoadError, match=what):
            whole_episode(session, scenario(bad))
        session.reset(scenario(busy(tmp_path / "busy.rou.xml")))


def test_wrong_actions_and_files_are_refused(grid, tmp_path):
    with Session(grid, NemaController()) as session:
        with pytest.raises(RoadError, match="no totals before"):
            session.totals()
        with pytest.raises(RoadError, match="does not exist"):
            session.reset(scenario(tmp_path / "missing.rou.xml"))
        session.reset(scenario(busy(tmp_path / "busy.rou.xml")))
        with pytest.raises(RoadError, match=r"the road needs \(4, 9\)"):
            session.step(np.zeros((3, 9)))
        with pytest.raises(RoadError, match="NaN"):
            session.step(np.full((4, 9), np.nan))
    with pytest.raises(RoadError, match="backend"):
        SessionConfig(backend="telepathy")


def test_sumo_runs_its_own_nema_programs_on_our_phases(grid, tmp_path):
    driver = NativePrograms(nema_programs(grid, tmp_path))
    with Session(grid, driver) as session:
        steps = whole_episode(session, scenario(busy(tmp_path / "busy.rou.xml"), 60, 300), np.zeros((4, 9)))
    assert all((s.served > 0).all() for s in steps[1:])
    assert max(s.wait.max() for s in steps) < 120


def test_signals_with_programs_of_their_own_are_served_in_sequence(tmp_path):
    # The same grid with one lane a link: lefts share it, so no signal is a NEMA one.
    command = [find_binary("netgenerate"), "--grid", "--grid.number", "2", "--grid.attach-length", "200"]
    command += ["-L", "1", "-j", "traffic_light", "--no-turnarounds", "true", "-o", str(tmp_path / "own.net.xml")]
    subprocess.run(command, check=True, capture_output=True)
    network = read_network(tmp_path / "own.net.xml")
    assert not network.is_nema.any()
    with Session(network, NemaController()) as session:
        steps = whole_episode(session, scenario(busy(tmp_path / "busy.rou.xml"), 60, 300), np.zeros((4, 9)))
    assert all((s.served > 0).all() for s in steps[1:])
    assert sum(float(s.teleports) for s in steps) == 0
