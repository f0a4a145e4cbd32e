"""The city's side of the controllers: the system that stages `forecast` and `detect` have left, and what it says."""

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
from stream_jax import system
from stream_jax.checkpoint import System, load_detector
from stream_jax.flows import preparation
from stream_jax.rl.aggregation import AggregationConfig

KERNEL = AggregationConfig()


def upstream_system(
    dataset: TrafficDataset,
    out: Path,
    seed: int,
    cfg: ExperimentConfig,
    weights: np.ndarray,
    adjacency: np.ndarray,
    console: Console,
    spatial: AggregationConfig = KERNEL,
) -> System:
    """Forecaster, flow, calibrations and aggregation of the last fold with a controller that has learned nothing.

    The forecaster, its forecasts and the flow are read: what is missing has to be made by its own stage.

    Args:
        out: of the run.
        weights: [I, N] share of each cell in each intersection's area.
        spatial: how the cells' uncertainties add up at an intersection.
    """
    fold, parts = dataset.num_folds - 1, detection.parts_of(dataset, dataset.num_folds - 1)
    place = detection.place_of(dataset, fold, seed, cfg, out, console)
    try:
        detector = load_detector(detection.detector_folder(place), dataset.manifest["content_hash"])
    except ValueError as error:
        raise DataError(str(error)) from None
    record, _ = detection.read_forecasts(place, jax.tree.map(jnp.asarray, dataset.forecast_data(fold)))
    val, calibration = (preparation.part_of(record, dataset.part(name, fold), parts) for name in ("val", "calibration"))
    return system.assemble(
        system.of_seed(place.upstream, seed),
        detector,
        val,
        calibration,
        dataset.graph.position,
        weights,
        adjacency,
        cfg.conformal,
        spatial,
    )


def city_days(trained: System, dataset: TrafficDataset) -> CityDays:
    """Runs the system live over validation, calibration and test; what came before shows the first view."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(dataset.num_folds - 1))
    view = system.city_views(trained, data, dataset.part("val", dataset.num_folds - 1)[0])
    return CityDays(view, np.asarray(data.series.clock), dataset.manifest["bin_s"])
