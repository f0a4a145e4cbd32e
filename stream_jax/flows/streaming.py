"""The detector's input one observation at a time: the same steps as `step_at` gives for a whole recording.

Section 4.2. What is carried: the forecasts whose steps are still to come, the scale of recent residuals, the residuals
of the last `lags` steps, and the evidence that weights are made of, which only the flow can bring forward.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.flows.context import FlowStep, Neighbours
from stream_jax.flows.residuals import Leads, residual_now, without_outages
from stream_jax.flows.scale import ScaleConfig, ScaleState, rescale, start_scale
from stream_jax.types import Forecast


class ResidualState(NamedTuple):
    """Forecasts on their way and residuals that a context may read; D = G, or H G with all leads."""

    pending: Forecast  # [H, H, N] or [H, H, N, G]; row d was issued d + 1 steps ago; sigma = +inf where none was
    scale: ScaleState
    past: Array  # [lags, N, D] rescaled, oldest first, 0 where not observed
    past_observed: Array  # [lags, N] bool
    carried: Array  # [N, D] evidence of the steps before, for scores and weights


def empty(shape: tuple[int, ...], lags: int, leads: Leads = "mean") -> ResidualState:
    """Before the first forecast. Args: shape of a forecast, (H, N) or (H, N, G)."""
    horizon, cells = shape[:2]
    width = (shape[2] if len(shape) == 3 else 1) * (horizon if leads == "all" else 1)
    mean = jnp.zeros((horizon, *shape))
    return ResidualState(
        pending=Forecast(mean, jnp.full_like(mean, jnp.inf)),
        scale=start_scale(cells),
        past=jnp.zeros((lags, cells, width)),
        past_observed=jnp.zeros((lags, cells), bool),
        carried=jnp.zeros((cells, width)),
    )


def observe(
    state: ResidualState,
    value: Array,
    observed: Array,
    clock: Array,
    factor: Array,
    neighbours: Neighbours,
    cfg: ScaleConfig,
    leads: Leads = "mean",
) -> tuple[ResidualState, FlowStep]:
    """Judges the forecasts that were made for the step just observed.

    No cell counts as observed until forecasts of every lead have been issued, nor while the whole city breaks away from
    its forecasts.

    Args: value, observed [N] or [N, G] of the targets; clock [4]; factor like a forecast, from `sigma_factor`.
    """
    chex.assert_equal_shape([value, observed, state.pending.mean[0, 0]])
    row, _ = without_outages(residual_now(state.pending, value, observed, factor, leads=leads))
    scale, now = rescale(state.scale, row, cfg)
    step = FlowStep(now.z, now.observed, now.unit, state.past, state.past_observed, clock, neighbours)
    past, past_observed = _push(state.past, now.z), _push(state.past_observed, now.observed)
    return state._replace(scale=scale, past=past, past_observed=past_observed), step


def issue(state: ResidualState, forecast: Forecast) -> ResidualState:
    """Takes in the forecast made at the step just observed; call it once after every `observe`."""
    chex.assert_equal_shape([forecast.mean, forecast.sigma, state.pending.mean[0]])
    pending = jax.tree.map(lambda rows, new: jnp.concatenate([new[None], rows[:-1]]), state.pending, forecast)
    return state._replace(pending=pending)


def _push(rows: Array, newest: Array) -> Array:
    """Rows oldest first, the oldest dropped."""
    return jnp.concatenate([rows[1:], newest[None]])
