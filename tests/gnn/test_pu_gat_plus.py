"""Claims about the forecaster as a whole, on a city of six cells with days of eight steps."""

import dataclasses
from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.fit import Examples, TrainConfig, train
from stream_jax.gnn.attention import AttentionConfig, neighbour_table
from stream_jax.gnn.inputs import fit_inputs
from stream_jax.gnn.network import ForecasterConfig, gaussian_nll
from stream_jax.gnn.profile import ProfileConfig
from stream_jax.gnn.pu_gat_plus import fit, init_params, predict, training_loss
from stream_jax.types import ForecastData, RoadGraph, TrafficSeries

CELLS, LENGTH, DAY = 6, 64, 8
CFG = ForecasterConfig(
    layers=2,
    hidden=8,
    heads=2,
    history=4,
    horizon=2,
    trend_lags=3,
    embedding=2,
    calendar=True,
    profile=ProfileConfig(DAY, smoothing=1),
)
TRAINING = TrainConfig(learning_rate=1e-2, batch=16, epochs=3, patience=3)


def ring() -> RoadGraph:
    pairs = sorted(((j % CELLS, i) for i in range(CELLS) for j in (i - 1, i, i + 1)), key=lambda edge: edge[1])
    senders, receivers = jnp.array(pairs, jnp.int32).T
    return RoadGraph(senders, receivers, jnp.zeros((len(pairs), 3)), jnp.zeros((CELLS, 2)))


def city(scale: float = 1.0, hole: float = 0.0) -> ForecastData:
    """Poisson-like counts around a daily wave; a tenth of the entries is missing and holds `hole`."""
    wave = 20.0 + 10.0 * jnp.sin(2 * jnp.pi * jnp.arange(LENGTH) / DAY)
    noise = jax.random.normal(jax.random.key(5), (LENGTH, CELLS, 2))
    values = jnp.maximum(wave[:, None, None] + jnp.sqrt(20.0) * noise, 0.0)
    observed = jax.random.bernoulli(jax.random.key(6), 0.9, values.shape)
    slot = jnp.arange(LENGTH, dtype=jnp.int32) % (7 * DAY)
    angle = 2 * jnp.pi * slot[:, None] / jnp.array([DAY, 7 * DAY])
    clock = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], 1)[:, jnp.array([0, 2, 1, 3])]
    series = TrafficSeries(jnp.where(observed, values * scale, hole), observed, clock, slot)
    return ForecastData(series, ring(), jnp.arange(3, 38, dtype=jnp.int32), jnp.arange(43, 52, dtype=jnp.int32))


ORIGINS = jnp.array([20, 45, LENGTH - 1], jnp.int32)


@pytest.fixture(scope="module")
def params():
    return fit(jax.random.key(0), city(), CFG, TRAINING)


@pytest.fixture(scope="module")
def forecast(params):
    return predict(params, city(), ORIGINS, CFG)


def test_forecast_has_one_mean_and_one_positive_sigma_per_horizon_and_cell(forecast):
    chex.assert_shape((forecast.mean, forecast.sigma), (3, 2, CELLS))
    chex.assert_tree_all_finite(forecast)
    assert bool((forecast.sigma > 0).all()) and bool((forecast.mean >= 0).all())


def test_nothing_after_the_origin_changes_the_forecast(params, forecast):
    data = city()
    origin = int(ORIGINS[1])
    values = data.series.values.at[origin + 1 :].multiply(7.0)
    observed = data.series.observed.at[origin + 1 :].set(True)
    later = data._replace(series=data.series._replace(values=values, observed=observed))
    changed = predict(params, later, ORIGINS, CFG)
    chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf: leaf[:2], changed), jax.tree.map(lambda leaf: leaf[:2], forecast)
    )
    assert float(jnp.abs(changed.mean[2] - forecast.mean[2]).max()) > 0.1


def test_what_stands_in_missing_entries_never_matters(params, forecast):
    chex.assert_trees_all_equal(predict(params, city(hole=jnp.nan), ORIGINS, CFG), forecast)


