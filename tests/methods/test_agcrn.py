"""AGCRN is the published network: its size, its recurrence, its graph made from learned numbers of the cells."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import agcrn
from experiments.methods.forecasting.agcrn import Agcrn, AgcrnConfig, CellWeights
from stream_jax.fit import TrainConfig
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 4)
SMALL = AgcrnConfig(
    history=1, horizon=1, steps_per_day=tiny_tasks.DAY, layers=1, hidden=16, embedding=6, calendar=False
)
TRAINING = TrainConfig(learning_rate=2e-2, batch=32, epochs=32, patience=32)
SOURCES, TARGETS = np.arange(0, 3), np.arange(3, 6)


def test_it_has_the_parameters_that_the_paper_reports_on_pemsd4():
    # LeiBAI/AGCRN, model/PEMSD4_AGCRN.conf: 307 sensors, 1 input, 12 outputs, 2 layers of 64, 10 numbers a cell.
    network, inputs = Agcrn(AgcrnConfig(), outputs=12), jnp.zeros((2, 12, 307, 1))
    shapes = jax.eval_shape(network.init, KEYS[0], inputs, jnp.zeros(2, int), None)
    assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"])) == 748_810
    assert jax.eval_shape(lambda v: network.apply(v, inputs, jnp.zeros(2, int), None), shapes).shape == (2, 307, 12)


def test_chebyshev_terms_follow_their_recursion():
    # T0 = I, T1 = A, T2 = 2 A A - I; for A = [[0, 1], [1, 0]] A A = I, so T2 = I.
    swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(agcrn.chebyshev(swap, 3), [np.eye(2), swap, np.eye(2)])


def test_the_learned_graph_joins_cells_with_like_numbers():
    # Products 4, 0 and, cut at 0, -4: softmax over (4, 0, 0).
    cells = jnp.array([[2.0, 0.0], [0.0, 1.0], [-2.0, 0.0]])
    expected = np.exp([4.0, 0.0, 0.0]) / np.exp([4.0, 0.0, 0.0]).sum()
    np.testing.assert_allclose(agcrn.learned_adjacency(cells)[0], expected, rtol=1e-5)


def test_a_closed_gate_keeps_the_state_and_an_open_one_replaces_it():
    # Gates of +-20 are 1 and 0 up to 1e-8; the candidate is tanh of the update's bias, 0.5.
    state, seen = jnp.full((2, 1, 1), 0.3), jnp.zeros((2, 1, 1))
    update = CellWeights(jnp.zeros((2, 2, 1)), jnp.full((2, 1, 1), 0.5))
    for keep, expected in ((20.0, 0.3), (-20.0, np.tanh(0.5))):
        gate = CellWeights(jnp.zeros((2, 2, 2)), jnp.tile(jnp.array([0.0, keep]), (2, 1, 1)))
        np.testing.assert_allclose(agcrn.recur(state, seen, jnp.eye(2)[None], gate, update), expected, rtol=1e-5)


@pytest.mark.slow
def test_it_learns_who_mirrors_whom_without_a_graph():
    # Cells 3 .. 5 show a step later what cells 0 .. 2 showed, the last of them upside down. No graph is given and the
    # cells' own past says nothing, so without a graph and without weights of their own they err by the deviation, 10.
    flow = tiny_tasks.copied(tiny_tasks.noise(6), SOURCES, TARGETS)
    flow[:, 5] = 100.0 - flow[:, 5]
    data = tiny_tasks.recording(flow)
    # As in Graph WaveNet, the relu leaves some starts without a gradient: of four starts the best on validation.
    params, result = agcrn.fit_with_history(KEYS, data, SMALL, TRAINING)
    best = jax.tree.map(lambda leaf: leaf[result.val_loss.argmin()][None], params)
    forecast = agcrn.predict(best, data, tiny_tasks.TEST, SMALL)
    assert max(tiny_tasks.error(forecast.mean, data, TARGETS[[k]]) for k in range(3)) < 5.0
