"""Delays and waits of an episode are what a hand can work out from its trips."""

import numpy as np
import pytest

from experiments.evaluation.trips import METRICS, Watch, trip_metrics
from sim.network import read_network
from tests.small_networks import main_street

TRIP = (
    '<tripinfo id="{}" depart="{}" departDelay="{}" arrival="{}" duration="{}" waitingTime="{}" timeLoss="{}" '
    'speedFactor="1"/>'
)


class Still:
    """A driver that changes nothing."""

    def reset(self, network):
        pass

    def states(self, prices):
        return [("A", "r")]


def test_delay_counts_unfinished_and_never_departed_trips(tmp_path):
    trips = [("a", 0, 0, 50, 50, 10, 20), ("b", 5, 5, -1, 95, 40, 60), ("c", -1, 70, -1, 0, 0, 0)]
    path = tmp_path / "trips.xml"
    path.write_text(f"<tripinfos>{''.join(TRIP.format(*trip) for trip in trips)}</tripinfos>")
    found = trip_metrics(path)
    # Delays 20, 60 + 5 and 70; on the road 50 and 95 s; stood 10 and 40; stood and waited to enter 10, 45 and 70.
    assert found["delay"] == pytest.approx(155 / 3)
    assert (found["trip_time"], found["wait"]) == (72.5, 25.0)
    assert found["p90_wait"] == pytest.approx(np.quantile([10, 45, 70], 0.9))
    assert (found["never_departed"], found["unfinished"], found["trips"]) == (1, 1, 3)


def test_a_wait_ends_at_the_stop_line_and_counts_that_before_entering(tmp_path):
    watch = Watch(Still())
    watch.reset(read_network(main_street(tmp_path)))
    for _ in range(3):
        watch.see([], ["late"], [], None)  # three seconds before it may enter
    for second in range(9):
        lane = "west-A_0" if second < 5 else ":A_0_0" if second < 6 else "A-B_0"
        watch.see([("late", ("outer_0" if second == 9 else lane, 10.0, 0.0))], [], [], None)
    # It stands 5 s before A, then 1 s inside the junction and 3 s on the way to B: the longest wait is 5 s.
    assert watch.measured() == {"longest_wait": 5.0, "queue": pytest.approx(12 / 12 / 2)}
    assert watch.states(None) == [("A", "r")]


def test_every_metric_is_described():
    assert all(len(said.split()) > 3 for said in METRICS.values())