def test_data_times_four_gives_forecasts_times_four(forecast):
    # Exact, not close: a power of two changes only exponents, in the scaler's sums and in every scaled value.
    four = predict(fit(jax.random.key(0), city(4.0), CFG, TRAINING), city(4.0), ORIGINS, CFG)
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: 4.0 * leaf, forecast), four)


@pytest.mark.slow
def test_stacked_seeds_predict_what_single_seeds_predict():
    keys = jax.random.split(jax.random.key(1), 2)
    both = predict(fit(keys, city(), CFG, TRAINING), city(), ORIGINS, CFG)
    chex.assert_shape(both.mean, (2, 3, 2, CELLS))
    alone = predict(fit(keys[1], city(), CFG, TRAINING), city(), ORIGINS, CFG)
    # Batched products round differently; nine Adam steps, whose size does not shrink with the gradient, pass it on.
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], both), alone, rtol=5e-3)


def loss_parts(data: ForecastData, cfg: ForecasterConfig = CFG):
    scaler, prepared = jax.jit(fit_inputs, static_argnums=1)(data, cfg)
    shared = (prepared, scaler, neighbour_table(data.graph))
    trained = jax.jit(init_params, static_argnums=3)(jax.random.key(0), shared, data.train[:1], cfg)
    return trained, shared


def test_missing_targets_and_padded_windows_leave_the_gradient_alone():
    trained, shared = loss_parts(city())
    grad = jax.jit(jax.grad(partial(training_loss, cfg=CFG), argnums=1))
    weight = jnp.array([1.0, 1.0, 0.0])
    before = grad(jax.random.key(1), trained, jnp.array([10, 20, 30]), weight, shared)
    other = grad(jax.random.key(1), trained, jnp.array([10, 20, 25]), weight, shared)
    chex.assert_trees_all_close(before, other, atol=1e-6)
    step, cell = 21, 0
    hidden = shared[0]._replace(observed=shared[0].observed.at[step, cell].set(False))
    loud = hidden._replace(values=hidden.values.at[step, cell].set(1e6))
    quiet_grad = grad(jax.random.key(1), trained, jnp.array([10, 20, 30]), weight, (hidden, *shared[1:]))
    loud_grad = grad(jax.random.key(1), trained, jnp.array([10, 20, 30]), weight, (loud, *shared[1:]))
    chex.assert_trees_all_equal(quiet_grad, loud_grad)


