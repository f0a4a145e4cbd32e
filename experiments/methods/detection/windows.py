"""The recording as a many-valued time series, and its windows: what the detectors made for such series read."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.flows.context import FlowData


def flat_series(data: FlowData) -> tuple[Array, Array]:
    """Values [T, N D], 0 where not observed, and whether each was observed."""
    num_steps, num_cells, num_targets = data.z.shape
    observed = jnp.broadcast_to(data.observed[..., None], data.z.shape)
    flat = (num_steps, num_cells * num_targets)
    return jnp.where(observed, data.z, 0.0).reshape(flat), observed.reshape(flat)


def window_ending_at(series: Array, row: Array, length: int) -> Array:
    """Rows row - length + 1 .. row of [T, M], zeros before the first: [length, M]."""
    index = row - length + 1 + jnp.arange(length)
    return jnp.where((index >= 0)[:, None], series[jnp.maximum(index, 0)], 0)


def cell_scores(entries: Array, data: FlowData) -> Array:
    """Sums entries [T, N D] over the targets of a cell: [T, N], NaN where not observed."""
    return jnp.where(data.observed, entries.reshape(data.z.shape).sum(-1), jnp.nan)


def learning_rows(num_steps: int, held_out: float) -> tuple[Array, Array]:
    """Rows to learn from, and the last share of them, kept to stop early."""
    num_train = num_steps - round(held_out * num_steps)
    if not 0 < num_train < num_steps:
        raise ValueError(f"{num_steps} steps cannot be cut into two parts with a share of {held_out:g} held out")
    rows = jnp.arange(num_steps)
    return rows[:num_train], rows[num_train:]


def over_rows(function: Callable[[Array], Array], num_steps: int, batch: int) -> Array:
    """function(row) for every row, a batch at a time so that memory does not grow with the recording."""
    size = min(batch, num_steps)
    rows = jnp.pad(jnp.arange(num_steps), (0, -num_steps % size)).reshape(-1, size)  # a rest would be compiled again
    found = jax.lax.map(jax.vmap(function), rows)
    return found.reshape(-1, *found.shape[2:])[:num_steps]
