"""STID is the published network: its size, its output, and that identities are what it learns from."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import stid
from experiments.methods.forecasting.stid import Stid, StidConfig
from stream_jax.fit import TrainConfig
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 1)
SMALL = StidConfig(
    history=1, horizon=1, steps_per_day=tiny_tasks.DAY, embedding=8, cell=8, time_of_day=8, day_of_week=0, layers=2,
    dropout=0.0, calendar=False,
)  # fmt: skip
TRAINING = TrainConfig(learning_rate=1e-2, batch=32, epochs=12, patience=12)


def test_it_has_the_parameters_of_the_authors_code_on_pems04():
    # GestaltCogTeam/STID, stid/STID_PEMS04.py: 307 sensors, 288 steps a day, 12 steps of 3 inputs, 12 outputs.
    # Identities 32 (307 + 288 + 7) = 19,264; window 36 x 32 + 32 = 1,184; three blocks of two 128 x 128 + 128 layers =
    # 99,072; regression 128 x 12 + 12 = 1,548.
    network, inputs = Stid(StidConfig(steps_per_day=288), outputs=12), jnp.zeros((2, 12, 307, 3))
    shapes = jax.eval_shape(network.init, KEYS[0], inputs, jnp.zeros(2, int), None)
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes["params"]))
    assert count == 19_264 + 1_184 + 99_072 + 1_548 == 121_068
    assert jax.eval_shape(lambda v: network.apply(v, inputs, jnp.zeros(2, int), None), shapes).shape == (2, 307, 12)


def test_cells_do_not_see_each_other():
    network, slot = Stid(SMALL, outputs=1), jnp.zeros(1, int)
    inputs = jax.random.normal(KEYS[0], (1, 1, 3, 1))
    variables = network.init(KEYS[0], inputs, slot, None)
    slope = jax.jit(jax.jacobian(lambda x: network.apply(variables, x, slot, None)[0, :, 0]))(inputs)[:, 0, 0, :, 0]
    assert (np.diag(slope) != 0).all() and np.count_nonzero(slope) == 3


@pytest.mark.parametrize(("changes", "low", "high"), [({}, 0.0, 8.0), ({"cell": 0}, 12.0, 30.0)])
def test_it_learns_what_only_the_cell_and_the_hour_tell(changes, low, high):
    # Each cell has its own random daily pattern of +-20 around 50 with noise of 2, so the newest step does not tell
    # the next. Whoever cannot tell the cells apart errs by almost the whole pattern.
    rng = np.random.default_rng(0)
    pattern = 50.0 + 20.0 * rng.choice([-1.0, 1.0], size=(tiny_tasks.DAY, 6))
    flow = np.tile(pattern, (75, 1)) + 2.0 * rng.normal(size=(600, 6))
    data, cfg = tiny_tasks.recording(flow), dataclasses.replace(SMALL, **changes)
    params = stid.fit(KEYS, data, cfg, TRAINING)
    error = tiny_tasks.error(stid.predict(params, data, tiny_tasks.TEST, cfg).mean, data, np.arange(6))
    assert low < error < high
