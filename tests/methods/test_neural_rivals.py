"""What every neural rival gets from `neural.py`: scales, causality, a sigma, seeds, quantiles, mixtures, statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.methods.forecasting import cqr, deep_ensemble, graph_wavenet, neural, stid
from experiments.methods.forecasting.cqr import CqrConfig
from experiments.methods.forecasting.deep_ensemble import DeepEnsembleConfig
from experiments.methods.forecasting.graph_wavenet import GraphWaveNetConfig
from experiments.methods.forecasting.scale import fit_scale
from experiments.methods.forecasting.stid import StidConfig
from stream_jax.fit import TrainConfig
from tests.methods import tiny_tasks

KEYS = jax.random.split(jax.random.key(0), 2)
SIZES = {"history": 2, "horizon": 2, "steps_per_day": tiny_tasks.DAY}
TINY = {"embedding": 4, "cell": 4, "time_of_day": 4, "day_of_week": 4, "layers": 1, "dropout": 0.0}
ONCE = TrainConfig(learning_rate=1e-2, batch=64, epochs=1, patience=1)
METHODS = {
    "stid": (stid, StidConfig(**SIZES, **TINY)),
    "stid:relative": (stid, StidConfig(**SIZES, **TINY, relative=True)),
    "graph_wavenet": (graph_wavenet, GraphWaveNetConfig(**SIZES, blocks=1, layers=1, channels=4, skip=4, end=4)),
}


@pytest.fixture(scope="module", params=METHODS)
def fitted(request):
    method, cfg = METHODS[request.param]
    data = tiny_tasks.recording(tiny_tasks.noise(3))
    return method, cfg, data, method.fit(KEYS, data, cfg, ONCE)


@pytest.mark.slow
def test_forecasts_read_nothing_after_their_origin_and_do_not_depend_on_each_other(fitted):
    method, cfg, data, params = fitted
    series = data.series._replace(values=data.series.values.at[551:].set(777.0))
    before = method.predict(params, data, jnp.arange(520, 551), cfg)
    after = method.predict(params, data._replace(series=series), jnp.arange(540, 551), cfg)
    np.testing.assert_allclose(before.mean[:, 20:], after.mean, rtol=1e-5)
    assert before.mean.shape == before.sigma.shape == (2, 31, 2, 3)
    assert (before.sigma > 0.0).all() and (before.mean >= 0.0).all()


@pytest.mark.slow
def test_each_seed_is_its_own_network(fitted):
    method, cfg, data, params = fitted
    forecast = method.predict(params, data, tiny_tasks.TEST, cfg)
    single = jax.tree.map(lambda leaf: leaf[1], params)
    np.testing.assert_allclose(method.predict(single, data, tiny_tasks.TEST, cfg).mean, forecast.mean[1], rtol=1e-4)
    assert np.abs(forecast.mean[0] - forecast.mean[1]).max() > 1e-3


def test_scales_come_from_the_training_part_alone():
    # Cell 0 alternates 10 and 30, cell 1 stands at 20: mean 20, mean square deviation (100 + 0) / 2.
    flow = np.stack([np.where(np.arange(600) % 2, 30.0, 10.0), np.full(600, 20.0)], axis=1)
    flow[440:] = 777.0
    scale = fit_scale(tiny_tasks.recording(flow), StidConfig(history=4, horizon=1, steps_per_day=8))
    np.testing.assert_allclose([scale.mean[0], scale.std[0]], [20.0, np.sqrt(50.0)], rtol=1e-2)
    # Spread 10 and, floored at a share of the root mean square of both cells', 0.05 sqrt(50), in units of sqrt(50).
    np.testing.assert_allclose(scale.spread, [np.sqrt(2.0), 0.05], rtol=1e-2)
    # Cell 0 changes by 20 at each step, cell 1 never: sqrt(400 / 2) / sqrt(50) = 2.
    np.testing.assert_allclose(scale.change, 2.0, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("relative", "low", "high"), [(True, 0.0, 40.0), (False, 50.0, 120.0)])
def test_forecasts_relative_to_the_window_follow_a_level_that_training_never_saw(relative, low, high):
    # Flows of 50 +- 10 until the test part, of 150 +- 10 in it. The mean of the last two is off by 10 sqrt(1 + 1 / 2)
    # on average, and training on noise, whose levels do not last, gives some of the rise back; a network that knows 50
    # alone is off by up to 100.
    flow = tiny_tasks.noise(3)
    flow[510:] += 100.0
    data, cfg = tiny_tasks.recording(flow), StidConfig(**SIZES, **TINY, relative=relative)
    params = stid.fit(KEYS[:1], data, cfg, TrainConfig(learning_rate=1e-2, batch=64, epochs=12, patience=12))
    assert low < tiny_tasks.error(stid.predict(params, data, tiny_tasks.TEST, cfg).mean, data, np.arange(3)) < high


def test_pinball_losses_are_least_at_the_quantiles():
    # A standard normal's ends at 5 % and 95 % are +-1.645, which sigma 1 gives; 20,000 draws, grid of 5 %.
    draws = jax.random.normal(KEYS[0], (20_000,))
    sigmas = jnp.arange(0.8, 1.21, 0.05)
    losses = jax.vmap(lambda sigma: neural.pinball(draws, sigma, 0.1).mean())(sigmas)
    assert abs(float(sigmas[losses.argmin()]) - 1.0) < 0.06


@pytest.mark.slow
def test_quantile_regression_learns_intervals_that_cover_nine_in_ten():
    # Noise of 4 in cell 0 and 12 in cell 1, known by the cell alone. 78 x 2 labels a cell: a standard error of 2.4 %.
    rng = np.random.default_rng(0)
    data = tiny_tasks.recording(50.0 + rng.normal(size=(600, 2)) * np.array([4.0, 12.0]))
    cfg = CqrConfig(**SIZES, **TINY)
    params = cqr.fit(KEYS[:1], data, cfg, TrainConfig(learning_rate=2e-2, batch=64, epochs=12, patience=12))
    forecast = cqr.predict(params, data, tiny_tasks.TEST, cfg)
    target = data.series.values[tiny_tasks.TEST[:, None] + 1 + jnp.arange(2), :, 0]
    covered = (np.abs(target - forecast.mean[0]) <= 1.645 * forecast.sigma[0]).mean(axis=(0, 1))
    np.testing.assert_allclose(covered, 0.9, atol=0.08)
    assert float(forecast.sigma[..., 1].mean() / forecast.sigma[..., 0].mean()) > 2.0


@pytest.mark.slow
def test_an_ensemble_is_the_mixture_of_members_that_differ():
    cfg = DeepEnsembleConfig(**SIZES, blocks=1, layers=1, channels=4, skip=4, end=4, members=2)
    data = tiny_tasks.recording(tiny_tasks.noise(3))
    params = deep_ensemble.fit(KEYS[0], data, cfg, ONCE)
    members = graph_wavenet.predict(params.members, data, tiny_tasks.TEST, cfg)
    forecast = deep_ensemble.predict(params, data, tiny_tasks.TEST, cfg)
    np.testing.assert_allclose(forecast.mean, members.mean.mean(axis=0), rtol=1e-5)
    assert np.abs(members.mean[0] - members.mean[1]).max() > 1e-3
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
    assert deep_ensemble.predict(several, data, tiny_tasks.TEST, cfg).mean.shape == (2, *forecast.mean.shape)


def test_a_mixture_is_as_wide_as_its_members_and_their_disagreement():
    # Means 1 and 3, sigmas 3 and 4: mean 2, variance (9 + 16) / 2 + 1 = 13.5.
    mean, sigma = jnp.array([1.0, 3.0]).reshape(2, 1, 1, 1), jnp.array([3.0, 4.0]).reshape(2, 1, 1, 1)
    found = deep_ensemble.mixture(mean, sigma)
    np.testing.assert_allclose([found.mean[0, 0, 0], found.sigma[0, 0, 0]], [2.0, np.sqrt(13.5)], rtol=1e-6)
