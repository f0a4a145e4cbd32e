"""The traffic reward: worked by hand, and moved the right way by each of its terms."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from stream_jax.task import traffic_reward
from stream_jax.types import RoadMeasurement


def road(served: float = 30.0, queue: float = 0.5, travel_time: float = 1800.0, num_signals: int = 2):
    one = jnp.ones(num_signals)
    queues = jnp.full((num_signals, 8), queue)
    zero = jnp.zeros(())
    return RoadMeasurement(queues, one, served * one, one, one, one, jnp.asarray(travel_time), zero, zero)


class TrafficReward(chex.TestCase, parameterized.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_a_step_worked_by_hand(self):
        # served 30 / 30 = 1; queue 8 x 0.5 = 4 of 10; delay 1800 s / (60 s x 2) = 15 of 30: 1 - 0.2 - 0.25.
        found = self.variant(traffic_reward)(road())
        np.testing.assert_allclose(found, 0.55, rtol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_half_a_step_at_the_same_rates_is_worth_the_same(self):
        half = self.variant(lambda r: traffic_reward(r, control_s=30.0))(road(served=15.0, travel_time=900.0))
        np.testing.assert_allclose(half, traffic_reward(road()), rtol=1e-6)

    def test_serving_more_pays_and_queues_and_delay_cost(self):
        slope = jax.grad(traffic_reward)(road())
        assert (slope.served > 0).all() and (slope.queue < 0).all() and slope.travel_time < 0
        chex.assert_trees_all_equal(slope.wait, jnp.zeros(2))


def test_an_empty_road_is_worth_nothing():
    assert traffic_reward(road(0.0, 0.0, 0.0)) == 0.0
