"""Episodes become states and transitions without mixing up before and after."""

import dataclasses

import jax
import numpy as np

from stream_jax.rl.episodes import flat_transitions, states, transitions
from stream_jax.rl.state import StateConfig
from stream_jax.task import Limits, costs
from tests.rl.test_replay import episode

LIMITS, CFG = Limits(queue=1.0), StateConfig()


def test_a_step_leads_from_one_moment_to_the_next_by_the_action_then_in_force():
    one = episode(0)
    steps = jax.jit(transitions, static_argnums=(1, 2))(one, LIMITS, CFG)
    np.testing.assert_array_equal(steps.state.local, one.x[:-1])
    np.testing.assert_array_equal(steps.next_state.local, one.x[1:])
    np.testing.assert_array_equal(steps.next_state.plan, steps.action)
    np.testing.assert_array_equal(steps.state.clock, one.clock[:-1])
    np.testing.assert_array_equal(steps.proposed, one.proposed)
    # A cost belongs to where the step led, and the clock's end is not the road's.
    np.testing.assert_allclose(steps.cost[1], costs(one.x[2], LIMITS), rtol=1e-6)
    np.testing.assert_array_equal(steps.discount, np.ones(3))


def test_an_ablation_of_the_state_needs_no_new_recording():
    blind = states(episode(0), dataclasses.replace(CFG, use_uncertainty=False, use_anomaly=False))
    np.testing.assert_array_equal(blind.sigma, np.zeros((4, 2, 3)))
    np.testing.assert_array_equal(blind.p_value, np.ones((4, 2)))
    np.testing.assert_array_equal(blind.mean, episode(0).view.mean)


def test_stacked_episodes_follow_each_other():
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), episode(0), episode(1))
    flat = flat_transitions(stacked, LIMITS, CFG)
    np.testing.assert_array_equal(flat.state.local[:3], episode(0).x[:-1])
    np.testing.assert_array_equal(flat.next_state.local[3:], episode(1).x[1:])
