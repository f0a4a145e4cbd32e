"""Claims about the safety filter: it leaves feasible proposals alone, repairs others, and says when it cannot."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl import lyapunov, safety
from stream_jax.rl.lyapunov import LyapunovConfig
from stream_jax.rl.safety import FilterConfigs, FilterParams, SafetyConfig
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import Scaling, init_network
from stream_jax.task import Limits
from tests.rl.small_road import ADJACENCY, INPUTS, INTERSECTIONS, WORLD, random_state

LYAPUNOV = LyapunovConfig(hidden=(8, 4))
CFG = SafetyConfig()
LIMITS = Limits()
X = jnp.full((1, 10), 0.5)  # L = 0.25; 40 vehicles, 60 s; half of the arrivals not served: d_C = 1 - 0.5 / 0.8 = 0.375
ZERO = jnp.zeros((1, 9))


def mean_square(x):
    return (x**2).mean()


def greens_help(action):
    """The next state, better the longer the greens: L(mu) = 0.25 (1 - 0.2 mean a)^2."""
    return X * (1.0 - 0.2 * action.mean())


def choose(next_fn, proposed, previous=ZERO, margin=0.0, cfg=CFG):
    pick = jax.jit(lambda a, b, m: safety.choose(next_fn, mean_square, X, a, b, m, LIMITS, LYAPUNOV, cfg))
    return pick(proposed, previous, margin)


def test_a_feasible_proposal_passes_unchanged():
    proposed = jnp.full((1, 9), 0.9).at[0, 3].set(-0.123)
    action, certificate = choose(greens_help, proposed)
    chex.assert_trees_all_equal(action, proposed)
    assert certificate.certified
    assert certificate.source == safety.POLICY
    assert certificate.excess == 0.0
    # 0.1 * 0.375 - 0.01 = 0.0275 of decrease are needed.
    np.testing.assert_allclose([certificate.value, certificate.violation], [0.25, 0.375], rtol=1e-5)
    np.testing.assert_allclose(certificate.decrease, 0.25 - 0.25 * (1 - 0.2 * proposed.mean()) ** 2, rtol=1e-4)


def test_an_unfeasible_proposal_is_moved_along_the_gradient_no_further_than_needed():
    proposed = jnp.full((1, 9), 0.1)
    action, certificate = choose(greens_help, proposed)
    # (1 - 0.2 a)^2 <= 1 - 0.0275 / 0.25 needs a >= 0.283: four steps of 0.05 from 0.1.
    np.testing.assert_allclose(action, 0.3, rtol=1e-4)
    assert certificate.certified
    assert certificate.source == safety.PROJECTED


def only(allowed):
    """A road that improves under one action alone and shows no gradient on the way there."""
    return lambda action: jnp.where(jnp.abs(action - allowed).max() < 1e-6, 0.5, 1.5) * X


@pytest.mark.parametrize(
    "allowed, source",
    [
        (jnp.full((1, 9), 0.77), safety.PREVIOUS),
        (ZERO, safety.DEFAULT_PLAN),
        (safety.longest_queue_plan(X, 0.5), safety.LONGEST_QUEUE),
    ],
)
def test_fallbacks_are_tried_when_projection_fails(allowed, source):
    action, certificate = choose(only(allowed), jnp.full((1, 9), 0.2), previous=jnp.full((1, 9), 0.77))
    chex.assert_trees_all_close(action, allowed)
    assert certificate.source == source
    assert certificate.certified


def test_of_several_feasible_candidates_the_nearest_to_the_proposal_is_taken():
    # Everything but the proposal's own surroundings is feasible: the default plan is nearer than the previous action.
    road = lambda action: jnp.where(jnp.abs(action - 0.2).max() < 0.1, 1.5, 0.5) * X  # noqa: E731
    action, certificate = choose(road, jnp.full((1, 9), 0.2), previous=jnp.full((1, 9), -0.9))
    chex.assert_trees_all_equal(action, ZERO)
    assert certificate.source == safety.DEFAULT_PLAN


@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_where_nothing_is_feasible_the_least_excess_is_taken_and_flagged(margin):
    # L(mu) = 0.25 * 4 (1 - 0.2 mean a)^2: greens help, but not enough. Ten steps of 0.05 lead from 0.1 to 0.6.
    action, certificate = choose(lambda a: 2.0 * greens_help(a), jnp.full((1, 9), 0.1), margin=margin)
    np.testing.assert_allclose(action, 0.6, rtol=1e-4)
    assert not certificate.certified
    assert certificate.source == safety.LEAST_EXCESS
    # 0.88^2 - 0.25 + 0.0375 - 0.01 = 0.5519, and the margin.
    np.testing.assert_allclose(certificate.excess, 0.5519 + margin, rtol=1e-4)


def test_an_infinite_margin_certifies_nothing_and_still_ranks_the_candidates():
    action, certificate = choose(greens_help, jnp.full((1, 9), 0.1), margin=jnp.inf)
    np.testing.assert_allclose(action, 0.6, rtol=1e-4)
    assert not certificate.certified
    assert jnp.isinf(certificate.excess)


def test_where_nothing_is_feasible_a_gain_smaller_than_predictions_are_off_by_moves_nothing():
    # Ten steps of 0.05 from 0 take L from .25 to .25 * .9^2 = .2025, a gain of .0475; the margin asks for .5.
    coarse = SafetyConfig(resolution=1.0)
    action, certificate = choose(greens_help, ZERO, margin=0.5, cfg=coarse)
    chex.assert_trees_all_equal(action, ZERO)
    assert not certificate.certified and certificate.source == safety.LEAST_EXCESS
    # A tenth of that margin is .05 and still more than the gain; at .08 margins (.04) it is not, and the first iterate
    # within .04 of the least is taken: .25 (1 - .2 a)^2 <= .2425 from a = .076, the second step.
    fine, _ = choose(greens_help, ZERO, margin=0.5, cfg=SafetyConfig(resolution=0.08))
    np.testing.assert_allclose(fine, 0.1, rtol=1e-4)


def test_a_margin_below_zero_still_moves_an_action_to_the_least_excess():
    # Nothing is feasible: the least L(mu) is 0.88^2, far above 0.25. A negative reach would leave no candidate at all.
    worse = lambda a: 2.0 * greens_help(a)  # noqa: E731
    action, certificate = choose(worse, jnp.full((1, 9), 0.1), margin=-0.01, cfg=SafetyConfig(resolution=1.0))
    np.testing.assert_allclose(action, 0.6, rtol=1e-4)
    assert not certificate.certified


def test_projected_actions_stay_in_their_box():
    action, _ = choose(lambda a: 2.0 * greens_help(a), jnp.full((1, 9), 0.9))
    np.testing.assert_allclose(action, 1.0)


@pytest.mark.parametrize("mode", ["soft", "none"])
def test_without_the_hard_filter_the_proposal_passes_and_its_excess_is_logged(mode):
    proposed = jnp.full((1, 9), 0.1)
    action, certificate = choose(lambda a: 2.0 * greens_help(a), proposed, cfg=SafetyConfig(mode=mode))
    chex.assert_trees_all_equal(action, proposed)
    assert not certificate.certified
    assert certificate.source == safety.POLICY
    np.testing.assert_allclose(certificate.excess, 0.98**2 - 0.25 + 0.0275, rtol=1e-4)


def test_the_longest_queue_of_each_ring_gets_more_green():
    x = jnp.zeros((2, 10)).at[0, 2].set(3.0).at[0, 1].set(1.0).at[0, 7].set(0.5)
    plan = np.zeros((2, 9))
    plan[0, 2] = plan[0, 7] = 0.5  # phases 3 and 8; an empty intersection keeps the default plan
    np.testing.assert_allclose(safety.longest_queue_plan(x, 0.5), plan)


def trained_road() -> FilterParams:
    scaling = Scaling(jnp.zeros(INPUTS), jnp.ones(INPUTS), jnp.full(10, 0.3))
    world = WorldParams(init_network(jax.random.key(0), INPUTS, WORLD), scaling, jnp.asarray(jnp.inf))
    return FilterParams(world, lyapunov.init(jax.random.key(1), LYAPUNOV))


@pytest.mark.slow
def test_the_filter_around_the_world_model_is_traced_once_and_vmaps_over_states():
    params, cfgs = trained_road(), FilterConfigs(WORLD, LYAPUNOV, CFG)
    keys = jax.random.split(jax.random.key(2), 4)
    states = jax.vmap(random_state)(keys)
    proposed = jax.random.uniform(jax.random.key(3), (4, INTERSECTIONS, 9), minval=-1.0, maxval=1.0)

    def run(state, action, margin):
        return safety.filter_action(params, state, action, state.plan, margin, ADJACENCY, LIMITS, cfgs)

    single = jax.jit(chex.assert_max_traces(run, n=1))
    margins = jnp.array([0.0, 0.01, -0.1, -5.0])
    together = jax.jit(jax.vmap(run))(states, proposed, margins)
    for i in range(4):
        alone = single(jax.tree.map(lambda leaf, i=i: leaf[i], states), proposed[i], margins[i])
        chex.assert_trees_all_close(alone, jax.tree.map(lambda leaf, i=i: leaf[i], together), rtol=1e-3, atol=1e-4)
    actions, certificates = together
    assert jnp.abs(actions).max() <= 1.0
    # A margin of -5 makes anything feasible; the certificate says of each whether the condition holds.
    assert certificates.certified[3]
    chex.assert_trees_all_equal(actions[3], proposed[3])
    np.testing.assert_array_equal(certificates.certified, certificates.excess == 0.0)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="hard, soft or none"):
        SafetyConfig(mode="strict")
