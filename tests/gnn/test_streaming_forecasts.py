"""Claims about the forecaster that is fed one step at a time: it says what `predict` says of the whole recording."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import pytest

from stream_jax.gnn import streaming
from stream_jax.gnn.attention import neighbour_table
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.profile import ProfileConfig
from stream_jax.gnn.pu_gat_plus import predict
from stream_jax.types import ForecastData
from tests.live_city import CFG, DAY, LENGTH, city, random_forecaster


@pytest.fixture(scope="module")
def params():
    return random_forecaster()


@pytest.fixture(scope="module")
def recorded(params):
    """Forecasts of every origin that has a window, from the whole recording."""
    return predict(params, city(), jnp.arange(CFG.history - 1, LENGTH, dtype=jnp.int32), CFG)


def tick(params, state, series_row, neighbours):
    state = streaming.observe(params, state, *series_row, cfg=CFG)
    return state, streaming.forecast(params, state, neighbours, CFG)


def rows(data: ForecastData, begin: int = 0):
    return jax.tree.map(lambda leaf: leaf[begin:], tuple(data.series))


def test_stepping_gives_the_forecast_of_the_recording_at_every_origin(params, recorded):
    data = city(hole=jnp.nan)
    step = partial(tick, params, neighbours=neighbour_table(data.graph))
    _, stepped = jax.jit(lambda state, series: jax.lax.scan(step, state, series))(
        streaming.empty(params, CFG), rows(data)
    )
    from_first_window = jax.tree.map(lambda leaf: leaf[CFG.history - 1 :], stepped)
    # float32 sums in another order; the weights of the experts pass the difference on.
    chex.assert_trees_all_close(from_first_window, recorded, rtol=1e-4, atol=1e-4)


def test_a_warm_start_goes_on_as_if_it_had_always_run_and_compiles_once(params, recorded):
    data, origin = city(), 57
    compiled = jax.jit(chex.assert_max_traces(n=1)(tick))
    state = streaming.start(params, data, origin, CFG)
    assert int(state.step) == origin + 1
    neighbours = neighbour_table(data.graph)
    for at in range(origin + 1, origin + 4):
        row = jax.tree.map(lambda leaf, at=at: leaf[at], tuple(data.series))
        state, said = compiled(params, state, row, neighbours)
        expected = jax.tree.map(lambda leaf, at=at: leaf[at - CFG.history + 1], recorded)
        chex.assert_trees_all_close(said, expected, rtol=1e-4, atol=1e-4)


def test_compiled_and_uncompiled_steps_agree(params):
    data = city()
    state = streaming.start(params, data, 40, CFG)
    row = jax.tree.map(lambda leaf: leaf[41], tuple(data.series))
    step = partial(streaming.observe, cfg=CFG)
    chex.assert_trees_all_close(step(params, state, *row), jax.jit(step)(params, state, *row), rtol=1e-4, atol=1e-5)


def test_environments_can_be_stepped_together(params):
    data = city()
    states = [streaming.start(params, data, origin, CFG) for origin in (30, 50)]
    series = [jax.tree.map(lambda leaf, at=at: leaf[at], tuple(data.series)) for at in (31, 51)]
    neighbours = neighbour_table(data.graph)
    stacked_states, stacked_rows = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *x) for x in (states, series))
    together = jax.jit(jax.vmap(tick, (None, 0, 0, None)))(params, stacked_states, stacked_rows, neighbours)
    alone = jax.jit(tick)(params, states[1], series[1], neighbours)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], together), alone, rtol=1e-4, atol=1e-5)


def test_a_day_too_short_for_its_own_smoothing_is_refused(params):
    # The profile 3 steps ahead would need the smooth value of a step 5 - 3 = 2 back, known only 3 later.
    wide = ForecasterConfig(history=4, horizon=3, profile=ProfileConfig(DAY, smoothing=3))
    with pytest.raises(ValueError, match="too few"):
        streaming.empty(params, wide)
