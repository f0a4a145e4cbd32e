"""Small made-up residuals in the form that detectors read."""

import jax.numpy as jnp
import numpy as np

from stream_jax.flows.context import FlowData, Neighbours


def flow_data(values: np.ndarray, observed: np.ndarray | None = None) -> FlowData:
    """Values [T, N] of cells on a ring, each with two neighbours."""
    num_steps, num_cells = values.shape
    cell = np.arange(num_cells)
    neighbours = Neighbours(
        jnp.asarray(np.stack([cell - 1, cell + 1], axis=1) % num_cells), jnp.ones((num_cells, 2), bool)
    )
    seen = np.ones(values.shape, bool) if observed is None else observed
    z = jnp.asarray(values, jnp.float32)[..., None]
    return FlowData(z, jnp.asarray(seen), jnp.ones_like(z), jnp.zeros((num_steps, 4)), neighbours)


def waves(rng: np.random.Generator, num_steps: int, num_cells: int = 3, period: int = 8) -> np.ndarray:
    """A wave per cell with a little noise: every value follows from those before it. [T, N]"""
    phase = 2.0 * np.pi * np.arange(num_cells) / num_cells
    return np.sin(2.0 * np.pi * np.arange(num_steps)[:, None] / period + phase) + rng.normal(
        0.0, 0.05, (num_steps, num_cells)
    )
