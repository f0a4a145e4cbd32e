"""The trained upstream models as one live system, and what it says about the city at every step of a recording."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from data.errors import DataError
from data.loader import TrafficDataset
from experiments.presets import ExperimentConfig
from experiments.stages import detection
from experiments.stages.agent_road import CityDays
from experiments.stages.forecasting import labels_at
from stream_jax import checkpoint, pipeline, store
from stream_jax.checkpoint import ForecasterCheckpoint, System
from stream_jax.conformal import intervals
from stream_jax.flows.crfn_by import Calibration
from stream_jax.gnn.attention import neighbour_table
from stream_jax.rl import agent as agents
from stream_jax.rl import aggregation
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.aggregation import AggregationConfig
from stream_jax.types import ForecastData

KERNEL = AggregationConfig()
CITY = "system"  # folder of a control stage that holds upstream systems


def upstream_system(
    dataset: TrafficDataset,
    out: Path,
    folder: Path,
    seed: int,
    cfg: ExperimentConfig,
    weights: np.ndarray,
    adjacency: np.ndarray,
    console: Console,
    spatial: AggregationConfig = KERNEL,
) -> System:
    """Forecaster, flow, calibrations and aggregation of the last fold with a controller that has learned nothing.

    Trained again only when the forecaster, the flow's config, the road or the aggregation changed.

    Args:
        out: of the run, whose forecaster is used.
        folder: of its control stage, where the system is kept.
        weights: [I, N] share of each cell in each intersection's area.
        spatial: how the cells' uncertainties add up at an intersection.
    """
    fold = dataset.num_folds - 1
    try:
        upstream = detection.load_upstream(out / "forecast", dataset, fold)
    except ValueError as error:
        raise DataError(str(error)) from None
    folder = folder / CITY / _key(upstream, seed, cfg, weights, spatial)
    if (folder / checkpoint.META).exists():
        try:
            return checkpoint.load(folder, dataset.manifest["content_hash"])
        except ValueError:  # damaged, or another version's: it can be made again
            shutil.rmtree(folder)
    console.print("  the city's forecasts and detections, for the controller ...")
    system = _build(dataset, fold, upstream, seed, cfg, weights, adjacency, console, spatial)
    folder.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder, system)
    return system


def city_days(system: System, dataset: TrafficDataset) -> CityDays:
    """Runs the system live over validation, calibration and test; what came before shows the first view."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(dataset.num_folds - 1))
    first = dataset.part("val", dataset.num_folds - 1)[0]
    begun = pipeline.start(jax.random.key(0), system.params, system.conformal, data, first, system.config)
    rest = jax.tree.map(lambda leaf: leaf[first + 1 :], data.series)
    tables = pipeline.city_tables(data.graph)
    _, said = pipeline.observe_series(system.params, tables, begun.city, rest, system.config)
    view = jax.tree.map(
        lambda one, more: np.concatenate([np.repeat(np.asarray(one)[None], first + 1, axis=0), np.asarray(more)]),
        begun.latest.view,
        said.view,
    )
    return CityDays(view, np.asarray(data.series.clock), dataset.manifest["bin_s"])


def _build(
    dataset: TrafficDataset,
    fold: int,
    upstream: ForecasterCheckpoint,
    seed: int,
    cfg: ExperimentConfig,
    weights: np.ndarray,
    adjacency: np.ndarray,
    console: Console,
    spatial: AggregationConfig,
) -> System:
    trained = detection.train_flow(dataset, fold, upstream, seed, cfg, console.is_terminal)
    scores = detection.score(dataset, fold, trained, "clean", seed, cfg)
    pooled = jnp.sort(scores.calibration[~np.isnan(scores.calibration)])
    calibration = Calibration(
        pooled, jnp.asarray(scores.mean), jnp.asarray(scores.sd), jnp.asarray(pooled.size, jnp.int32)
    )
    past, (forecast, label, seen) = _spoken(dataset, fold, ("val", "calibration"), trained)
    cluster = jnp.asarray(upstream.conformal.cluster)[seed]
    conformal = intervals.calibrate(forecast, label, seen, cluster, cfg.conformal)
    aggregator = aggregation.calibrate(
        jnp.asarray(weights, jnp.float32),
        jnp.asarray(dataset.graph.position),
        (past[0].mean, past[1]),
        (forecast.mean, forecast.sigma, label),
        spatial,
    )
    config = pipeline.SystemConfig(
        forecaster=upstream.config,
        conformal=cfg.conformal,
        flow=cfg.flow,
        aggregation=spatial,
        agent=AgentConfig(forecast_horizon=upstream.config.horizon),
    )
    untaught = agents.init(jax.random.key(0), jnp.asarray(adjacency), config.agent)
    params = pipeline.SystemParams(trained.params, trained.factor, trained.flow, calibration, aggregator, untaught)
    return System(params, conformal, config, dataset.manifest["content_hash"])


def _spoken(dataset: TrafficDataset, fold: int, parts: tuple[str, ...], trained: detection.Trained) -> list[tuple]:
    """Forecasts of each part, what came, and where it was observed; all origins in one call, compiled before."""
    data: ForecastData = trained.data
    origins = detection.all_origins(dataset)
    neighbours = neighbour_table(data.graph)
    every = detection.forecast_recording(trained.params, data.series, neighbours, jnp.asarray(origins), trained.config)
    said = (every, *labels_at(data, jnp.asarray(origins), trained.config.horizon))
    rows = [np.isin(origins, dataset.origins(part, fold)) for part in parts]
    return [jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], said) for chosen in rows]


def _key(
    upstream: ForecasterCheckpoint, seed: int, cfg: ExperimentConfig, weights: np.ndarray, spatial: AggregationConfig
) -> str:
    leaves = jax.tree.leaves(upstream.params)
    return store.key("system", seed, cfg.flow, cfg.flow_training, spatial, upstream.config, leaves, weights)
