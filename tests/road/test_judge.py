"""Comparisons of a compiled road with SUMO, worked by hand, and the commands at their edges."""

import numpy as np
import pytest

from experiments.cli.main import main
from experiments.road import figures
from experiments.road.controllers import CONTROLLERS, TRAINING
from experiments.road.drives import Course
from experiments.road.fit import Fitted, _to_drivers, _to_numbers, keep, read_drivers
from experiments.road.judge import Compared, rows_of
from stream_jax.road.world import usual_drivers


def world(queue, present, is_safe):
    """Four controllers, two hours, three steps."""
    queue = np.broadcast_to(np.reshape(queue, (4, 1, 1)), (4, 2, 3)).astype(float)
    present = np.broadcast_to(np.reshape(present, (4, 1, 1)), (4, 2, 3)).astype(float)
    return Course(queue, queue, queue, present, np.broadcast_to(np.reshape(is_safe, (4, 1)), (4, 2)).astype(bool))


def test_the_rows_are_those_worked_by_hand():
    sumo = world([1, 2, 4, 8], [100, 200, 300, 400], [1, 1, 0, 0])
    # Queues are 10 % longer; times 5 % longer but for the last, which is ranked between the second and third.
    road = world([1.1, 2.2, 4.4, 8.8], [105, 210, 315, 300], [1, 1, 1, 0])
    rows = {row["metric"]: row for row in rows_of(Compared(("a", "b", "c", "d"), sumo, road))}
    assert rows["queue_error"]["value"] == pytest.approx(0.1)
    assert rows["travel_time_error"]["value"] == pytest.approx(0.05)
    assert rows["kendall_tau"]["value"] == pytest.approx((5 - 1) / 6)  # five of six pairs in order
    assert rows["safe_agreement"]["value"] == 0.75
    assert all(row["lower"] <= row["value"] <= row["upper"] for row in rows.values())


def test_a_page_shows_both_worlds(tmp_path):
    sumo = world([1, 2, 4, 8], [100, 200, 300, 400], [1, 1, 0, 0])
    one = Compared(("look_ahead", "b", "c", "d"), sumo, sumo)
    rows = [{"level": "heavy", **row} for row in rows_of(one)]
    figures.write_page(tmp_path / "page.html", "grid", {"heavy": one}, rows)
    text = (tmp_path / "page.html").read_text()
    assert text.count("<img") == 3 and "kendall_tau" in text


def test_drivers_survive_numbers_and_files(tmp_path):
    usual = usual_drivers()
    for back, there in zip(_to_drivers(_to_numbers(usual)[None], 0), usual, strict=True):
        np.testing.assert_allclose(back, there, rtol=1e-5)
    members = _to_drivers(np.stack([_to_numbers(usual)] * 5))
    keep(tmp_path / "drivers.json", Fitted(usual, members, np.zeros(7)))
    best, five = read_drivers(tmp_path / "drivers.json")
    np.testing.assert_allclose(best.headway_s, usual.headway_s)
    assert five.startup_s.shape == (5,)


def test_fifteen_controllers_are_judged_and_three_are_bad_on_purpose():
    assert len(CONTROLLERS) >= 15 and sum(entry.is_bad for entry in CONTROLLERS.values()) >= 3
    assert set(TRAINING) < set(CONTROLLERS)


def test_a_part_that_does_not_exist_is_refused(capsys):
    assert main(["road", "drive"]) == 2
    assert "fit or judge" in capsys.readouterr().err


def test_options_that_belong_together_are_asked_for(tmp_path):
    assert main(["road", "judge", "--out", str(tmp_path), "--map", "cologne8"]) == 2
