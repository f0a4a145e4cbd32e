"""From a trained forecaster to anomaly scores: what it says of the recording, the flow, and scores of every scenario.

Parts keep their purpose. The flow learns on out-of-sample residuals, see `stream_jax.flows.preparation`, and it stops
early by those of val. Calibration scores are seen by nothing else (but see `EvidenceConfig`); test is scored as it
would have been live. Scenarios differ in what is done to the recording before forecasting: `clean` nothing, `injected`
anomalies in the test part, `contaminated` some in the calibration part as well; `incidents` are the logged ones, whose
surroundings the other scenarios leave out.

What is finished is kept in the folder of the stage, each under a key of what it depends on: forecasts of the recording,
the flow with its calibration, and scores. Stage `control` reads the first two.
"""

import dataclasses
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from data.errors import DataError
from data.loader import TrafficDataset
from data.spark_etl import shards
from experiments.evaluation import incident_log
from experiments.presets import ExperimentConfig
from experiments.stages import scenarios
from stream_jax import store
from stream_jax.checkpoint import DetectorCheckpoint, ForecasterCheckpoint, load_detector, load_forecaster
from stream_jax.conformal.fdr import CalibrationSizeWarning
from stream_jax.flows import crfn_by, preparation
from stream_jax.flows.context import neighbour_table
from stream_jax.flows.crfn_by import Calibration, FlowConfig, FlowParams, Judged
from stream_jax.flows.preparation import Factors, Fitting, Parts, Prepared, Record
from stream_jax.flows.residuals import Leads
from stream_jax.gnn import pu_gat_plus
from stream_jax.types import Forecast, ForecastData, TrafficSeries


class Scored(NamedTuple):
    """Scores of one fold and seed in one scenario."""

    calibration: np.ndarray  # [Tc, N] NaN where not observed, in an outage, or near an incident, whatever the score
    calibration_label: np.ndarray  # [Tc, N] bool, injected anomalies
    test: np.ndarray  # [T, N] NaN where not tested
    weight: np.ndarray  # [T, N] of the step-up procedures, from what neighbours and earlier steps showed
    flow_calibration: np.ndarray  # [Tc, N] scores of the flow alone, whose law is known
    flow_test: np.ndarray  # [T, N] the same
    first_residual: np.ndarray  # [T, N] one-step normalised residual, for parametric p-values
    kind: np.ndarray  # [T, N] int8, 0 normal, else the kind of anomaly
    judged: np.ndarray  # [T, N] bool, False where nobody knows: unobserved, outage, near an incident
    mean: float  # of held-out validation scores, for e-values
    sd: float
    time: np.ndarray  # [T] step index of each test row
    outage: np.ndarray  # [T] bool, test steps that the city-wide rule took out
    calibration_outage: np.ndarray  # [Tc] bool


class Place(NamedTuple):
    """One fold and seed of a run: where a detector learns and is judged."""

    dataset: TrafficDataset
    fold: int
    seed: int
    cfg: ExperimentConfig
    upstream: ForecasterCheckpoint  # of the fold, all seeds
    folder: Path  # of the detect stage
    console: Console


class Upstream(NamedTuple):
    """A forecaster of one seed with all that it says of the recording."""

    params: pu_gat_plus.ForecasterParams
    config: pu_gat_plus.ForecasterConfig
    data: ForecastData
    record: Record  # of the recording as it is
    factor: Factors
    deviation: np.ndarray  # [N] of the anchor's one-step errors on val, at least one


class Scenario(NamedTuple):
    """The whole recording in one scenario, as detectors read it."""

    prepared: Prepared
    kind: np.ndarray  # [L, N] int8, kinds of injected anomalies
    series: TrafficSeries  # with the anomalies


def place_of(
    dataset: TrafficDataset, fold: int, seed: int, cfg: ExperimentConfig, out: Path, console: Console
) -> Place:
    """A fold and seed with the forecaster that the forecast stage left; says what to run where it is missing."""
    try:
        upstream = load_upstream(out / "forecast", dataset, fold)
    except ValueError as error:
        raise DataError(str(error)) from None
    if seed >= upstream.params.scaler.scale.shape[0]:
        raise DataError(f"The forecast stage trained fewer than {seed + 1} seeds; run it with --seeds {seed + 1}.")
    return Place(dataset, fold, seed, cfg, upstream, out / "detect", console)


