"""The warm-up: measured by its end, driven by whoever drives the rest, and left out of the totals."""

import numpy as np
import pytest

from sim.errors import RoadError
from sim.nema import NemaController
from sim.network import GridConfig, build_grid
from sim.session import Session
from tests.sim.test_session import A0, NORTHBOUND, Northbound, assert_same, busy, cars, routes, scenario


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return build_grid(GridConfig(size=2), tmp_path_factory.mktemp("networks"))


def test_the_warm_up_is_measured_by_its_last_step_and_left_out_of_the_totals(grid, tmp_path):
    path = routes(tmp_path / "warm.rou.xml", cars(1))
    with Session(grid, Northbound(first_green=100)) as session:
        measured = session.reset(scenario(path, warmup_s=90, duration_s=60))
        np.testing.assert_allclose(measured.queue[A0, NORTHBOUND], 1.0)  # seconds 30 to 90: it stands all the time
        assert measured.arrived_window[A0] == 1 and measured.arrived[A0] == 0
        session.step(np.zeros((4, 9)))
        assert session.done
        assert session.totals()["vehicles"] == 0 and session.totals()["trips_finished"] == 1
        with pytest.raises(RoadError, match="episode is over"):
            session.step(np.zeros((4, 9)))


def test_whoever_drives_the_warm_up_drives_its_whole_steps_and_totals_begin_at_its_end(grid, tmp_path):
    path = busy(tmp_path / "busy.rou.xml")
    with Session(grid, NemaController()) as session:
        told = [session.reset(scenario(path, warmup_s=150, duration_s=60))]
        told += [session.step(np.zeros((4, 9)))]
        own = [session.reset(scenario(path, warmup_s=150, duration_s=60), warm_up=False)]
        steps = [session.control_step]
        while not session.done:
            own.append(session.step(np.zeros((4, 9))))
            steps.append(session.control_step)
        assert steps == [-2, -1, 0, 1]  # 30 s of rest, then two minutes
        assert_same(told, own[2:])
        totals = session.totals()
        assert totals["longest_wait_s"] == own[-1].wait.max()  # of the one step that is judged
        assert totals["trips_finished"] == own[-1].finished
        other = [session.reset(scenario(path, warmup_s=150, duration_s=60), warm_up=False)]
        while not session.done:
            other.append(session.step(np.full((4, 9), -1.0)))
    assert 0 < totals["vehicles"] < own[-1].arrived_window.sum()  # those of the warm-up are not counted
    assert any((a.queue != b.queue).any() for a, b in zip(own[:3], other[:3], strict=True))
