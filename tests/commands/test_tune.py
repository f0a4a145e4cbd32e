"""Tuning moves the controller's numbers as factors, and a candidate's loss is its distance from the beginning."""

import dataclasses
import math

import numpy as np
import pytest

from experiments import tune
from stream_jax.road.controller import LookaheadConfig

BEGUN = LookaheadConfig()


def test_no_move_changes_no_number():
    assert tune.moved(BEGUN, np.zeros(len(tune.TUNED))) == BEGUN


def test_numbers_are_multiplied_and_the_hysteresis_stays_above_one():
    by = np.full(len(tune.TUNED), math.log(2.0))
    moved = tune.moved(BEGUN, by)
    assert moved.cycle_s == pytest.approx(2 * BEGUN.cycle_s)
    assert moved.hysteresis - 1.0 == pytest.approx(2 * (BEGUN.hysteresis - 1.0))
    assert tune.moved(BEGUN, -20 * by).hysteresis >= 1.0


def test_every_tuned_number_is_one_of_the_controllers():
    assert set(tune.TUNED) <= {field.name for field in dataclasses.fields(BEGUN)}


def test_a_faster_drive_has_a_negative_loss_and_a_broken_limit_costs():
    one, other = {"travel_time": 90.0, "violating_steps": 0.0}, {"travel_time": 100.0, "violating_steps": 0.0}
    assert tune.loss(one, other) == pytest.approx(math.log(0.9))
    assert tune.loss(other | {"violating_steps": 2.0}, other) == pytest.approx(2 * tune.STEP_PRICE)