def load_upstream(folder: Path, dataset: TrafficDataset, fold: int) -> ForecasterCheckpoint:
    """The forecaster that the forecast stage trained for this fold."""
    return load_forecaster(folder / "checkpoint" / f"pu_gat_plus-fold{fold}", dataset.manifest["content_hash"])


def detector_folder(place: Place) -> Path:
    """Where the flow and its calibration are kept."""
    return place.folder / "checkpoint" / f"fold{place.fold}-seed{place.seed}-{score_key(place)}"


def load_finished(place: Place) -> DetectorCheckpoint | None:
    """The flow that was trained here for the same forecaster and settings, if there is one that can be read."""
    try:
        return load_detector(detector_folder(place), place.dataset.manifest["content_hash"])
    except ValueError:
        return None


def score_key(place: Place) -> str:
    """Names scores and the flow by all that they depend on."""
    cfg = place.cfg
    return store.key("scores", cfg.flow, cfg.flow_training, cfg.conformal, mark(place))


def mark(place: Place) -> str:
    """Tells forecasters, and the rules of residuals, apart."""
    return store.key("scores", jax.tree.leaves(place.upstream.params), length=64)


def read_upstream(place: Place) -> Upstream:
    """The forecaster of one seed and its forecasts of the recording, which are made if nobody made them before."""
    dataset, config = place.dataset, place.upstream.config
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(place.fold))
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[place.seed], place.upstream.params)
    if not forecast_file(place).exists():
        _forecast_recording(place, params, data)
    record, usual = read_forecasts(place, data)
    parts = parts_of(dataset, place.fold)
    factor = preparation.factors(record, dataset.manifest["steps"], parts, place.cfg.conformal)
    return Upstream(params, config, data, record, factor, usual)


def read_forecasts(place: Place, data: ForecastData) -> tuple[Record, np.ndarray]:
    """What the forecaster said of the recording, and the usual size of the anchor's errors; says who writes them."""
    path = forecast_file(place)
    if not path.exists():
        raise DataError(f"There are no forecasts in {path}; run the detect stage first.")
    arrays = shards.read_arrays(path)
    forecast = Forecast(jnp.asarray(arrays["mean"]), jnp.asarray(arrays["sigma"]))
    origins = all_origins(place.dataset)
    label = pu_gat_plus.labels_at(data.series, jnp.asarray(origins), place.upstream.config.horizon)
    return Record(forecast, *label, origins), arrays["deviation"]


def forecast_file(place: Place) -> Path:
    """Where the forecasts of the whole recording are kept."""
    key = store.key("recording", mark(place), place.upstream.config)
    return place.folder / f"forecasts-fold{place.fold}-seed{place.seed}-{key}.npz"


def train_flow(place: Place, upstream: Upstream) -> FlowParams:
    """Fits the flow of one seed on residuals of the forecaster of the same seed."""
    cfg, fitting = place.cfg, fitting_of(place, upstream, place.cfg.flow.leads)
    flow_cfg = dataclasses.replace(cfg.flow, held_out=fitting.held_out)
    key = jax.random.key(cfg.first_seed + place.seed)
    return crfn_by.fit(key, fitting.rows, flow_cfg, cfg.flow_training, place.console.is_terminal)


def fitting_of(place: Place, upstream: Upstream, leads: Leads) -> Fitting:
    """What a detector may learn from."""
    prepared = _prepared(place, upstream, upstream.record, leads)
    return preparation.fitting_rows(prepared, parts_of(place.dataset, place.fold))


def scenario_of(place: Place, upstream: Upstream, name: str, leads: Leads = "mean") -> Scenario:
    """Changes the recording as the scenario asks; one that was changed is forecast again."""
    where = {part: place.dataset.part(part, place.fold) for part in scenarios.CHANGED.get(name, ())}
    series, kind = scenarios.change(name, upstream.data, upstream.deviation, where, [place.seed, place.fold])
    record = upstream.record if series is upstream.data.series else _forecast_again(place, upstream, series)
    return Scenario(_prepared(place, upstream, record, leads), kind, series)


