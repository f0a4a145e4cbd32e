"""Carried scales bring residuals of different days to one law, from the past alone; one anomaly does not throw them."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.flows.residuals import Residuals
from stream_jax.flows.scale import ScaleConfig, ScaleState, rescale, rescale_rows, start_scale

NODES, DIM = 50, 2
CFG = ScaleConfig(city_rate=0.1, cell_rate=0.02)


def rows_of(z, observed=None):
    observed = jnp.ones(z.shape[:-1], bool) if observed is None else observed
    return Residuals(jnp.asarray(z), observed, jnp.ones_like(z), jnp.ones((*z.shape[:-2], DIM)))


def noise(num_steps, seed=0):
    return jax.random.normal(jax.random.key(seed), (num_steps, NODES, DIM))


run = jax.jit(rescale_rows, static_argnums=2)


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: jax.jit(f, static_argnums=2)], ids=["eager", "jit"])
def test_one_step_by_hand(wrap):
    # Scales e^0.5 for both cells: squares 1 and 9 become e^-1 = 0.368 and 9 e^-1 = 3.31, limited to 2.
    state = ScaleState(jnp.asarray(0.3), jnp.array([0.2, 0.2]))
    row = rows_of(jnp.array([[1.0, -1.0], [3.0, 3.0]]))
    moved, scaled = wrap(rescale)(state, row, ScaleConfig(0.1, 0.02, limit=2.0, typical=0.75))
    np.testing.assert_allclose(scaled.z, row.z / math.exp(0.5), rtol=1e-6)
    np.testing.assert_allclose(scaled.unit, math.exp(-0.5), rtol=1e-6)
    np.testing.assert_allclose(moved.city, 0.3 + 0.1 * (0.36788 - 0.75 + 1.25) / 2, rtol=1e-5)
    np.testing.assert_allclose(moved.cell, [0.2 + 0.02 * (0.36788 - 0.75), 0.2 + 0.02 * 1.25], rtol=1e-5)


def test_a_city_and_cells_of_twice_the_noise_come_back_to_one_law():
    wide = jnp.where(jnp.arange(NODES)[:, None] < 10, 2.0, 1.0)
    louder = jnp.where(jnp.arange(800)[:, None, None] >= 400, 2.0, 1.0)
    _, scaled = run(start_scale(NODES), rows_of(noise(800) * wide * louder), CFG)
    spread = lambda part: float(jnp.square(part).mean())  # noqa: E731
    quiet_cells, wide_cells = scaled.z[600:, 10:], scaled.z[600:, :10]
    # Unscaled, the mean squares would be 4 and 16.
    assert spread(quiet_cells) == pytest.approx(spread(scaled.z[300:400, 10:]), rel=0.15)
    assert spread(wide_cells) == pytest.approx(spread(quiet_cells), rel=0.15)


def test_a_step_is_judged_by_the_steps_before_it_only():
    z = noise(20)
    base = run(start_scale(NODES), rows_of(z), CFG)[1].z
    changed = run(start_scale(NODES), rows_of(z.at[10].multiply(50.0)), CFG)[1].z
    np.testing.assert_array_equal(base[:10], changed[:10])
    np.testing.assert_allclose(changed[10], 50.0 * base[10], rtol=1e-6)
    assert not np.allclose(base[11:], changed[11:])


def test_an_absurd_residual_moves_the_scale_no_more_than_a_large_one():
    z = noise(20)
    large, absurd = (run(start_scale(NODES), rows_of(z.at[10, 3].set(size)), CFG)[0] for size in (4.0, 4e6))
    chex.assert_trees_all_close(large, absurd)
    # One anomaly of one cell: at most rate * (limit - typical) = 0.02 * 1.25 in its own scale, 1 / 50 in the city's.
    plain = run(start_scale(NODES), rows_of(z), CFG)[0]
    assert float(jnp.abs(absurd.cell - plain.cell).max()) <= 0.02 * 2.0 + 1e-6
    assert float(jnp.abs(absurd.city - plain.city)) <= 0.1 * 2.0 / NODES + 1e-6


def test_a_cell_that_never_errs_keeps_a_scale_of_at_least_one_over_e():
    state, _ = run(start_scale(NODES), rows_of(jnp.zeros((900, NODES, DIM))), CFG)
    np.testing.assert_allclose(state.cell, -1.0)
    np.testing.assert_allclose(state.city, -1.0)


def test_cells_that_were_not_observed_leave_scales_alone():
    seen = jnp.zeros((5, NODES), bool)
    state, _ = run(start_scale(NODES), rows_of(noise(5), seen), CFG)
    chex.assert_trees_all_equal(state, start_scale(NODES))


def test_steps_one_by_one_equal_the_recording_and_are_traced_once():
    rows = rows_of(noise(6))
    step = jax.jit(chex.assert_max_traces(lambda state, row: rescale(state, row, CFG), n=1))
    state, seen = start_scale(NODES), []
    for at in range(6):
        state, row = step(state, jax.tree.map(lambda leaf, at=at: leaf[at], rows))
        seen.append(row.z)
    end, scaled = run(start_scale(NODES), rows, CFG)
    np.testing.assert_allclose(np.stack(seen), scaled.z, rtol=1e-6)
    chex.assert_trees_all_close(state, end, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"city_rate": -0.1}, {"typical": 3.0}, {"typical": 0.0}])
def test_meaningless_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="must not be negative"):
        ScaleConfig(**wrong)
