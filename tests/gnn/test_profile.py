"""Claims about the causal daily profiles, the present level and the experts that are weighed online."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.gnn.profile import (
    ProfileConfig,
    advance,
    causal_anchors,
    causal_profile,
    expert_names,
    follow_city,
    is_weekend,
    start_levels,
)

HORIZON, DAY = 2, 6
CFG = ProfileConfig(steps_per_day=DAY, smoothing=1)
# Two profiles that agree wherever every day is like the others, so that the arithmetic can be followed by hand.
ALONE = ProfileConfig(
    DAY,
    smoothing=0,
    days=((0.5, 0.0),),
    kind_priors=(1.0,),
    cell_memories=(0.5,),
    cell_priors=(1.0,),
    city_memory=0.0,
)


def recording(length=30, cells=3):
    values = jax.random.uniform(jax.random.key(0), (length, cells, 2), minval=1.0, maxval=5.0)
    observed = jax.random.bernoulli(jax.random.key(1), 0.9, values.shape)
    return jnp.where(observed, values, 0.0), observed


def anchors(values, observed, cfg):
    """Of a recording that begins on a Monday at midnight."""
    slot = jnp.arange(len(values), dtype=jnp.int32)
    return jax.jit(causal_anchors, static_argnums=(3, 4))(values, observed, slot, HORIZON, cfg)


def test_an_anchor_rests_on_nothing_after_the_step_that_issued_it():
    values, observed = recording()
    origin = 17
    before = anchors(values, observed, CFG)
    changed = anchors(values.at[origin + 1 :].add(9.0), observed.at[origin + 1 :].set(True), CFG)
    until = origin + 1
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[:until], before), jax.tree.map(lambda x: x[:until], changed))
    assert float(jnp.abs(changed.future[origin + 1] - before.future[origin + 1]).max()) > 0.1


def test_a_periodic_day_is_its_own_profile():
    day = jnp.array([1.0, 2.0, 4.0, 8.0, 4.0, 2.0])
    values = jnp.tile(day, 5)[:, None, None]  # one cell, so the city's shape is the cell's
    profile = causal_profile(values, jnp.ones_like(values, bool), None, HORIZON, 0.5, 2.0, ALONE)
    chex.assert_trees_all_close(profile.expected[12:18, 0, 0], day, rtol=0.05)


def test_remembered_days_weigh_half_as_much_as_the_day_after():
    # Three days of one slot: 0, 4, and the forecast of the third. Weights 1/2 (yesterday), 1/4 (the day before):
    # sum 2, count 3/4. Prior day: cell mean (0 + 4 + 2) / 3 = 2 (one city mean is added) times shape 2 / 0.75 / 2.
    values = jnp.array([0.0, 4.0, 7.0])[:, None, None]
    cfg = ProfileConfig(steps_per_day=1, smoothing=0)
    profile = causal_profile(values, jnp.ones_like(values, bool), None, 1, 0.5, 0.0, cfg)
    np.testing.assert_allclose(profile.days[2, 0, 0], 0.75)
    np.testing.assert_allclose(profile.expected[2, 0, 0], (2.0 + 2.0 / 0.75) / 1.75, rtol=1e-4)


def test_a_city_at_half_its_usual_level_halves_the_anchor():
    usual = jnp.tile(jnp.array([2.0, 4.0, 8.0, 6.0, 4.0, 3.0]), 5)[:, None, None] * jnp.ones((1, 3, 1))
    halved = usual.at[-3:].divide(2.0)
    seen = jnp.ones_like(usual, bool)
    as_usual, low = (anchors(values, seen, ALONE).future[-1] for values in (usual, halved))
    # The running mean behind the prior moves by less than 3 steps of 30, halved: 5 %.
    chex.assert_trees_all_close(low, as_usual / 2, rtol=0.06)


def test_a_cell_above_its_city_is_shrunk_by_the_prior():
    # A flat city of 10 for four days; in the last step cell 0 shows 20, cells 1 and 2 show 5, so the city is as usual.
    # With memory 1/2 the decayed sums before are 10 (1 + 1/2 + ...) = 20, of which half remains: cell 0's ratio is
    # (20 + 10 + 1) / (10 + 10 + 1) = 31 / 21, up to the few per cent that 0.5^24 and the running mean leave.
    values = jnp.full((4 * DAY, 3, 1), 10.0).at[-1, :, 0].set(jnp.array([20.0, 5.0, 5.0]))
    both = anchors(values, jnp.ones_like(values, bool), ALONE)
    np.testing.assert_allclose(both.future[-1, 0, 0, 0], 10.0 * 31 / 21, rtol=0.02)
    # The plain anchor knows the city's level only.
    np.testing.assert_allclose(both.plain[-1, :, 0, 0], 10.0, rtol=0.02)


def followed(counts, usual, cfg, dispersion=1.0):
    """The city's ratio after every step, [L], of counts [L] around `usual` times the level."""
    start = jnp.array([[1.0], [0.0]])

    def step(city, count):
        city = follow_city(city, count[None], jnp.full(1, usual), jnp.asarray(dispersion), cfg)
        return city, city[:, 0]

    return jax.lax.scan(step, start, counts)[1].T


