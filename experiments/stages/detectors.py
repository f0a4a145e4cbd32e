"""The detectors that CRFN-BY is compared with, by name, and their scores of a fold, kept on disk as ours are.

A rival learns from the rows that the flow learns from and scores the cell-steps that the flow scores. It reads what the
flow reads, residuals of the forecaster: better prepared than in its own paper, so that detectors are compared and not
forecasters. With `:counts` after its name it reads each cell's counts, standardised on the fitting part, as published.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import DataError
from data.spark_etl import shards
from experiments.methods import catalogue
from experiments.methods.detection import flow_quantile
from experiments.presets import ExperimentConfig
from experiments.stages import detection
from experiments.stages.detection import Place
from stream_jax import store
from stream_jax.flows import preparation
from stream_jax.flows.context import FlowData
from stream_jax.flows.preparation import Fitting

FLOW = "flow_quantile"  # our flow's scores of single cells and steps, judged by their own law
LEADS = "flow_all_leads"  # needs the errors of all leads; not among the default rules
COUNTS = ":counts"
RECORDS = catalogue.records(catalogue.DETECTORS)
MODULES = {name: catalogue.module_of(place) for name, place in catalogue.DETECTORS.items()}
# Their scores have a law, which says how likely each is; the others have a threshold of their own.
WITH_LAW = {name: module for name, module in MODULES.items() if hasattr(module, "tail_probability")}
WITH_THRESHOLD = {name: module for name, module in MODULES.items() if name not in WITH_LAW}
NAMES = catalogue.names(catalogue.DETECTORS)
SMALLEST_SD = 1e-3


class RivalScores(NamedTuple):
    """A rival's scores of one fold and seed in one scenario; NaN exactly where ours are."""

    calibration: np.ndarray  # [Tc, N]
    test: np.ndarray  # [T, N]
    tail: np.ndarray  # [T, N] probability of such a score by the rival's own law; NaN if it has none
    threshold: float  # the rival's own; NaN if it has a law instead


class Fitted(NamedTuple):
    """A rival after its fit."""

    params: Any
    mean: np.ndarray | None  # [N] usual counts of the fitting part; None if residuals are read
    sd: np.ndarray | None  # [N]


def check_detectors(names: list[str] | None) -> list[str]:
    """The rivals asked for, each once; refuses one that does not exist."""
    unknown = sorted(set(names or ()) - set(NAMES))
    if unknown:
        raise DataError(f"There is no detector {', '.join(unknown)}; there are {', '.join(NAMES)}.")
    return list(dict.fromkeys(names or ()))


def rival_config(name: str, cfg: ExperimentConfig) -> Any:
    """The settings of one rival: the preset's if it has some, else as its record says."""
    name = name.removesuffix(COUNTS)
    chosen = getattr(cfg.rivals, name, RECORDS[name].config)
    return chosen(cfg) if callable(chosen) else chosen


def score_fold(names: list[str], place: Place, ours: dict[str, detection.Scored]) -> dict[str, dict[str, RivalScores]]:
    """Scores by rival and scenario, read back where they were computed for the same forecaster and settings.

    Args:
        ours: CRFN-BY's scores of the same fold and seed, by scenario.
    """
    mark = detection.mark(place)
    stems = {
        name: f"{name.replace(':', '-')}-fold{place.fold}-seed{place.seed}-{_key(name, place.cfg, mark)}"
        for name in names
    }
    file = lambda name, scenario: place.folder / f"{stems[name]}-{scenario}.npz"  # noqa: E731
    missing = [name for name in names if name != FLOW and not all(file(name, one).exists() for one in ours)]
    upstream = detection.read_upstream(place) if missing else None
    for leads, some in (("mean", [name for name in missing if name != LEADS]), ("all", {LEADS} & set(missing))):
        if not some:
            continue
        fitting = detection.fitting_of(place, upstream, leads)
        fitted = {name: _fit(name, fitting, upstream, place) for name in some}
        for scenario, scored in ours.items():
            recording = detection.scenario_of(place, upstream, scenario, leads)
            for name, one in fitted.items():
                found = _score(name, one, recording, scored, place)
                made = {field: np.asarray(value) for field, value in found._asdict().items()}
                shards.write_arrays(file(name, scenario), **made)
    return {
        name: {
            scenario: _of_flow(one, place.cfg)
            if name == FLOW
            else RivalScores(**shards.read_arrays(file(name, scenario)))
            for scenario, one in ours.items()
        }
        for name in names
    }


def standardised_counts(rows: FlowData, counts: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> FlowData:
    """The same rows with each cell's counts [R, N] in place of the residuals."""
    return rows._replace(z=jnp.asarray((counts - mean) / sd, jnp.float32)[..., None])


def _fit(name: str, fitting: Fitting, upstream: detection.Upstream, place: Place) -> Fitted:
    start = time.perf_counter()
    rows, mean, sd = fitting.rows, None, None
    if name.endswith(COUNTS):
        counts = np.asarray(upstream.data.series.values[fitting.time, :, 0])
        seen = np.ma.masked_array(counts, ~np.asarray(rows.observed))
        mean = np.ma.filled(seen.mean(axis=0), 0.0)
        sd = np.maximum(np.ma.filled(seen.std(axis=0), 1.0), SMALLEST_SD)
        rows = standardised_counts(rows, counts, mean, sd)
    key = jax.random.key(place.cfg.first_seed + place.seed)
    params = _module(name).fit(key, rows, rival_config(name, place.cfg), fitting.held_out)
    place.console.print(f"  {name}, seed {place.seed}: fitted in {time.perf_counter() - start:.0f} s")
    return Fitted(params, mean, sd)


def _score(
    name: str, fitted: Fitted, recording: detection.Scenario, ours: detection.Scored, place: Place
) -> RivalScores:
    (rows, time_of, _), module = recording.prepared, _module(name)
    if fitted.mean is not None:
        counts = np.asarray(recording.series.values[time_of, :, 0])
        rows = standardised_counts(rows, counts, fitted.mean, fitted.sd)
    found = np.asarray(module.scores(fitted.params, rows, rival_config(name, place.cfg)))
    parts = (detection.part_mask(place.dataset, place.fold, part, time_of) for part in ("calibration", "test"))
    calibration, test = (found[part] for part in parts)
    test = np.where(np.isnan(ours.test), np.nan, test)
    has_law = name in WITH_LAW
    return RivalScores(
        np.where(np.isnan(ours.calibration), np.nan, calibration),
        test,
        module.tail_probability(fitted.params, test) if has_law else np.full(test.shape, np.nan),
        float("nan") if has_law else float(fitted.params.threshold),
    )


def _of_flow(ours: detection.Scored, cfg: ExperimentConfig) -> RivalScores:
    rival_config(FLOW, cfg)  # refuses a score without a law
    tail = flow_quantile.tail_probability(flow_quantile.FlowQuantileParams(None, num_targets=1), ours.flow_test)
    return RivalScores(ours.flow_calibration, ours.flow_test, tail, float("nan"))


def _module(name: str) -> Any:
    return MODULES[name.removesuffix(COUNTS)]


def _key(name: str, cfg: ExperimentConfig, mark: str) -> str:
    return store.key("rival_scores", mark, preparation.FIT_DAYS, rival_config(name, cfg))
