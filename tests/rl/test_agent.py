"""The controller acts by its policy, and the filter lets pass what it can certify and replaces what it cannot."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.rl import agent as agents
from stream_jax.rl import safety
from stream_jax.rl.agent import AgentConfig, act
from stream_jax.rl.objective import RewardConfig
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.safety import SafetyConfig
from stream_jax.rl.state import make_state
from tests.rl.toy_road import ADJACENCY, view
from tests.rl.toy_settings import CFG

OFF = dataclasses.replace(CFG, safety=SafetyConfig(mode="none"))
FRESH = agents.init(jax.random.key(0), ADJACENCY, CFG)
STATE = make_state(
    jax.random.uniform(jax.random.key(1), (4, 10)), view(), jnp.full((4, 9), 0.3), jnp.zeros(5), CFG.state
)
_act = jax.jit(act, static_argnames=("cfg", "explore"))


def decide(agent, explore=True, cfg=CFG, key=jax.random.key(2)):  # noqa: B008
    return _act(key, agent, STATE, STATE.plan, ADJACENCY, cfg=cfg, explore=explore)


def trusting(margin):
    """An agent whose filter is in force with the margin given."""
    return FRESH._replace(fitted=jnp.array(True), margin=jnp.array(margin))


def test_before_anything_was_learned_the_default_plan_is_driven_and_nothing_filtered():
    decision = decide(FRESH, explore=False)
    np.testing.assert_array_equal(decision.action, np.zeros((4, 9)))
    explored = decide(FRESH)
    np.testing.assert_array_equal(explored.action, explored.proposed)
    assert int(explored.certificate.source) == safety.POLICY and not bool(explored.certificate.certified)
    assert 0.1 < float(explored.action.std()) < 0.5  # std .3 (1 + .5 sigmoid(-2)) = .32 over 36 draws


def test_what_is_certified_passes_unchanged():
    decision = decide(trusting(-1e3))
    np.testing.assert_array_equal(decision.action, decision.proposed)
    assert bool(decision.certificate.certified) and int(decision.certificate.source) == safety.POLICY


def test_where_nothing_can_be_certified_the_least_excess_is_executed_and_flagged():
    decision = decide(trusting(jnp.inf))
    assert not bool(decision.certificate.certified)
    assert int(decision.certificate.source) == safety.LEAST_EXCESS
    alternatives = decide(trusting(1e3))
    np.testing.assert_array_equal(decision.action, alternatives.action)
    # The proposal is one of the candidates, so what is executed cannot be predicted to be worse.
    unfiltered = decide(trusting(1e3), cfg=OFF)
    np.testing.assert_array_equal(unfiltered.action, unfiltered.proposed)
    assert float(alternatives.certificate.excess) < float(unfiltered.certificate.excess)


def test_a_margin_between_replaces_the_proposal_by_a_certified_action():
    # Between the excess of the proposal and that of the best candidate lies a margin only some candidates meet.
    proposal = decide(trusting(0.0), cfg=OFF).certificate
    best = decide(trusting(1e3)).certificate
    slack = lambda seen: CFG.lyapunov.delta - CFG.lyapunov.kappa * seen.violation + seen.decrease  # noqa: E731
    assert float(slack(best)) > float(slack(proposal))
    decision = decide(trusting(0.5 * float(slack(best) + slack(proposal))))
    assert bool(decision.certificate.certified) and int(decision.certificate.source) != safety.POLICY
    assert float(jnp.abs(decision.action - decision.proposed).max()) > 0


def test_compiled_and_uncompiled_agree_and_batches_are_a_vmap():
    plain = act(jax.random.key(2), trusting(0.0), STATE, STATE.plan, ADJACENCY, OFF, True)
    np.testing.assert_allclose(plain.action, decide(trusting(0.0), cfg=OFF).action, atol=1e-5)
    np.testing.assert_allclose(plain.log_prob, decide(trusting(0.0), cfg=OFF).log_prob, rtol=1e-4)
    keys = jax.random.split(jax.random.key(3), 3)
    batch = jax.jit(jax.vmap(lambda key: act(key, trusting(0.0), STATE, STATE.plan, ADJACENCY, CFG, True)))(keys)
    np.testing.assert_allclose(batch.proposed[1], decide(trusting(0.0), key=keys[1]).proposed, atol=1e-6)
    np.testing.assert_allclose(batch.action[1], decide(trusting(0.0), key=keys[1]).action, atol=1e-4)


def test_the_world_models_spread_widens_exploration():
    typical = FRESH.typical._replace(mean=jnp.zeros(3), sd=jnp.array([jnp.inf, jnp.inf, 1.0]))
    calm = agents.widening(FRESH._replace(typical=typical), STATE, ADJACENCY, CFG)
    louder = jax.tree.map(lambda leaf: 3.0 * leaf, FRESH.world.network.mean)
    world = FRESH.world._replace(network=FRESH.world.network._replace(mean=louder))
    wild = agents.widening(FRESH._replace(typical=typical, world=world), STATE, ADJACENCY, CFG)
    assert bool((wild > calm).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": 1}, "episodes must be at least 2"),
        ({"rounds": 0}, "rounds"),
        ({"reward": RewardConfig(discount=0.9)}, "would not telescope"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(AgentConfig(policy=PolicyConfig(hidden=8)), **change)
