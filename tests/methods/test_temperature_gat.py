"""Temperature-scaled graph attention: its output, and that it listens along edges and nowhere else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import temperature_gat
from experiments.methods.forecasting.temperature_gat import TemperatureGat, TemperatureGatConfig
from stream_jax.fit import TrainConfig
from stream_jax.gnn.attention import neighbour_table
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 1)
SMALL = TemperatureGatConfig(
    history=1, horizon=1, steps_per_day=tiny_tasks.DAY, layers=1, hidden=16, heads=2, dropout=0.0, calendar=False
)
TRAINING = TrainConfig(learning_rate=1e-2, batch=32, epochs=20, patience=20)


def test_a_layer_reaches_one_edge_far_and_each_further_layer_one_more():
    # The path 0 -> 1 -> 2 -> 3, seen from cell 3.
    table = neighbour_table(tiny_tasks.recording(np.zeros((600, 4)), [(0, 1), (1, 2), (2, 3)]).graph)
    inputs, slot = jax.random.normal(KEYS[0], (1, 1, 4, 1)), jnp.zeros(1, int)
    for layers in (1, 2):
        network = TemperatureGat(dataclasses.replace(SMALL, layers=layers), outputs=3)
        variables = jax.jit(network.init)(KEYS[0], inputs, slot, table)
        assert network.apply(variables, inputs, slot, table).shape == (1, 4, 3)
        slope = jax.jit(jax.grad(lambda x: network.apply(variables, x, slot, table)[0, 3, 0]))(inputs)  # noqa: B023
        np.testing.assert_array_equal(slope[0, 0, :, 0] != 0, np.arange(4) >= 3 - layers)


@pytest.mark.slow
@pytest.mark.parametrize(("joined", "low", "high"), [(True, 0.0, 5.0), (False, 9.0, 12.0)])
def test_it_follows_the_edges_of_the_road_graph(joined, low, high):
    # Cells 2 and 3 show a step later what cells 0 and 1 showed; without the edges nothing foretells them.
    sources, followers = np.arange(2), np.arange(2, 4)
    flow = tiny_tasks.copied(tiny_tasks.noise(4), sources, followers)
    data = tiny_tasks.recording(flow, [(0, 2), (1, 3)] if joined else [])
    params = temperature_gat.fit(KEYS, data, SMALL, TRAINING)
    forecast = temperature_gat.predict(params, data, tiny_tasks.TEST, SMALL)
    assert low < tiny_tasks.error(forecast.mean, data, followers) < high