def score(place: Place, upstream: Upstream, flow: FlowParams, name: str) -> Scored:
    """Scores of calibration and test in one scenario."""
    dataset, cfg = place.dataset, place.cfg.flow
    (rows, time, outage), kind, series = scenario_of(place, upstream, name, cfg.leads)
    judged = crfn_by.judge(flow, rows, cfg)
    alone = crfn_by.judge(flow, rows, cfg.alone())
    near, label = incident_log.surroundings(dataset)
    if name == "incidents":
        kind = label
    calibration, test = (part_mask(dataset, place.fold, part, time) for part in ("calibration", "test"))
    left_out = near if name != "incidents" else np.zeros_like(near)
    hidden = (near[time[calibration]], left_out[time[test]])
    ours, flows = (
        [np.where(mask, np.nan, found[part]) for mask, part in zip(hidden, (calibration, test), strict=True)]
        for found in (np.asarray(judged.score), np.asarray(alone.score))
    )
    unclear = near & (kind == 0) if name == "incidents" else near
    return Scored(
        calibration=ours[0],
        calibration_label=kind[time[calibration]] > 0,
        test=ours[1],
        weight=np.asarray(judged.weight)[test],
        flow_calibration=flows[0],
        flow_test=flows[1],
        first_residual=np.asarray(rows.z[..., 0])[test],
        kind=kind[time[test]],
        judged=np.asarray(series.observed[..., 0])[time[test]] & ~outage[test, None] & ~unclear[time[test]],
        mean=float(flow.score_mean),
        sd=float(flow.score_sd),
        time=time[test],
        outage=outage[test],
        calibration_outage=outage[calibration],
    )


def calibration_of(scored: Scored, cfg: FlowConfig) -> Calibration:
    """The calibration part's scores as the flow's calibration; that they may be few is said once, by the stage."""
    moments = FlowParams(None, np.float32(scored.mean), np.float32(scored.sd))
    judged = Judged(scored.calibration, np.ones_like(scored.calibration), ~np.isnan(scored.calibration))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationSizeWarning)
        return crfn_by.calibrate(moments, judged, cfg, is_outlier=scored.calibration_label)


def all_origins(dataset: TrafficDataset) -> np.ndarray:
    """Every origin that has a full history and all its targets. [W]"""
    about = dataset.manifest
    return np.arange(about["window"] - 1, about["steps"] - about["horizon"], dtype=np.int32)


def parts_of(dataset: TrafficDataset, fold: int) -> Parts:
    """What the steps of a fold are for."""
    about = dataset.manifest
    train, val = dataset.part("train", fold), dataset.part("val", fold)
    return Parts(train, val, about["window"], about["horizon"], 86_400 // about["bin_s"])


def part_mask(dataset: TrafficDataset, fold: int, part: str, time: np.ndarray) -> np.ndarray:
    """Rows whose step lies in a part. [R] bool"""
    start, stop = dataset.part(part, fold)
    return (time >= start) & (time < stop)


def _forecast_recording(place: Place, params: pu_gat_plus.ForecasterParams, data: ForecastData) -> None:
    origins, parts, config = all_origins(place.dataset), parts_of(place.dataset, place.fold), place.upstream.config
    at = jnp.asarray(origins)
    anchor = pu_gat_plus.predict(pu_gat_plus.untrained(params, data, config), data, at, config)
    said = preparation.spoken(anchor, pu_gat_plus.predict(params, data, at, config), origins, parts)
    label = pu_gat_plus.labels_at(data.series, at, config.horizon)
    usual = scenarios.deviation(preparation.part_of(Record(anchor, *label, origins), parts.val, parts))
    mean, sigma = (np.asarray(leaf) for leaf in said)
    shards.write_arrays(forecast_file(place), mean=mean, sigma=sigma, deviation=usual)


def _forecast_again(place: Place, upstream: Upstream, series: TrafficSeries) -> Record:
    """The forecaster on a changed recording; the train part, which no scenario changes, stays with its anchor."""
    record, config = upstream.record, upstream.config
    data, origins = upstream.data._replace(series=series), jnp.asarray(record.origins)
    network = pu_gat_plus.predict(upstream.params, data, origins, config)
    said = preparation.spoken(record.forecast, network, record.origins, parts_of(place.dataset, place.fold))
    return Record(said, *pu_gat_plus.labels_at(series, origins, config.horizon), record.origins)


def _prepared(place: Place, upstream: Upstream, record: Record, leads: Leads) -> Prepared:
    neighbours, parts = neighbour_table(upstream.data.graph), parts_of(place.dataset, place.fold)
    return preparation.prepare(record, upstream.factor, upstream.data.series.clock, neighbours, parts, leads)
