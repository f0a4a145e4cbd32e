"""Claims about the causal daily profile and the present level."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.gnn.profile import ProfileConfig, anchor, causal_profile, crossed_profile, initial_levels

HORIZON = 2
CFG = ProfileConfig(steps_per_day=6, smoothing=1)


def recording(length=30, cells=3):
    values = jax.random.uniform(jax.random.key(0), (length, cells, 2), minval=1.0, maxval=5.0)
    observed = jax.random.bernoulli(jax.random.key(1), 0.9, values.shape)
    return jnp.where(observed, values, 0.0), observed


def test_profile_of_a_step_rests_on_nothing_within_the_horizon_before_it():
    values, observed = recording()
    profile = jax.jit(causal_profile, static_argnums=(2, 3))
    before = profile(values, observed, HORIZON, CFG)
    origin = 17
    changed = profile(values.at[origin + 1 :].add(9.0), observed.at[origin + 1 :].set(True), HORIZON, CFG)
    until = origin + 1 + HORIZON  # forecasts from the origin read the profile up to here
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:until], before), jax.tree.map(lambda x: x[:until], changed))


def test_a_periodic_day_is_its_own_profile():
    day = jnp.array([1.0, 2.0, 4.0, 8.0, 4.0, 2.0])
    values = jnp.tile(day, 5)[:, None, None]  # one cell, so the city's shape is the cell's
    unsmoothed = ProfileConfig(steps_per_day=6, smoothing=0)
    profile = causal_profile(values, jnp.ones_like(values, bool), HORIZON, unsmoothed)
    chex.assert_trees_all_close(profile.expected[12:18, 0, 0], day, rtol=0.05)


def test_remembered_days_weigh_half_as_much_as_the_day_after():
    # Three days of one slot: 0, 4, and the forecast of the third. Weights 1/2 (yesterday), 1/4 (the day before):
    # sum 2, count 3/4. Prior day: cell mean (0 + 4 + 2) / 3 = 2 (one city mean is added) times shape 2 / 0.75 / 2.
    values = jnp.array([0.0, 4.0, 7.0])[:, None, None]
    cfg = ProfileConfig(steps_per_day=1, smoothing=0, week_weight=0.0)
    profile = causal_profile(values, jnp.ones_like(values, bool), 1, cfg)
    np.testing.assert_allclose(profile.days[2, 0, 0], 0.75)
    np.testing.assert_allclose(profile.expected[2, 0, 0], (2.0 + 2.0 / 0.75) / 1.75, rtol=1e-4)


def test_crossed_profile_ignores_the_steps_own_day_but_for_the_cell_mean():
    values, observed = recording()
    day = slice(12, 18)
    own = crossed_profile(values, observed, CFG)
    louder = crossed_profile(values.at[day].multiply(1.5), observed, CFG)
    # Slots 13..16 smooth over neighbours of other days that all lie outside the changed day.
    chex.assert_trees_all_equal(own.days[13:17], louder.days[13:17])
    change = jnp.abs(louder.expected[13:17] / own.expected[13:17] - 1.0)
    # The prior is one day among the days remembered (1.5 here) and its mean moves by a tenth (a fifth of days by half).
    assert float(change.max()) < 0.1


def test_a_city_at_half_its_usual_level_halves_the_anchor():
    past, future = jnp.full((4, 3, 1), 10.0), jnp.full((HORIZON, 3, 1), 20.0)
    levels = initial_levels(HORIZON, 1)
    seen = anchor(levels, past / 2, jnp.ones_like(past, bool), past, future)
    chex.assert_trees_all_close(seen.future, future / 2, rtol=1e-5)
    chex.assert_trees_all_close(seen.cell, jnp.zeros((3, 1)), atol=1e-6)


def test_a_cell_above_its_city_is_shrunk_by_the_prior():
    # Cell 0 shows 20 where 10 is usual, cells 1 and 2 show 5: the city is at its usual 30. With all four steps
    # weighing w = sum of 0.8176^age = 3.04, cell 0's ratio is (20 w + 1) / (10 w + 1) = 61.8 / 31.4 = 1.968.
    past = jnp.full((4, 3, 1), 10.0)
    values = jnp.broadcast_to(jnp.array([20.0, 5.0, 5.0])[None, :, None], past.shape)
    seen = anchor(initial_levels(HORIZON, 1), values, jnp.ones_like(past, bool), past, past[:HORIZON])
    weight = sum((1 / (1 + np.exp(-1.5))) ** age for age in range(4))
    np.testing.assert_allclose(jnp.exp(seen.cell[0, 0]), (20 * weight + 1) / (10 * weight + 1), rtol=1e-5)


def test_nothing_observed_means_level_one():
    past, future = jnp.full((4, 3, 1), 10.0), jnp.full((HORIZON, 3, 1), 20.0)
    seen = anchor(initial_levels(HORIZON, 1), jnp.zeros_like(past), jnp.zeros_like(past, bool), past, future)
    chex.assert_trees_all_close(seen.future, future)
