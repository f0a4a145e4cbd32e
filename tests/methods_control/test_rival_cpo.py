"""CPO as a rival: it swings up the public pendulum within its limit on effort, and every step keeps its promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.control import cpo, gaussian_policy, ppo
from experiments.methods.control.cpo import CPOConfig
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig
from tests.methods_control import pendulum

KEY = jax.random.key(0)
LIMIT = 0.12
LEARNING = PPOConfig(discount=0.95, trace=0.9, epochs=3, minibatch=512, critic_rate=3e-3, cost_limit=LIMIT)
CFG = CPOConfig(PolicyConfig(hidden=32, std=0.4, std_bounds=(0.1, 1.0), gain=0.0), LEARNING, rounds=1, radius=0.03)


policy_step = jax.jit(lambda params, samples, excess: cpo.policy_step(params, samples, excess, CFG))
surrogates = jax.jit(lambda old, new, samples: cpo.surrogates(old, new, samples, CFG))


@pytest.fixture(scope="module")
def acted():
    """Rows of a policy that uses all its torque one way, which is dear."""
    learner = cpo.start(KEY, pendulum.TASK, pendulum.BLANK, CFG)
    head = learner.params.actor["params"]["head"]
    pushing = {"params": learner.params.actor["params"] | {"head": head | {"bias": head["bias"] + 0.8}}}
    learner = learner._replace(params=learner.params._replace(actor=pushing))

    def rows(learner):
        driven = pendulum.drive(KEY, lambda key, state: cpo.act(key, learner, state, CFG, True), 8)
        seen = cpo.experience(pendulum.TASK, pendulum.measure_units(pendulum.TASK, driven), driven)
        return ppo.flat_samples(learner.params, seen, CFG.ppo, CFG.policy)

    return learner.params, jax.jit(rows)(learner)


@pytest.mark.slow
def test_the_pendulum_is_swung_up_within_the_limit_on_effort():
    # 44 iterations of 32 episodes of 200 steps are 281 600 steps. PPO without a limit spends 0.26 while it learns.
    learner, curve = pendulum.learn(cpo, CFG, iterations=44, episodes=32)
    score, effort = pendulum.evaluate(cpo, CFG, learner)
    assert score > -300 and effort < LIMIT
    # The first policy breaks the limit; once it is kept it stays kept but for the noise of 32 episodes.
    assert curve[0, 1] > LIMIT
    assert curve[8:, 1].max() < 1.25 * LIMIT


@pytest.mark.parametrize("excess", [-0.3, -0.01, 0.005, 1.0])
def test_a_step_stays_within_the_divergence_and_the_surrogate_cost_within_the_limit(acted, excess):
    params, samples = acted
    new, step, _ = policy_step(params, samples, jnp.asarray(excess))
    moved = gaussian_policy.divergence(params, new, samples.observed, CFG.policy).mean()
    assert 0 < moved <= CFG.radius * 1.001
    before, after = (surrogates(params, some, samples) for some in (params, new))
    assert after.cost - before.cost <= max(-excess, 0.0) + 1e-6
    assert bool(step.recovering) or after.reward >= before.reward


def test_a_recovering_step_lowers_the_cost_and_says_so(acted):
    params, samples = acted
    new, step, _ = policy_step(params, samples, jnp.asarray(1.0))
    assert step.recovering
    assert surrogates(params, new, samples).cost < surrogates(params, params, samples).cost - 1e-3


def test_a_line_search_without_an_acceptable_step_stays_where_it_is(acted):
    params, samples = acted
    _, step, _ = policy_step(params, samples, jnp.asarray(-0.3))
    worse = lambda offset: cpo.Surrogates(-jnp.abs(offset).sum(), jnp.zeros(()), jnp.zeros(()))  # noqa: E731
    offset = cpo.line_search(worse, step, jnp.asarray(-0.3), CFG)
    np.testing.assert_array_equal(offset, np.zeros_like(offset))
