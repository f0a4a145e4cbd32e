"""A context reads the past as far as it looks normal, and nothing of the value that it is used to judge."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.flows.context import ContextConfig, ContextEncoder, FlowData, Neighbours, neighbour_table, step_at
from stream_jax.types import RoadGraph

CFG = ContextConfig(features=8, lags=3, heads=2, layers=2, embedding=2, clip=3.0)
CLIPPED = dataclasses.replace(CFG, beyond="clipped")
STEPS, NODES, DIM = 7, 5, 2
ROW = 4
# Node 4 has a self-loop only; 0 - 1 - 2 - 3 is a path.
SENDERS = np.array([0, 1, 0, 1, 2, 1, 2, 3, 2, 3, 4])
RECEIVERS = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4])


def road_graph():
    return RoadGraph(SENDERS, RECEIVERS, np.zeros((len(SENDERS), 3)), np.zeros((NODES, 2)))


def recording(key=0):
    z = jnp.clip(jax.random.normal(jax.random.key(key), (STEPS, NODES, DIM)), -2.0, 2.0)
    clock = jnp.tile(jnp.array([0.0, 1.0, 0.6, 0.8]), (STEPS, 1))
    return FlowData(z, jnp.ones((STEPS, NODES), bool), jnp.ones_like(z), clock, neighbour_table(road_graph()))


@functools.cache
def encoder(cfg):
    module = ContextEncoder(cfg)
    params = jax.jit(module.init)(jax.random.key(1), step_at(recording(), ROW, cfg.lags))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)  # a fresh encoder does not listen to neighbours yet

    @jax.jit
    def context(data, row=ROW):
        return module.apply(params, step_at(data, row, cfg.lags))  # [N, features]

    return context


def context_jacobian(cfg):
    """d context [N, features] / d z [T, N, D], reduced to the largest size over features and D: [N, T, N]."""
    context, data = encoder(cfg), recording()
    jacobian = jax.jit(jax.jacfwd(lambda z: context(data._replace(z=z))))(data.z)
    return np.abs(np.asarray(jacobian)).max(axis=(1, 4))


def test_context_depends_on_the_lag_window_and_on_nothing_else():
    influence = context_jacobian(CFG)  # [of node, from step, from node]
    window = slice(ROW - CFG.lags, ROW)
    np.testing.assert_array_equal(influence[:, ROW:], 0.0)  # neither the value judged nor anything later
    np.testing.assert_array_equal(influence[:, : ROW - CFG.lags], 0.0)
    assert all(influence[node, window, node].min() > 0.0 for node in range(NODES))
    # Neighbours are heard over the whole window, others only one step ago and in the city's mean.
    assert influence[1, window, 2].min() > 0.0
    assert influence[1, ROW - 1, 4] > 0.0 and not influence[1, : ROW - 1, 4].any()


def test_contemporaneous_context_reads_neighbours_now_but_never_the_cell_itself():
    now = context_jacobian(dataclasses.replace(CFG, contemporaneous=True))[:, ROW]  # [of node, from node]
    is_neighbour = np.zeros((NODES, NODES), bool)
    is_neighbour[RECEIVERS, SENDERS] = RECEIVERS != SENDERS
    np.testing.assert_array_equal(now > 0.0, is_neighbour)


@pytest.mark.parametrize("contemporaneous", [False, True])
def test_residuals_beyond_the_limit_can_enter_a_context_clipped(contemporaneous):
    context, data = encoder(dataclasses.replace(CLIPPED, contemporaneous=contemporaneous)), recording()
    at_limit, beyond = (data._replace(z=data.z.at[:, 2].set(value)) for value in (3.0, 80.0))
    np.testing.assert_array_equal(context(at_limit), context(beyond))
    assert float(jnp.abs(context(at_limit) - context(data)).max()) > 1e-3


@pytest.mark.parametrize("contemporaneous", [False, True])
def test_what_looks_anomalous_is_no_context_as_if_it_had_not_been_observed(contemporaneous):
    context, data = encoder(dataclasses.replace(CFG, contemporaneous=contemporaneous)), recording()
    # One of two coordinates at 4.5, a root mean square above 3, in the past and, for neighbours, at the step itself.
    odd = data._replace(z=data.z.at[ROW - 2 : ROW + 1, 2, 0].set(4.5))
    missing = data._replace(observed=data.observed.at[ROW - 2 : ROW + 1, 2].set(False))
    np.testing.assert_array_equal(context(odd), context(missing))
    assert float(jnp.abs(context(odd) - context(data)).max()) > 1e-3


def test_the_forecasts_own_spread_reaches_the_context_of_its_cell_alone():
    context, data = encoder(CFG), recording()
    quiet = data._replace(unit=data.unit.at[ROW, 1].set(4.0))
    moved = jnp.abs(context(quiet) - context(data)).max(axis=1)
    np.testing.assert_array_equal(moved > 0.0, np.arange(NODES) == 1)
    assert np.isfinite(context(data._replace(unit=jnp.zeros_like(data.unit)))).all()


def test_values_that_were_not_observed_do_not_matter():
    context, data = encoder(CFG), recording()
    hidden = data._replace(observed=data.observed.at[ROW - 1, 2].set(False))
    garbage = hidden._replace(z=hidden.z.at[ROW - 1, 2].set(jnp.nan))
    np.testing.assert_array_equal(context(hidden), context(garbage))
    assert float(jnp.abs(context(hidden) - context(data)).max()) > 1e-3


def test_the_first_row_has_an_empty_past_and_does_not_wrap_around():
    context, data = encoder(CFG), recording()
    first = step_at(data, 0, CFG.lags)
    assert not first.past_observed.any() and not first.past.any()
    np.testing.assert_array_equal(context(data, 0), context(data._replace(z=2.0 * data.z), 0))
    assert np.isfinite(context(data, 0)).all()


def test_lags_are_oldest_first():
    data = recording()
    np.testing.assert_array_equal(step_at(data, ROW, CFG.lags).past, data.z[ROW - 3 : ROW])
    # Row 2 has two rows before it, so the oldest of three lags is missing.
    np.testing.assert_array_equal(step_at(data, 2, CFG.lags).past_observed[:, 0], [False, True, True])


def test_neighbour_table_leaves_self_loops_out():
    table = neighbour_table(road_graph())
    # Node 1 hears 0 and 2; node 4 hears nobody, and its padding points to itself.
    np.testing.assert_array_equal(table.index[1], [0, 2])
    np.testing.assert_array_equal(table.mask.sum(axis=1), [1, 2, 2, 1, 0])
    np.testing.assert_array_equal(table.index[4], [4, 4])


def test_padding_does_not_change_a_context():
    context, data = encoder(CFG), recording()
    table = data.neighbours
    padded = Neighbours(jnp.pad(table.index, ((0, 0), (0, 3))), jnp.pad(table.mask, ((0, 0), (0, 3))))
    np.testing.assert_allclose(context(data), context(data._replace(neighbours=padded)), atol=1e-6)