def test_a_given_memory_weighs_the_citys_steps_by_its_powers():
    counts, memory = jnp.array([8.0, 12.0, 5.0]), 0.5
    ratio, evidence = followed(counts, 10.0, ProfileConfig(city_memory=memory))
    np.testing.assert_allclose(evidence[-1], 10.0 * (1.0 + 0.5 + 0.25), rtol=1e-6)
    np.testing.assert_allclose(ratio[-1], (5.0 + 0.5 * 12.0 + 0.25 * 8.0) / 17.5, rtol=1e-6)


def test_the_citys_memory_is_the_steady_kalman_gain_of_its_traffic():
    # A random walk with steps of variance q^2, seen with variance r = dispersion / usual: gain^2 / (1 - gain) = q^2/r.
    for usual, dispersion in ((50.0, 1.0), (50.0, 4.0), (5000.0, 1.0)):
        _, evidence = followed(jnp.full(500, usual), usual, ProfileConfig(), dispersion)
        gain = usual / float(evidence[-1])
        expected = ProfileConfig().city_drift ** 2 * usual / dispersion
        np.testing.assert_allclose(gain**2 / (1.0 - gain), expected, rtol=1e-3)


def test_a_small_and_a_large_city_are_both_followed_better_than_by_one_memory():
    drift = jax.random.normal(jax.random.key(0), (4000,)) * ProfileConfig().city_drift
    level = jnp.exp(0.3 * jnp.sin(jnp.cumsum(drift)))  # wanders, and stays near 1
    errors = {}
    for usual in (50.0, 5000.0):
        counts = jax.random.poisson(jax.random.key(1), usual * level).astype(jnp.float32)
        for memory in (None, 0.3, 0.95):
            # What follows is wanted for the next step, and the wave is three tenths as steep as its phase.
            cfg = ProfileConfig(city_memory=memory, city_drift=0.3 * ProfileConfig().city_drift)
            ratio, _ = followed(counts, usual, cfg)
            errors[usual, memory] = float(jnp.sqrt(jnp.mean((ratio[100:-1] - level[101:]) ** 2)))
    assert errors[50.0, None] < 0.75 * errors[50.0, 0.3]  # one memory is either noisy in the small city
    assert errors[5000.0, None] < 0.75 * errors[5000.0, 0.95]  # or late in the large one


def test_the_filter_finds_its_counting_noise_and_with_it_its_memory():
    # Poisson counts divided by the square root of their mean m have variance 1 and mean sqrt(m), so dispersion
    # 1 / sqrt(m): in any units the steady gain is that of 20 cells of m vehicles, gain^2 / (1 - gain) = q^2 * 20 m.
    cfg, cells, steps = dataclasses.replace(ALONE, cell_priors=(1e6,), city_memory=None), 20, 300
    for mean in (10.0, 1000.0):
        expected = jnp.full((cfg.num_profiles, cells), mean**0.5)
        coming, seen = jnp.broadcast_to(expected, (HORIZON, *expected.shape)), jnp.ones(cells, bool)
        counts = jax.random.poisson(jax.random.key(2), mean, (steps, cells)) / mean**0.5

        def step(levels, value, expected=expected, coming=coming, seen=seen):
            return advance(levels, value, seen, expected, coming, cfg)[0], levels.city[1, 0]

        _, evidence = jax.lax.scan(step, start_levels(cells, HORIZON, cfg), counts)
        gain = np.asarray(cells * mean**0.5 / evidence[100:])
        # Errors of the level add to the noise of a step, a few percent of it; the rest is chance.
        np.testing.assert_allclose((gain**2 / (1.0 - gain)).mean(), cfg.city_drift**2 * cells * mean, rtol=0.2)


