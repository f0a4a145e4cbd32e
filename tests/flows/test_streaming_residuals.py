"""Claims about residuals that are formed one observation at a time: they are those of the whole recording."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.flows import streaming
from stream_jax.flows.context import FlowData, Neighbours, step_at
from stream_jax.flows.residuals import residual_vectors, without_outages
from stream_jax.flows.scale import ScaleConfig, rescale_rows, start_scale
from stream_jax.types import Forecast

HORIZON, CELLS, ORIGINS, LAGS = 3, 4, 12, 2
OUTAGE = 7  # a step in which everything stops
SCALE = ScaleConfig(city_rate=0.3, cell_rate=0.2)  # fast, so that a dozen steps move it
NEIGHBOURS = Neighbours(jnp.zeros((CELLS, 1), jnp.int32), jnp.ones((CELLS, 1), bool))


def recording(trailing: tuple[int, ...]):
    """Forecasts at consecutive origins, and values of the steps 0 .. W + H - 1, of which origin w is step w."""
    shape = (ORIGINS, HORIZON, CELLS, *trailing)
    mean_key, sigma_key, value_key, mask_key = jax.random.split(jax.random.key(0), 4)
    mean = jax.random.uniform(mean_key, shape, minval=40.0, maxval=49.0)
    sigma = jax.random.uniform(sigma_key, shape, minval=0.1, maxval=2.0)
    values = jax.random.uniform(value_key, (ORIGINS + HORIZON, CELLS, *trailing), minval=40.0, maxval=49.0)
    values = values.at[OUTAGE].set(0.0)
    observed = jax.random.bernoulli(mask_key, 0.8, values.shape)
    clock = jnp.arange(4.0 * (ORIGINS + HORIZON)).reshape(-1, 4)
    factor = 0.5 + jnp.arange(float(np.prod(shape[1:]))).reshape(shape[1:]) / 10.0
    return Forecast(mean, sigma), values, observed, clock, factor


def live_step(state, inputs, factor, leads="mean"):
    forecast, value, observed, clock = inputs
    state, step = streaming.observe(state, value, observed, clock, factor, NEIGHBOURS, SCALE, leads)
    return streaming.issue(state, forecast), step._replace(neighbours=None)


def live(forecast, values, observed, clock, factor, leads):
    """The steps of all origins, stepped through."""
    inputs = (forecast, values[:ORIGINS], observed[:ORIGINS], clock[:ORIGINS])
    start = streaming.empty(forecast.mean.shape[1:], LAGS, leads)
    return jax.lax.scan(partial(live_step, factor=factor, leads=leads), start, inputs)[1]


@pytest.mark.parametrize("trailing", [(), (2,)], ids=["one target", "two targets"])
@pytest.mark.parametrize("compile_it", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("leads", ["mean", "all"])
def test_live_steps_are_the_steps_of_the_recording(trailing, compile_it, leads):
    forecast, values, observed, clock, factor = recording(trailing)
    ahead = np.arange(ORIGINS)[:, None] + 1 + np.arange(HORIZON)
    rows, time = residual_vectors(forecast, values[ahead], observed[ahead], np.arange(ORIGINS), factor, leads=leads)
    rows, outage = without_outages(rows)
    assert time[np.asarray(outage)].tolist() == [OUTAGE]
    _, rows = rescale_rows(start_scale(CELLS), rows, SCALE)
    data = FlowData(rows.z, rows.observed, rows.unit, clock[time], NEIGHBOURS)
    run = jax.jit(live, static_argnums=5) if compile_it else live
    steps = run(forecast, values, observed, clock, factor, leads)
    for row, at in enumerate(time[time < ORIGINS]):
        recorded = step_at(data, row, LAGS)._replace(neighbours=None)
        chex.assert_trees_all_close(jax.tree.map(lambda leaf, at=at: leaf[at], steps), recorded, rtol=1e-5)


def test_nothing_is_tested_before_forecasts_of_every_lead_exist():
    forecast, values, _, clock, factor = recording(())
    steps = live(forecast, values, jnp.ones_like(values, bool), clock, factor, "mean")
    # Origin 0 issues the first forecast; the step after it has one lead, the third has all three.
    step = jnp.arange(ORIGINS)
    chex.assert_trees_all_equal(steps.observed.any(1), (step >= HORIZON) & (step != OUTAGE))
    chex.assert_trees_all_equal(steps.z[:HORIZON], jnp.zeros_like(steps.z[:HORIZON]))


def test_a_step_compiles_once():
    forecast, values, observed, clock, factor = recording(())
    compiled = jax.jit(chex.assert_max_traces(n=1)(live_step))
    state = streaming.empty((HORIZON, CELLS), LAGS)
    for at in range(3):
        row = jax.tree.map(lambda leaf, at=at: leaf[at], (forecast, values, observed, clock))
        state, _ = compiled(state, row, factor)
    chex.assert_trees_all_equal(state.pending.mean[1], forecast.mean[1])
