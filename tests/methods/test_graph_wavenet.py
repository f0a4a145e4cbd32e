"""Graph WaveNet is the published network: its size, its receptive field, its learned adjacency, its diffusion."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import graph_wavenet
from experiments.methods.forecasting.graph_wavenet import GraphWaveNet, GraphWaveNetConfig
from stream_jax.fit import TrainConfig
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 4)
SMALL = GraphWaveNetConfig(
    history=2, horizon=1, steps_per_day=tiny_tasks.DAY, blocks=2, layers=1, channels=8, skip=16, end=16, order=1,
    embedding=4, dropout=0.0, calendar=False,
)  # fmt: skip
TRAINING = TrainConfig(learning_rate=2e-2, batch=32, epochs=40, patience=40, average=0.9)
SOURCES, TARGETS = np.arange(0, 2), np.arange(2, 4)


def trained_error(data, cfg):
    # A start with products E1 E2 below 0 gets no gradient through the relu: of four starts the best on validation.
    params, result = graph_wavenet.fit_with_history(KEYS, data, cfg, TRAINING)
    best = jax.tree.map(lambda leaf: leaf[result.val_loss.argmin()][None], params)
    return tiny_tasks.error(graph_wavenet.predict(best, data, tiny_tasks.TEST, cfg).mean, data, TARGETS), best


def test_it_has_the_parameters_of_the_authors_code_on_metr_la():
    # nnzhan/Graph-WaveNet, model.py and train.py with --gcn_bool --addaptadj on 207 sensors, 2 inputs, 12 outputs:
    # 309,400. Of those, 8 x (32 x 32 + 32) belong to the 1x1 residual convolutions that graph convolutions replace.
    inputs = jnp.zeros((1, 12, 207, 2))
    supports = (jnp.eye(207), jnp.eye(207))
    network = GraphWaveNet(GraphWaveNetConfig(), outputs=12)
    shapes = jax.eval_shape(network.init, KEYS[0], inputs, jnp.zeros(1, int), supports)
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    assert count + 8 * (32 * 32 + 32) == 309_400
    outputs = jax.eval_shape(lambda v: network.apply(v, inputs, jnp.zeros(1, int), supports), shapes)
    assert outputs.shape == (1, 207, 12)


def test_its_newest_output_sees_thirteen_steps():
    # Four blocks with dilations 1 and 2 and two taps: 1 + 4 (1 + 2) = 13.
    cfg = GraphWaveNetConfig(channels=4, skip=8, end=8, order=1)
    assert cfg.receptive_field == 13
    network, slot, supports = GraphWaveNet(cfg, outputs=1), jnp.zeros(1, int), (jnp.eye(2),)
    inputs = jax.random.normal(KEYS[0], (1, 16, 2, 1))
    variables = jax.jit(network.init)(KEYS[0], inputs, slot, supports)
    slope = jax.jit(jax.grad(lambda x: network.apply(variables, x, slot, supports).sum()))(inputs)
    seen = np.abs(slope).sum(axis=(0, 2, 3)) > 0
    np.testing.assert_array_equal(seen, [False] * 3 + [True] * 13)


def test_diffusion_moves_features_along_the_edges_one_step_a_power():
    # 0 -> 1 -> 2: what is at 0 comes to 1 after one step and to 2 after two.
    support = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    nodes = jnp.array([5.0, 0.0, 0.0]).reshape(3, 1, 1, 1)
    np.testing.assert_array_equal(
        graph_wavenet.diffuse(nodes, (support,), 2)[:, 0, 0], [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 5.0]]
    )


def test_walks_along_and_against_the_edges_have_rows_that_sum_to_one():
    graph = tiny_tasks.recording(np.zeros((600, 3)), [(0, 1), (0, 2)]).graph
    along, against = graph_wavenet.transitions(graph)
    # Self-loops weigh 1 and edges of the typical length exp(-1): 0 goes to itself, 1 and 2 along the edges.
    total = 1.0 + 2.0 * np.exp(-1.0)
    np.testing.assert_allclose(along[0], np.array([1.0, np.exp(-1.0), np.exp(-1.0)]) / total, rtol=1e-5)
    np.testing.assert_allclose(against[0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(against.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.slow
def test_it_finds_who_follows_whom_where_no_graph_says_so():
    # Cells 2 and 3 repeat cells 0 and 1 a step later; the given graph has self-loops only. Their own past says nothing,
    # so without the learned adjacency the error stays near the standard deviation, 10.
    data = tiny_tasks.recording(tiny_tasks.copied(tiny_tasks.noise(4), SOURCES, TARGETS))
    found, params = trained_error(data, SMALL)
    blind, _ = trained_error(data, dataclasses.replace(SMALL, adaptive=False))
    assert found < 5.0 and blind > 9.0
    learned = graph_wavenet.learned_adjacency(params.network["source"][0], params.network["destination"][0])
    assert learned[0, 2] > 0.8  # where the relu is 0 for a whole row, as for cell 1, each cell gets a quarter of it


@pytest.mark.slow
def test_it_follows_a_diffusion_along_the_given_edges():
    pairs = list(zip(SOURCES.tolist(), TARGETS.tolist(), strict=True))
    flow = tiny_tasks.copied(tiny_tasks.noise(4), SOURCES, TARGETS)
    cfg = dataclasses.replace(SMALL, adaptive=False)
    assert trained_error(tiny_tasks.recording(flow, pairs), cfg)[0] < 5.0
