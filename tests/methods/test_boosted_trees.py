"""CatBoost corrects the profile by what a threshold tells, says how sure it is, and is missed in one sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import DataError
from experiments.methods.forecasting import boosted_trees
from experiments.methods.forecasting.boosted_trees import BoostedTreesConfig
from tests.methods import tiny_tasks

SMALL = BoostedTreesConfig(history=2, horizon=1, steps_per_day=tiny_tasks.DAY, trees=60, depth=3, reach=0)
KEYS = jax.random.split(jax.random.key(0), 2)


@pytest.fixture(scope="module")
def jumpy():
    """Cell 1 rises by 20 after cell 0 stood above 50 and falls by 20 otherwise; noise of 2 in cells 1 to 14."""
    pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    flow = tiny_tasks.noise(15)
    flow[1:, 1] = 50.0 + np.where(flow[:-1, 0] > 50.0, 20.0, -20.0) + 2.0 * rng.normal(size=599)
    flow[:, 2:] = 50.0 + 2.0 * rng.normal(size=(600, 13))
    data = tiny_tasks.recording(flow, [(0, 1)])
    return data, boosted_trees.fit(KEYS, data, SMALL)


def test_it_learns_a_jump_that_a_neighbour_foretells(jumpy):
    data, params = jumpy
    forecast = boosted_trees.predict(params, data, tiny_tasks.TEST, SMALL)
    assert forecast.mean.shape == forecast.sigma.shape == (2, len(tiny_tasks.TEST), 1, 15)
    assert tiny_tasks.error(forecast.mean, data, np.array([1])) < 10.0  # without the neighbour 20


def test_it_follows_a_level_that_training_never_saw():
    # 50 +- 2 until the test part and 150 +- 2 in it: trees that corrected the profile alone would stay near 50.
    pytest.importorskip("catboost")
    flow = 50.0 + 2.0 * np.random.default_rng(0).normal(size=(600, 2))
    flow[510:] += 100.0
    data = tiny_tasks.recording(flow)
    forecast = boosted_trees.predict(boosted_trees.fit(KEYS[:1], data, SMALL), data, tiny_tasks.TEST, SMALL)
    assert tiny_tasks.error(forecast.mean, data, np.arange(2)) < 20.0


def test_sigma_tells_noisy_cells_from_quiet_ones(jumpy):
    data, params = jumpy
    sigma = boosted_trees.predict(params, data, tiny_tasks.TEST, SMALL).sigma.mean(axis=(0, 1, 2))
    assert sigma[0] > 1.5 * sigma[2] > 0.0  # deviations 10 and 2; few trees


def test_forecasts_read_nothing_after_their_origin(jumpy):
    data, params = jumpy
    changed = data._replace(series=data.series._replace(values=data.series.values.at[551:].set(777.0)))
    origins = jnp.arange(540, 551)
    before, after = (boosted_trees.predict(params, one, origins, SMALL) for one in (data, changed))
    np.testing.assert_array_equal(before.mean, after.mean)


def test_leaves_are_counted(jumpy):
    _, params = jumpy
    (model,) = params.models[0]
    # A symmetric tree of depth 3 has 8 leaves of two numbers each.
    assert boosted_trees.num_leaves(params) == model.tree_count_ * 8 * 2


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(boosted_trees, "catboost", None)
    with pytest.raises(DataError, match=r"needs the package catboost; install it with"):
        boosted_trees.fit(KEYS, tiny_tasks.recording(np.zeros((600, 2))), SMALL)
