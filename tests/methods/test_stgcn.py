"""STGCN is the published network: its size, its convolutions in time and over the graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import stgcn
from experiments.methods.forecasting.stgcn import Stgcn, StgcnConfig
from stream_jax.fit import TrainConfig
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 1)
SMALL = StgcnConfig(
    history=4, horizon=1, steps_per_day=tiny_tasks.DAY, blocks=((8, 8),), time_kernel=2, graph_kernel=2, calendar=False
)
TRAINING = TrainConfig(learning_rate=1e-2, batch=32, epochs=16, patience=16)
SOURCES, TARGETS = np.arange(0, 4), np.arange(4, 8)


def test_it_has_the_parameters_of_the_authors_code_on_pemsd7():
    # VeritasYin/STGCN_IJCAI-18, main.py and models/layers.py: 228 stations, 12 steps of 1 input, 1 output. First block:
    # 256 + 3,104 + 6,208 for its convolutions, 2 x 228 x 64 for its norm. Second: 14,400 + 3,104 + 12,416 and
    # 2 x 228 x 128. Output over the 4 steps left: 131,328, a norm of 2 x 228 x 128, 16,512, and 128 + 228.
    first, second = 256 + 3_104 + 6_208 + 29_184, 14_400 + 3_104 + 12_416 + 58_368
    network, inputs = Stgcn(StgcnConfig(), outputs=1), jnp.zeros((2, 12, 228, 1))
    arguments = (inputs, jnp.zeros(2, int), jnp.zeros((3, 228, 228)))
    shapes = jax.eval_shape(network.init, KEYS[0], *arguments)
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    assert count == first + second + 131_328 + 58_368 + 16_512 + 356 == 333_604
    assert jax.eval_shape(lambda v: network.apply(v, *arguments), shapes).shape == (2, 228, 1)


def test_blocks_leave_the_output_layer_four_of_twelve_steps_and_refuse_a_history_too_short():
    assert StgcnConfig().steps_left == 4  # 12 - 2 blocks x 2 convolutions x (3 - 1)
    with pytest.raises(ValueError, match="history of 9"):
        StgcnConfig(history=9)


def test_the_scaled_laplacian_of_a_path_has_eigenvalues_from_minus_one_to_one():
    # Two joined cells: L = [[1, -1], [-1, 1]], largest eigenvalue 2, scaled [[0, -1], [-1, 0]].
    np.testing.assert_allclose(stgcn.scaled_laplacian(jnp.ones((2, 2))), [[0.0, -1.0], [-1.0, 0.0]], atol=1e-6)
    path = jnp.diag(jnp.ones(3), 1) + jnp.diag(jnp.ones(3), -1)
    values = np.linalg.eigvalsh(stgcn.scaled_laplacian(path))
    np.testing.assert_allclose([values[0], values[-1]], [-1.0, 1.0], atol=1e-5)


def test_three_chebyshev_terms_reach_two_edges_far_and_no_farther():
    data = tiny_tasks.recording(np.zeros((600, 4)), [(0, 1), (1, 2), (2, 3)])
    reach = np.abs(stgcn.graph_kernels(data, StgcnConfig())).sum(axis=0)[0] > 1e-6
    np.testing.assert_array_equal(reach, [True, True, True, False])


@pytest.mark.slow
@pytest.mark.parametrize(("joined", "low", "high"), [(True, 0.0, 5.0), (False, 9.0, 12.0)])
def test_it_follows_the_edges_of_the_road_graph(joined, low, high):
    # Cells 4 .. 7 show a step later what cells 0 .. 3 showed; without the edges between them nothing foretells them.
    edges = list(zip(SOURCES.tolist(), TARGETS.tolist(), strict=True)) if joined else []
    data = tiny_tasks.recording(tiny_tasks.copied(tiny_tasks.noise(8), SOURCES, TARGETS), edges)
    params = stgcn.fit(KEYS, data, SMALL, TRAINING)
    error = tiny_tasks.error(stgcn.predict(params, data, tiny_tasks.TEST, SMALL).mean, data, TARGETS)
    assert low < error < high