VARIANTS = {
    "the paper's likelihood, no linear part": {"loss": "nll", "linear": False},
    "seasonal trend, beta likelihood": {"trend": "seasonal", "loss": "beta_nll"},
    "single stream, squared error": {"dual_stream": False, "loss": "mse"},
    "temperature": {"attention": AttentionConfig(mode="temperature")},
    "unconstrained, two targets": {
        "attention": AttentionConfig(mode="unconstrained", self_bias=1.0),
        "targets": (0, 1),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_has_a_finite_loss_and_gradient(change):
    cfg = dataclasses.replace(CFG, layers=1, **change)
    trained, shared = loss_parts(city(), cfg)
    grad = jax.jit(jax.value_and_grad(partial(training_loss, cfg=cfg), argnums=1))
    value, grads = grad(jax.random.key(1), trained, jnp.array([10, 20]), jnp.ones(2), shared)
    chex.assert_tree_all_finite((value, grads))
    assert any(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(grads))


def test_training_starts_from_zero_correction():
    trained, shared = loss_parts(city())
    kernels = [trained["params"][stream]["mean"]["kernel"] for stream in ("trend", "residual")]
    kernels.append(trained["params"]["linear"]["kernel"])
    chex.assert_trees_all_equal(kernels, [jnp.zeros_like(kernel) for kernel in kernels])
    assert float(shared[1].unit.min()) > 0


@pytest.mark.slow
def test_a_faithful_fit_moves_the_mean_as_squared_error_does_whatever_sigma_says():
    trained, shared = loss_parts(city())
    kept = {"auxiliary": 0.0, "dropout": 0.0}
    grads = [
        jax.jit(jax.grad(partial(training_loss, cfg=dataclasses.replace(CFG, **kept, **change)), argnums=1))(
            jax.random.key(1), louder, jnp.array([20, 30]), jnp.ones(2), shared
        )["params"]["linear"]
        for louder in (trained, _with_sigma_bias(trained, 2.0))
        for change in ({"loss": "faithful", "beta": 0.0}, {"loss": "mse"})
    ]
    # In standardised units the linear part's gradient is that of the squared error alone, at both sigmas.
    for other in grads[1:]:
        chex.assert_trees_all_close(grads[0], other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_busy_cells_weigh_more_in_the_mean_of_a_faithful_fit_as_beta_grows():
    trained, shared = loss_parts(city())
    busy = shared[0]._replace(
        values=shared[0].values.at[:, 0].multiply(9.0),
        future=shared[0].future.at[:, :, 0].multiply(9.0),
        plain=shared[0].plain.at[:, :, 0].multiply(9.0),
    )

    def pull(beta: float, cell: int) -> float:
        """How much the loss moves with one cell's target."""
        cfg = dataclasses.replace(CFG, loss="faithful", auxiliary=0.0, dropout=0.0, beta=beta)

        def loss(target: jax.Array) -> jax.Array:
            changed = busy._replace(values=busy.values.at[21, cell, 0].set(target))
            return training_loss(None, trained, jnp.array([20]), jnp.ones(1), (changed, *shared[1:]), cfg)

        seen = shared[0].observed[21, cell, 0]
        assert bool(seen)
        return abs(float(jax.jit(jax.grad(loss))(busy.future[20, 0, cell, 0] + 1.0)))

    assert pull(1.0, 0) / pull(1.0, 1) > 2.0 * pull(0.0, 0) / pull(0.0, 1)


def _with_sigma_bias(trained, bias):
    """The same network with larger sigmas."""
    streams = {name: dict(trained["params"][name]) for name in ("trend", "residual")}
    for stream in streams.values():
        stream["sigma"] = stream["sigma"] | {"bias": stream["sigma"]["bias"] + bias}
    return {"params": trained["params"] | streams}


OUTSIDE = ({"val": jnp.zeros(0, jnp.int32)}, {"train": jnp.array([1])}, {"val": jnp.array([62])})


@pytest.mark.parametrize("change", OUTSIDE)
def test_windows_outside_the_recording_are_refused(change):
    with pytest.raises(ValueError, match=r"origins|leaves"):
        fit(jax.random.key(0), city()._replace(**change), CFG, TRAINING)


@pytest.mark.parametrize(("regulariser", "expected"), [(1e-3, 0.3), (10.0, 1.0)])
def test_fitted_sigma_is_the_noise_unless_the_regulariser_is_strong(regulariser, expected):
    # y = sin x + 0.3 noise. At lambda = 1e-3 the optimum moves by 2 lambda |log 0.3| = 0.2 %; the sampling error of a
    # standard deviation from 1000 points is 2.2 %, and ten per cent leaves room for the fitted mean. At lambda = 10 the
    # optimum of r / (2 s^2) + log s + 10 log^2 s with r = 0.09 solves 1 - 0.09 / s^2 + 20 log s = 0: s = 0.956.
    x = jax.random.uniform(jax.random.key(0), (1200, 1), minval=-3.0, maxval=3.0)
    y = jnp.sin(x) + 0.3 * jax.random.normal(jax.random.key(1), x.shape)
    network = nn.Sequential([nn.Dense(32), nn.tanh, nn.Dense(2)])

    def entries(params, batch):
        mean, raw = jnp.split(network.apply(params, batch[0]), 2, -1)
        return gaussian_nll(batch[1] - mean, nn.softplus(raw), regulariser)[:, 0]

    result = train(
        jax.random.split(jax.random.key(2), 1),
        lambda key: network.init(key, x[:1]),
        lambda key, params, batch, weight, shared: (weight * entries(params, batch)).sum() / weight.sum(),
        lambda params, batch, shared: entries(params, batch),
        Examples((x[:1000], y[:1000]), (x[1000:], y[1000:])),
        TrainConfig(learning_rate=1e-2, batch=100, epochs=60, patience=20),
    )
    best = jax.tree.map(lambda leaf: leaf[0], result.params)
    sigma = nn.softplus(network.apply(best, x)[:, 1]).mean()
    np.testing.assert_allclose(sigma, expected, rtol=0.1)
