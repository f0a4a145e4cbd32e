"""Claims about the agents' names and about L as a judge of anybody's episodes."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import agents
from experiments.agents import OURS
from sim.demand import DEMAND_LEVELS
from sim.loop import Episode
from stream_jax.rl import agent as agent_parts
from stream_jax.types import RoadMeasurement

HEAVY = DEMAND_LEVELS["heavy"]


def driven(queue):
    """An episode in which every phase of two intersections has these queues, [T + 1]."""
    queue = np.asarray(queue, np.float32)
    steps, signals = len(queue), 2
    flat, none = np.ones((steps, signals), np.float32), np.zeros(steps, np.float32)
    road = RoadMeasurement(
        np.broadcast_to(queue[:, None, None], (steps, signals, 8)), 0 * flat, flat, flat, flat, flat, none, none, none
    )
    return Episode(0, None, road, None, {}, None)


def test_the_judge_counts_the_steps_at_which_l_falls_as_its_condition_asks():
    cfg = agents.agent_config(OURS, "smoke", HEAVY)
    agent = agent_parts.init(jax.random.key(0), jnp.ones((2, 2)) / 2, cfg)
    # Eight phases: the limit of heavy demand, tightened, lies between one and two vehicles each. Below it L may rise by
    # delta at most; above it, it has to fall by more the further the limit is broken.
    assert agents.decrease_share(agent, [driven([0.9, 0.5, 0.2, 0.0])], cfg) == 1.0
    assert agents.decrease_share(agent, [driven([0.0, 3.0, 6.0, 9.0])], cfg) == 0.0
    assert agents.decrease_share(agent, [driven([9.0, 9.0, 9.0, 9.0])], cfg) == 0.0
    assert agents.decrease_share(agent, [driven([0.0, 1.2, 0.0]), driven([0.2, 0.1, 6.0])], cfg) == 0.5


def test_every_variant_can_be_configured_and_those_of_the_aggregation_learn_alike():
    for name in agents.VARIANTS:
        agents.agent_config(name, "default", HEAVY)
    assert set(agents.COVARIANCES) <= set(agents.VARIANTS)
    for name in agents.COVARIANCES:  # only what the city says differs
        assert agents.agent_config(name, "default", HEAVY) == agents.agent_config(OURS, "default", HEAVY)
