"""The traffic part of the reward: vehicles served, against queues and time spent.

Section 4.3, whose reward has no units; here r = served - 0.5 queue - 0.5 delay with each term divided by what a busy
intersection shows, so that a step is worth about -1 (overload) to 1.
"""

import chex
import jax.numpy as jnp
from jax import Array

from stream_jax.types import RoadMeasurement

SERVED_UNIT = 30.0  # vehicles an intersection lets through in a busy minute
QUEUE_UNIT = 10.0  # halting vehicles at an intersection
PRESENT_UNIT = 30.0  # vehicles on the road or waiting to enter, per intersection
QUEUE_WEIGHT = 0.5
DELAY_WEIGHT = 0.5


def traffic_reward(road: RoadMeasurement, control_s: float = 60.0) -> Array:
    """[] reward of one control step; vmap for more.

    Delay is the time that vehicles spent in the network, waiting to enter included, per intersection: at given demand
    it differs from the time lost by a constant.

    Args:
        control_s: length of the step in seconds.
    """
    chex.assert_rank(road.queue, 2)
    num_signals = road.queue.shape[0]
    served = road.served.mean() * (60.0 / control_s) / SERVED_UNIT
    queue = road.queue.sum(-1).mean() / QUEUE_UNIT
    delay = road.travel_time / (control_s * num_signals) / PRESENT_UNIT
    return (served - QUEUE_WEIGHT * queue - DELAY_WEIGHT * delay).astype(jnp.float32)
