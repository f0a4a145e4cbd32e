"""Claims about the world model: what its members learn, how they differ, and what imagination does with them."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.fit import TrainConfig
from stream_jax.rl import world_model
from stream_jax.rl.spectral import exact_norm
from stream_jax.rl.state import physical
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import Scaling, WorldConfig, apply, init_network
from tests.rl.small_road import ADJACENCY, INPUTS, INTERSECTIONS, WORLD, random_state, recording

TRAINING = TrainConfig(learning_rate=1e-2, batch=32, epochs=12, patience=12)
both = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])


def untrained(limit: float = jnp.inf, change: float = 0.1) -> WorldParams:
    scaling = Scaling(jnp.zeros(INPUTS), jnp.ones(INPUTS), jnp.full(10, change, jnp.float32))
    return WorldParams(init_network(jax.random.key(3), INPUTS, WORLD), scaling, jnp.float32(limit))


def act(key, state):
    """A random change of the plan; keeps its size to be looked at."""
    move = 0.3 * jax.random.normal(key, state.plan.shape)
    return jnp.clip(state.plan + move, -1.0, 1.0), {"size": jnp.abs(move).sum()}


# Shared by the tests below, which all use the same shapes: traced once by all of them together.
roll = jax.jit(
    chex.assert_max_traces(
        lambda key, params, start: world_model.imagine(key, params, act, start, ADJACENCY, WORLD), n=1
    )
)


@pytest.fixture(scope="module")
def episode():
    return recording(jax.random.key(0), 400)


@pytest.fixture(scope="module")
def fitted(episode):
    learned = jax.tree.map(lambda leaf: leaf[:300], episode)
    return world_model.fit(jax.random.key(1), learned, ADJACENCY, WORLD, TRAINING)


@both
def test_without_a_correction_the_next_state_is_the_present_one(wrap):
    params = untrained()
    params = params._replace(network=jax.tree.map(jnp.zeros_like, params.network))
    state = random_state(jax.random.key(4))
    prediction = wrap(lambda s, a: world_model.predict(params, s, a, ADJACENCY, WORLD))(state, state.plan)
    chex.assert_shape([*prediction], (5, INTERSECTIONS, 10))
    np.testing.assert_allclose(prediction.mean, np.broadcast_to(state.local, (5, INTERSECTIONS, 10)), rtol=1e-6)
    # The squeezed head stands at the middle of its bounds, (-4 + 1.5) / 2, in units of a change of 0.1.
    np.testing.assert_allclose(prediction.sigma, 0.1 * np.exp(-1.25), rtol=1e-6)
    assert world_model.disagreement(prediction) < 1e-6


def test_members_together_answer_as_each_alone():
    network = untrained().network
    rows = jax.random.normal(jax.random.key(5), (INTERSECTIONS, INPUTS))
    mean, log_sigma = apply(network, rows, WORLD)
    for k in range(5):
        alone = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], network)
        chex.assert_trees_all_close(apply(alone, rows, WORLD), (mean[k : k + 1], log_sigma[k : k + 1]), atol=1e-5)


def test_a_member_has_the_gradient_that_it_would_have_alone():
    network = untrained().network
    keys = jax.random.split(jax.random.key(6), 3)
    batch = world_model._Batch(
        jax.random.normal(keys[0], (8, INTERSECTIONS, INPUTS)),
        jax.random.normal(keys[1], (8, INTERSECTIONS, 10)),
        jax.random.poisson(keys[2], 1.0, (8, 5)).astype(jnp.float32),
    )
    gradient = jax.jit(jax.grad(lambda net, data: world_model._loss(None, net, data, jnp.ones(8), None, WORLD)))
    together = gradient(network, batch)
    for k in (0, 4):
        one = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], network)
        alone = gradient(one, batch._replace(dealt=batch.dealt[:, k : k + 1]))
        chex.assert_trees_all_close(alone, jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], together), atol=1e-5)


def test_every_member_is_dealt_as_many_transitions_as_there_are_and_not_the_same():
    raw = jnp.zeros((200, INTERSECTIONS, INPUTS))
    dealt = world_model._examples(jax.random.key(7), raw, raw[..., :10], untrained().scaling, WORLD).dealt
    np.testing.assert_array_equal(dealt.sum(axis=0), 200.0)
    assert len({tuple(np.asarray(column)) for column in dealt.T}) == 5
    # A transition is missed with probability (1 - 1/200)^200 = 0.367; 1000 of them have a standard error of 0.011.
    assert abs(float((dealt == 0).mean()) - 0.367) < 4 * 0.011


@pytest.mark.slow
def test_what_was_learned_beats_persistence_and_the_five_members_differ(episode, fitted):
    fresh = jax.tree.map(lambda leaf: leaf[300:], episode)
    error = world_model.model_error(fitted, fresh, ADJACENCY, WORLD)
    still = fitted._replace(network=jax.tree.map(jnp.zeros_like, fitted.network))
    persistence = world_model.model_error(still, fresh, ADJACENCY, WORLD)
    assert error.upper < 0.7 * persistence.absolute
    first = jax.tree.map(lambda leaf: leaf[0], fresh)
    means = world_model.predict(fitted, first.state, first.action, ADJACENCY, WORLD).mean
    distance = jnp.abs(means[:, None] - means[None]).max(axis=(2, 3)) + jnp.eye(5)
    assert distance.min() > 1e-3


def test_every_layer_is_held_to_its_coefficient_exactly(fitted):
    layers = [*fitted.network.trunk, fitted.network.mean, fitted.network.spread]
    assert max(exact_norm(layer.weight).max() for layer in layers) <= WORLD.coefficient


def test_the_limit_is_the_95_percent_quantile_of_held_out_disagreement(episode, fitted):
    # Blocks of 5 steps, every fifth held out: 60 of 300 steps, of which at most 5 % may exceed it.
    rows = np.flatnonzero((np.arange(300) // 5) % 5 == 4)
    held_out = jax.tree.map(lambda leaf: leaf[rows], episode)

    def spread(transition):
        prediction = world_model.predict(fitted, transition.state, transition.action, ADJACENCY, WORLD)
        return world_model.disagreement(prediction)

    values = np.asarray(jax.jit(jax.vmap(spread))(held_out))
    assert rows.size == 60
    assert (values > float(fitted.disagreement_limit) * (1 + 1e-5)).sum() <= 3
    assert (values >= float(fitted.disagreement_limit) * (1 - 1e-5)).sum() >= 3


@pytest.mark.slow
def test_a_warm_start_goes_on_from_where_it_was(episode, fitted):
    still = TrainConfig(learning_rate=1e-12, batch=300, epochs=1, patience=1, weight_decay=0.0)
    again = world_model.fit(jax.random.key(9), episode, ADJACENCY, WORLD, still, init=fitted)
    chex.assert_trees_all_close(again.network, fitted.network, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_equal(again.scaling, fitted.scaling)


def test_too_few_transitions_are_refused():
    with pytest.raises(ValueError, match="20 transitions leave none to hold out"):
        world_model.fit(jax.random.key(0), recording(jax.random.key(0), 20), ADJACENCY, WORLD, TRAINING)


def test_a_bad_activation_is_refused():
    with pytest.raises(ValueError, match="activation must be one of"):
        WorldConfig(activation="step")


def test_the_mean_next_state_is_one_that_a_road_can_show():
    params = untrained(change=5.0)
    state = random_state(jax.random.key(10))
    x = world_model.mean_next(params, state, state.plan, ADJACENCY, WORLD)
    assert x.min() == 0.0
    assert x[:, 9].max() <= 1.0


def test_imagination_is_the_loop_over_steps_and_is_traced_once(fitted):
    start, key = random_state(jax.random.key(11)), jax.random.key(12)
    rollout = roll(key, fitted, start)
    roll(jax.random.key(13), fitted, random_state(jax.random.key(14)))
    member_key, scan_key = jax.random.split(key)
    member = jax.random.randint(member_key, (), 0, 5)
    step = jax.jit(lambda k, s: world_model.imagine_step(k, fitted, act, s, member, ADJACENCY, WORLD))
    state, alive = start, True
    for time, step_key in enumerate(jax.random.split(scan_key, WORLD.horizon)):
        expected, spread = step(step_key, state)
        alive = alive and bool(spread <= fitted.disagreement_limit)
        actual = jax.tree.map(lambda leaf, time=time: leaf[time], rollout.transitions)
        chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert bool(rollout.alive[time]) == alive
        state = expected.next_state


def test_imagined_steps_hold_the_city_move_the_clock_and_take_the_action_as_the_next_plan():
    start = random_state(jax.random.key(15))
    steps = roll(jax.random.key(16), untrained(), start)
    after = steps.transitions.next_state
    np.testing.assert_array_equal(after.mean, np.broadcast_to(start.mean, after.mean.shape))
    np.testing.assert_array_equal(after.p_value, np.broadcast_to(start.p_value, after.p_value.shape))
    np.testing.assert_allclose(after.clock[:, 4], np.arange(1, 7) / 15, rtol=1e-5)
    chex.assert_trees_all_equal(after.plan, steps.transitions.action)
    chex.assert_trees_all_equal(physical(after), steps.transitions.x_next)
    np.testing.assert_array_equal(physical(steps.transitions.state)[1:], steps.transitions.x_next[:-1])
    assert steps.transitions.aux["size"].shape == (WORLD.horizon,)


def test_one_member_leads_a_rollout_and_its_head_makes_the_noise():
    quiet = dataclasses.replace(WORLD, log_sigma=(-40.0, -39.0))
    params, start = untrained(), random_state(jax.random.key(17))

    def leaders(key):
        """Whether each step's x is each member's mean: [horizon, K]."""
        steps = world_model.imagine(key, params, act, start, ADJACENCY, quiet).transitions
        means = jax.vmap(lambda s, a: world_model.predict(params, s, a, ADJACENCY, quiet).mean)(
            steps.state, steps.action
        )
        clipped = jnp.maximum(means, 0.0).at[..., 9].min(1.0)
        return jnp.abs(clipped - steps.x_next[:, None]).max(axis=(2, 3)) < 1e-5

    match = np.asarray(jax.jit(jax.vmap(leaders))(jax.random.split(jax.random.key(18), 40)))  # [40, horizon, K]
    np.testing.assert_array_equal(match.sum(axis=2), 1)
    np.testing.assert_array_equal(match, np.broadcast_to(match[:, :1], match.shape))
    # Each of 5 members leads one of 40 rollouts or more but with probability 5 (4/5)^40 < 0.001.
    assert match[:, 0].any(axis=0).all()


@pytest.mark.parametrize("limit", [-1.0, "middle", np.inf])
def test_a_rollout_ends_at_the_first_step_of_too_much_disagreement(limit):
    start = random_state(jax.random.key(19))
    spread = np.asarray(roll(jax.random.key(20), untrained(), start).disagreement)
    limit = float(np.median(spread)) if limit == "middle" else limit
    rollout = roll(jax.random.key(20), untrained(limit), start)
    np.testing.assert_array_equal(rollout.alive, np.cumprod(spread <= limit).astype(bool))
    np.testing.assert_array_equal(rollout.disagreement, spread)


def test_vmapped_rollouts_are_the_single_ones(fitted):
    keys = jax.random.split(jax.random.key(21), 3)
    starts = jax.vmap(random_state)(jax.random.split(jax.random.key(22), 3))
    together = jax.jit(jax.vmap(lambda k, s: world_model.imagine(k, fitted, act, s, ADJACENCY, WORLD)))(keys, starts)
    for i in range(3):
        alone = roll(keys[i], fitted, jax.tree.map(lambda leaf, i=i: leaf[i], starts))
        chex.assert_trees_all_close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone, rtol=1e-4, atol=1e-5)


def test_model_error_is_the_mean_distance_and_only_the_papers_ratio_feels_the_floor(episode):
    still = untrained()
    still = still._replace(network=jax.tree.map(jnp.zeros_like, still.network))
    fresh = jax.tree.map(lambda leaf: leaf[:40], episode)
    before, after = (np.asarray(physical(state)).reshape(40, -1) for state in (fresh.state, fresh.next_state))
    distance, size = np.linalg.norm(after - before, axis=1), np.linalg.norm(after, axis=1)
    small, large = (world_model.model_error(still, fresh, ADJACENCY, WORLD, floor=floor) for floor in (0.1, 1.0))
    np.testing.assert_allclose(small.errors, distance, rtol=1e-4)
    np.testing.assert_allclose(small.absolute, distance.mean(), rtol=1e-4)
    np.testing.assert_allclose(small.relative, (distance / (size + 0.1)).mean(), rtol=1e-4)
    assert small.upper > small.absolute
    assert large.relative < small.relative
    chex.assert_trees_all_equal(large[:2], small[:2])
