"""Small recordings that ask for one ability each, on which the rivals are tried."""

import jax.numpy as jnp
import numpy as np

from stream_jax.types import ForecastData, RoadGraph, TrafficSeries

DAY = 8  # steps; a week has 56 slots
TEST = jnp.arange(520, 598)


def recording(flow: np.ndarray, edges: list[tuple[int, int]] = ()) -> ForecastData:
    """Flows [600, N] from a Monday on; edges (sender, receiver) beside the self-loops, all of one kilometre."""
    num_steps, num_cells = flow.shape
    slot = np.arange(num_steps) % (7 * DAY)
    angle = 2.0 * np.pi * np.stack([slot % DAY / DAY, slot / (7 * DAY)], axis=1)
    clock = np.stack([np.sin(angle[:, 0]), np.cos(angle[:, 0]), np.sin(angle[:, 1]), np.cos(angle[:, 1])], axis=1)
    series = TrafficSeries(
        values=jnp.asarray(flow[..., None], jnp.float32),
        observed=jnp.ones((*flow.shape, 1), bool),
        clock=jnp.asarray(clock, jnp.float32),
        slot=jnp.asarray(slot, jnp.int32),
    )
    ends = np.array(sorted([*edges, *((n, n) for n in range(num_cells))], key=lambda edge: edge[1]))
    features = np.stack([ends[:, 0] != ends[:, 1], np.zeros(len(ends)), np.ones(len(ends))], axis=1)
    graph = RoadGraph(*jnp.asarray(ends, jnp.int32).T, jnp.asarray(features, jnp.float32), jnp.zeros((num_cells, 2)))
    return ForecastData(series, graph, train=jnp.arange(3, 420), val=jnp.arange(424, 518))


def noise(num_cells: int, seed: int = 0) -> np.ndarray:
    """Flows [600, N] around 50 with standard deviation 10 that nothing of a cell's own past foretells."""
    return 50.0 + 10.0 * np.random.default_rng(seed).normal(size=(600, num_cells)).clip(-3.0, 3.0)


def copied(flow: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The same flows, but each target shows what its source showed one step before."""
    flow = flow.copy()
    flow[1:, targets] = flow[:-1, sources]
    return flow


def error(forecast_mean: jnp.ndarray, data: ForecastData, cells: np.ndarray) -> float:
    """Root mean square error one step ahead of the last seed's forecasts at `TEST`, over some cells."""
    target = data.series.values[TEST + 1, :, 0]
    return float(jnp.sqrt(jnp.mean((forecast_mean[-1, :, 0] - target)[:, cells] ** 2)))
