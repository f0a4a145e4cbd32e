"""The limits C1..C3 are relative, add up without units, and little demand never breaks the throughput limit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from stream_jax.task import (
    Limits,
    constraint_values,
    costs,
    is_safe_episode,
    physical_state,
    violating_steps,
    violation,
)
from stream_jax.types import RoadMeasurement


def road(queue=0.0, wait=0.0, served=0.0, arrived=0.0, size=2):
    """A road whose intersections all look alike, `queue` halting vehicles at each of eight phases."""
    each = np.ones(size, np.float32)
    return RoadMeasurement(
        queue=np.full((size, 8), queue, np.float32),
        wait=wait * each,
        served=served * each / 15,
        arrived=arrived * each / 15,
        served_window=served * each,
        arrived_window=arrived * each,
        travel_time=np.float32(0.0),
        finished=np.float32(0.0),
        teleports=np.float32(0.0),
    )


class ConstraintsTest(chex.TestCase, parameterized.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    def test_costs_are_shares_of_the_limits_worked_by_hand(self):
        # Queues: 8 * 9.375 = 75 vehicles against 50 -> 0.5. Wait: 150 s against 120 -> 0.25.
        # Served: 60 of 100 against 0.8 -> 1 - 0.6 / 0.8 = 0.25. Sum: 1.
        x = physical_state(road(queue=9.375, wait=150.0, served=60.0, arrived=100.0))
        per_limit = self.variant(costs, static_argnums=1)(x, Limits())
        np.testing.assert_allclose(per_limit, [0.5, 0.25, 0.25], rtol=1e-5)
        np.testing.assert_allclose(self.variant(violation, static_argnums=1)(x, Limits()), 1.0, rtol=1e-5)
        values = self.variant(constraint_values, static_argnums=1)(x, Limits())
        np.testing.assert_allclose([values[name] for name in Limits().names], [75.0, 150.0, 0.6], rtol=1e-5)

    @chex.variants(with_jit=True, without_jit=True)
    def test_a_limit_that_is_just_met_costs_nothing(self):
        x = physical_state(road(queue=6.25, wait=120.0, served=80.0, arrived=100.0))
        np.testing.assert_allclose(self.variant(costs, static_argnums=1)(x, Limits()), 0.0, atol=1e-6)

    @chex.variants(with_jit=True, without_jit=True)
    def test_halving_the_demand_breaks_no_throughput_limit(self):
        cost = self.variant(lambda x: costs(x, Limits()))
        for arrived in (100.0, 50.0, 25.0, 1.0, 0.0):
            x = physical_state(road(served=0.9 * arrived, arrived=arrived))
            assert cost(x)[2] == 0.0

    @chex.variants(with_jit=True, without_jit=True)
    def test_the_longest_wait_and_the_mean_queue_of_unlike_intersections_count(self):
        measured = road()
        measured = measured._replace(
            queue=measured.queue.copy(),
            wait=np.array([30.0, 180.0], np.float32),
            served_window=np.array([130.0, 40.0], np.float32),  # more than arrived: an old queue emptied, counts as all
            arrived_window=np.array([100.0, 100.0], np.float32),
        )
        measured.queue[0, 3] = 12.0
        # Queue (12 + 0) / 2; the longer wait; (1 + 0.4) / 2 served -> 1 - 0.7 / 0.8 = 0.125.
        x = self.variant(physical_state)(measured)
        values = constraint_values(x, Limits())
        np.testing.assert_allclose([values[name] for name in Limits().names], [6.0, 180.0, 0.7], rtol=1e-5)
        np.testing.assert_allclose(costs(x, Limits()), [0.0, 0.5, 0.125], rtol=1e-5)

    @chex.variants(with_jit=True, without_jit=True)
    def test_an_episode_is_safe_when_no_step_breaks_any_limit(self):
        kept = jnp.zeros((4, 3))
        broken = kept.at[1, 0].set(0.1).at[1, 2].set(0.2).at[3, 1].set(1e-6)
        safe, steps = self.variant(is_safe_episode), self.variant(violating_steps)
        assert safe(kept) and steps(kept) == 0
        assert not safe(broken) and steps(broken) == 2  # two limits broken in one step are one violating step

    def test_an_empty_road_is_the_origin(self):
        np.testing.assert_array_equal(physical_state(road()), np.zeros((2, 10)))

    def test_costs_of_a_batch_of_states_are_the_costs_of_each(self):
        batch = jax.random.uniform(jax.random.key(0), (5, 2, 10), maxval=8.0)
        each = jnp.stack([costs(x, Limits()) for x in batch])
        np.testing.assert_allclose(costs(batch, Limits()), each, rtol=1e-6)

    def test_impossible_limits_are_refused(self):
        for wrong in ({"queue": 0.0}, {"wait": -1.0}, {"served": 1.5}):
            with pytest.raises(ValueError, match="limits"):
                Limits(**wrong)
