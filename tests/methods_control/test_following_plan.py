"""The plan that follows queues is the agent that begins with it and has not learned."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.methods.control import following_plan
from sim.loop import Tick
from sim.nema import decode_action
from stream_jax.rl import agent as agents
from stream_jax.rl import policy, trial
from stream_jax.rl.agent import AgentConfig
from stream_jax.task import physical_state
from stream_jax.types import RoadMeasurement

ROADS, SIGNALS = 3, 4


def tick(queue):
    zeros, ones = np.zeros((ROADS, SIGNALS), np.float32), np.ones((ROADS, SIGNALS), np.float32)
    none = np.zeros(ROADS, np.float32)
    road = RoadMeasurement(queue, 10.0 * ones, zeros, zeros, zeros, zeros, none, none, none)
    everyone = np.ones(ROADS, bool)
    return Tick(road, everyone, everyone, np.zeros(ROADS, int), np.arange(ROADS))


def test_it_does_what_an_agent_does_that_begins_with_it_before_learning():
    queue = np.asarray(jax.random.uniform(jax.random.key(0), (ROADS, SIGNALS, 8), maxval=12.0))
    cfg, adjacency = AgentConfig(), jnp.zeros((SIGNALS, SIGNALS))
    agent = trial.with_gains(agents.init(jax.random.key(1), adjacency, cfg), trial.following_gains())
    seen = tick(queue)
    blank = agents.blank_state(SIGNALS, cfg)
    for road in range(ROADS):
        measured = jax.tree.map(lambda leaf, road=road: jnp.asarray(leaf[road]), seen.road)
        state = blank._replace(local=physical_state(measured))
        expected = policy.mean_action(agent.policy, state, adjacency, cfg.policy)
        np.testing.assert_allclose(following_plan.step_fn(seen)[road], expected, atol=1e-6)


def test_an_empty_road_has_short_greens_and_a_queue_gets_the_longest():
    queue = np.zeros((ROADS, SIGNALS, 8), np.float32)
    queue[0, 0, 3] = 10.0
    plan = [decode_action(action) for action in following_plan.step_fn(tick(queue))]
    # 30 (5 / 30)^tanh(.35) and 70 (7 / 70)^tanh(.35): tanh(.35) is .336.
    np.testing.assert_allclose(plan[1].max_green, np.tile([16.4, 32.3], (SIGNALS, 4)), atol=0.1)
    np.testing.assert_allclose(plan[1].guard, np.full(SIGNALS, 85.0 + 30.0 * np.tanh(0.42)), rtol=1e-5)
    # The only queue is eight times the signal's mean: the term is at its end of 2, .6 - .35 = .25.
    np.testing.assert_allclose(plan[0].max_green[0, 3], 70.0 * (120.0 / 70.0) ** np.tanh(0.25), rtol=1e-5)
    np.testing.assert_allclose(np.delete(plan[0].max_green[0], 3), np.delete(plan[1].max_green[0], 3), rtol=1e-6)
