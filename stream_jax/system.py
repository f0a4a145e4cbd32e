"""A whole system: put together from what the stages have trained, opened from disk, and run over a recording.

Whatever is trained here was trained elsewhere: the forecaster by `gnn`, the flow by `flows`, the controller by `rl`.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax import checkpoint, pipeline
from stream_jax.checkpoint import DetectorCheckpoint, ForecasterCheckpoint, System
from stream_jax.conformal import intervals
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.flows.preparation import Record
from stream_jax.rl import agent as agents
from stream_jax.rl import aggregation
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.aggregation import AggregationConfig
from stream_jax.types import CityView, ForecastData


def of_seed(forecaster: ForecasterCheckpoint, seed: int) -> ForecasterCheckpoint:
    """One of the forecasters that were trained together."""
    pick = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf)[seed], tree)  # noqa: E731
    return forecaster._replace(params=pick(forecaster.params), conformal=pick(forecaster.conformal))


def assemble(
    forecaster: ForecasterCheckpoint,
    detector: DetectorCheckpoint,
    val: Record,
    calibration: Record,
    position: Array,
    weights: Array,
    adjacency: Array,
    conformal: ConformalConfig,
    spatial: AggregationConfig,
) -> System:
    """A system with a controller that has learned nothing; nothing is trained, and nothing forecast.

    Args:
        forecaster: of one seed.
        detector: fitted to this forecaster's residuals.
        val: what the forecaster said about the validation part, and what came.
        calibration: the same of the calibration part.
        position: [N, 2] cell centres in metres.
        weights: [I, N] share of each cell in each intersection's area.
        adjacency: [I, I] row-normalised neighbourhood of the intersections.
        spatial: how the cells' uncertainties add up at an intersection.
    """
    calibrated = intervals.calibrate(*calibration[:3], jnp.asarray(forecaster.conformal.cluster), conformal)
    aggregator = aggregation.calibrate(
        jnp.asarray(weights, jnp.float32),
        jnp.asarray(position),
        (val.forecast.mean, val.target),
        (calibration.forecast.mean, calibration.forecast.sigma, calibration.target),
        spatial,
    )
    config = pipeline.SystemConfig(
        forecaster=forecaster.config,
        conformal=conformal,
        flow=detector.config,
        aggregation=spatial,
        agent=AgentConfig(forecast_horizon=forecaster.config.horizon),
    )
    untaught = agents.init(jax.random.key(0), jnp.asarray(adjacency), config.agent)
    params = pipeline.SystemParams(
        forecaster.params, detector.factor, detector.params, detector.calibration, aggregator, untaught
    )
    return System(jax.tree.map(jnp.asarray, params), calibrated, config, forecaster.data_hash)


def open_system(folder: Path, data_hash: str | None = None) -> System:
    """A trained system on the device; refuses one of another recording than `data_hash`."""
    system = checkpoint.load(folder, data_hash)
    params, conformal = jax.tree.map(jnp.asarray, (system.params, system.conformal))
    return system._replace(params=params, conformal=conformal)


def city_views(system: System, data: ForecastData, first: int) -> CityView:
    """What the system says after each step of a recording, leaves [L, ...], run live from step `first` on.

    The steps before it get the first view.
    """
    begun = pipeline.start(jax.random.key(0), system.params, system.conformal, data, first, system.config)
    rest = jax.tree.map(lambda leaf: leaf[first + 1 :], data.series)
    tables = pipeline.city_tables(data.graph)
    _, said = pipeline.observe_series(system.params, tables, begun.city, rest, system.config)
    return jax.tree.map(
        lambda one, more: np.concatenate([np.repeat(np.asarray(one)[None], first + 1, axis=0), np.asarray(more)]),
        begun.latest.view,
        said.view,
    )