def test_a_strong_prior_gives_a_cell_the_shape_of_its_city():
    shape = np.tile([1.0, 2.0, 3.0, 3.0, 2.0, 1.0], 8)
    values = np.repeat(shape[:, None], 9, axis=1)
    values[:, 0] = np.tile([3.0, 2.0, 1.0, 1.0, 2.0, 3.0], 8)  # one cell has a day of its own, with the same mean
    values = jnp.asarray(values, jnp.float32)[..., None]
    seen, weekend = jnp.ones_like(values, bool), jnp.zeros(len(values), bool)
    own, citys = (
        causal_profile(values, seen, weekend, HORIZON, 0.98, 5.0, dataclasses.replace(CFG, smoothing=0), prior).expected
        for prior in (0.01, 1e4)
    )
    np.testing.assert_allclose(own[-6:, 0, 0], values[-6:, 0, 0], rtol=0.02)
    citys_shape = np.asarray(values[-6:].mean(1)[:, 0])
    np.testing.assert_allclose(citys[-6:, 0, 0] / citys[-6:, 0, 0].mean(), citys_shape / citys_shape.mean(), rtol=0.05)
    both = dataclasses.replace(CFG, kind_priors=(1.0, 20.0))
    one, two = (anchors(values, seen, cfg) for cfg in (dataclasses.replace(both, kind_priors=(1.0,)), both))
    assert two.weight.shape[1] - one.weight.shape[1] == len(CFG.cell_memories) * len(CFG.cell_priors)
    assert float(jnp.abs(two.plain[-1] - one.plain[-1])[:, 0].max()) > 0.2  # the plain one is the last of them


def test_nothing_observed_leaves_the_profile_at_its_level():
    values, observed = recording()
    blind = observed.at[20:].set(False)
    future = anchors(jnp.where(blind, values, 0.0), blind, CFG).future
    chex.assert_tree_all_finite(future)
    assert float(future[-1].min()) > 0


def test_days_of_the_same_kind_stand_behind_the_plain_profile():
    # Working days of 2 and weekends of 6; any day weighs 1 and a day of the same kind 99 more. On the second Sunday
    # (10 * 2 + 3 * 6 + 99 * 3 * 6) / (13 + 297) = 1820 / 310, so that the city stands at 6 / 5.871 of its profile; the
    # Monday after is (10 * 2 + 4 * 6 + 99 * 10 * 2) / 1004 = 2024 / 1004 times that. Kinds ignored, it would be 6.45.
    cfg = ProfileConfig(DAY, smoothing=0, kind=(1.0, 99.0), city_memory=0.0, prior=1e-4)
    weekday = (jnp.arange(15 * DAY) // DAY) % 7
    values = jnp.where(weekday >= 5, 6.0, 2.0)[:, None, None]
    plain = anchors(values, jnp.ones_like(values, bool), cfg).plain[14 * DAY - 1, :, 0, 0]
    chex.assert_trees_all_close(plain, jnp.full(HORIZON, 2024 / 1004 * 6 * 310 / 1820), rtol=1e-4)


def test_saturday_and_sunday_are_the_weekend_in_this_week_and_the_next():
    days = is_weekend(jnp.arange(14) * DAY, CFG)
    chex.assert_trees_all_equal(days, jnp.array(([False] * 5 + [True] * 2) * 2))


def test_the_expert_that_is_right_gets_the_weight():
    # Odd days are three times as busy as even ones: remembering one day is wrong, the same level holds within a day.
    # A cell's own level jumps by a factor at mid-recording; the expert with the long memory errs for longer.
    rng = np.random.default_rng(0)
    level = np.where(np.arange(20 * DAY) < 10 * DAY, 1.0, np.array([[4.0], [0.25]])).T  # [L, 2]
    values = jnp.asarray(rng.poisson(50 * level)[..., None] / 50.0, jnp.float32)
    cfg = ProfileConfig(DAY, days=((0.9, 0.0),), cell_memories=(0.3, 0.99), cell_priors=(0.1,))
    weight = anchors(values, jnp.ones_like(values, bool), cfg).weight[..., 0]  # [L, 3 profiles x 2 memories]
    just_after = weight[10 * DAY + HORIZON + 2]
    assert float(just_after[::2].sum()) > 0.9  # short memories
    chex.assert_trees_all_close(weight.sum(-1), jnp.ones(len(weight)), rtol=1e-5)


def test_every_expert_has_a_name_of_its_own():
    names = expert_names(CFG)
    assert len(set(names)) == len(names) == CFG.num_profiles * len(CFG.cell_memories) * len(CFG.cell_priors)
