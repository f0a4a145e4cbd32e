"""Claims about the controller's state: its rows, its clock and its physical part."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl.state import (
    StateConfig,
    advance_clock,
    clip_physical,
    features,
    make_state,
    physical,
    with_neighbours,
)
from stream_jax.types import CityView
from tests.rl.small_road import ADJACENCY, random_state

both = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
FULL = StateConfig()
START = jnp.array([0.0, 1.0, 0.0, 1.0, 0.0])


def example(cfg=FULL):
    view = CityView(jnp.full((2, 4), 1.5), jnp.full((2, 4), 0.2), jnp.array([1.0, 0.01]), jnp.array([0.0, 1.0]))
    return make_state(jnp.full((2, 10), 0.3), view, jnp.full((2, 9), -0.5), START, cfg)


@both
def test_a_row_holds_road_forecast_surprise_plan_and_clock_in_this_order(wrap):
    # -log10(0.01) = 2 of at most 4: a surprise of 0.5.
    rows = wrap(features)(example())
    row = [0.3] * 10 + [1.5] * 4 + [0.2] * 4 + [0.5, 1.0] + [-0.5] * 9 + [0, 1, 0, 1, 0]
    chex.assert_shape(rows, (2, 2 * 4 + 26))
    np.testing.assert_allclose(rows[1], row, atol=1e-6)


def test_surprise_runs_from_zero_at_p_one_to_one_at_p_one_in_ten_thousand():
    state = example()._replace(p_value=jnp.array([1.0, 1e-7]))
    np.testing.assert_allclose(features(state)[:, 18], [0.0, 1.0], atol=1e-6)


def test_a_signal_that_is_switched_off_is_constant_and_keeps_its_shape():
    full, bare = example(), example(StateConfig(use_uncertainty=False, use_anomaly=False))
    chex.assert_trees_all_equal_shapes(full, bare)
    rows = features(bare)
    np.testing.assert_array_equal(rows[:, 14:20], 0.0)  # sigma, surprise, flag
    chex.assert_trees_all_equal(features(full)[:, :14], rows[:, :14])


@both
def test_neighbours_mean_row_follows_the_own_row(wrap):
    rows = jnp.array([[1.0], [10.0], [100.0]])
    # Ends see the middle; the middle sees (1 + 100) / 2.
    np.testing.assert_allclose(wrap(with_neighbours)(rows, ADJACENCY), [[1, 10], [10, 50.5], [100, 10]])


def test_fifteen_minutes_turn_the_clock_and_begin_a_new_forecast_step():
    clock = START
    for step in range(1, 16):
        clock = advance_clock(clock, 60.0, 900.0)
        np.testing.assert_allclose(clock[4], (step % 15) / 15, atol=1e-5)
    angles = 2 * np.pi * np.array([900 / 86_400, 900 / (7 * 86_400)])
    np.testing.assert_allclose(clock[:4:2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(clock[1:4:2], np.cos(angles), atol=1e-5)


def test_after_a_day_the_time_of_day_is_back_and_the_week_is_a_seventh_further():
    day = jax.jit(lambda: jax.lax.fori_loop(0, 1440, lambda _, clock: advance_clock(clock, 60.0, 900.0), START))()
    # 1440 float32 turns, each wrong by at most some 1e-7.
    expected = [0.0, 1.0, np.sin(2 * np.pi / 7), np.cos(2 * np.pi / 7), 0.0]
    np.testing.assert_allclose(day, expected, atol=5e-4)


def test_the_physical_part_depends_on_the_road_alone():
    state, other = random_state(jax.random.key(0)), random_state(jax.random.key(1))
    chex.assert_trees_all_equal(physical(other._replace(local=state.local)), physical(state))


@both
def test_clipping_keeps_what_a_road_can_show(wrap):
    x = jnp.array([[-1.0, 7.0] + [0.5] * 6 + [3.0, 1.5]])
    np.testing.assert_allclose(wrap(clip_physical)(x), [[0.0, 7.0] + [0.5] * 6 + [3.0, 1.0]])
