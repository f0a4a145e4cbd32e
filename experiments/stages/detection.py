"""From a trained forecaster to anomaly scores: residuals of the recording, the flow, and the scores of every scenario.

Parts keep their purpose. The flow learns on out-of-sample residuals: over the train part, which the network has seen,
those of its causal anchor alone, and it stops early by the network's own on val. Calibration scores are seen by nothing
else (but see `EvidenceConfig`); test is scored as it would have been live. Scenarios differ in what is done to the
recording before forecasting: `clean` nothing, `injected` anomalies in the test part, `contaminated` some in the
calibration part as well; `incidents` are the logged ones, whose surroundings the other scenarios leave out.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from data.injection import InjectionConfig, inject_anomalies
from data.loader import TrafficDataset
from experiments.evaluation import incident_log
from experiments.presets import ExperimentConfig
from experiments.stages.forecasting import labels_at
from stream_jax.checkpoint import ForecasterCheckpoint, load_forecaster
from stream_jax.conformal import clusters
from stream_jax.flows import crfn_by, residuals, scale
from stream_jax.flows.context import FlowData, neighbour_table
from stream_jax.gnn import attention, inputs, pu_gat_plus
from stream_jax.types import Forecast, ForecastData, TrafficSeries

CONTAMINATION = 0.02  # of the calibration part, in the scenario that has it
FORECAST_BATCH = 64
FIT_DAYS = 7  # of the train part, the last, from which the flow learns; more days cost time and gain nothing


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


class Trained(NamedTuple):
    """A forecaster of one seed with the flow fitted on its residuals."""

    params: pu_gat_plus.ForecasterParams
    config: pu_gat_plus.ForecasterConfig
    anchor: Forecast  # [W, H, N] of the zero-correction network, sigma calibrated on the train part
    factor: Array  # [H, N] static calibration of the network's sigma
    flow: crfn_by.FlowParams
    data: ForecastData


class Fitting(NamedTuple):
    """What every detector learns from: the last days of the train part and the val part."""

    rows: FlowData
    time: np.ndarray  # [R] step of each row
    held_out: float  # share of the rows, the last, that lies in val and stops training early


class ScenarioRows(NamedTuple):
    """The whole recording in one scenario, as detectors read it."""

    rows: FlowData
    time: np.ndarray  # [R] step of each row
    outage: np.ndarray  # [R] bool
    kind: np.ndarray  # [L, N] int8, kinds of injected anomalies
    series: TrafficSeries  # with the anomalies


def load_upstream(folder: Path, dataset: TrafficDataset, fold: int) -> ForecasterCheckpoint:
    """The forecaster that the forecast stage trained for this fold."""
    return load_forecaster(folder / "checkpoint" / f"pu_gat_plus-fold{fold}", dataset.manifest["content_hash"])


def train_flow(
    dataset: TrafficDataset, fold: int, upstream: ForecasterCheckpoint, seed: int, cfg: ExperimentConfig, progress: bool
) -> Trained:
    """Fits the flow of one seed on residuals of the forecaster of the same seed."""
    trained, fitting = prepare(dataset, fold, upstream, seed, cfg)
    flow_cfg = dataclasses.replace(cfg.flow, held_out=fitting.held_out)
    key = jax.random.key(cfg.first_seed + seed)
    return trained._replace(flow=crfn_by.fit(key, fitting.rows, flow_cfg, cfg.flow_training, progress))


def prepare(
    dataset: TrafficDataset, fold: int, upstream: ForecasterCheckpoint, seed: int, cfg: ExperimentConfig
) -> tuple[Trained, Fitting]:
    """The forecaster of one seed with its calibrated spreads, without a flow, and what a detector may learn from."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[seed], upstream.params)
    config, neighbours = upstream.config, attention.neighbour_table(data.graph)
    origins = all_origins(dataset)
    forecast = forecast_recording(params, data.series, neighbours, jnp.asarray(origins), config)
    untrained = anchor_params(params, data.series, neighbours, config)
    anchor = forecast_recording(untrained, data.series, neighbours, jnp.asarray(origins), config)
    label = labels_at(data, jnp.asarray(origins), config.horizon)
    in_val = np.isin(origins, dataset.origins("val", fold))
    in_train = np.isin(origins, dataset.origins("train", fold)) & (origins >= warm_up(dataset, fold))
    errors = np.asarray((label[0] - forecast.mean) / forecast.sigma)[in_val]
    cluster = clusters.cluster_cells(errors, np.asarray(label[1])[in_val], dataset.manifest["steps"], cfg.conformal)

    def factor_of(made: Forecast, rows: np.ndarray) -> Array:
        some = jax.tree.map(lambda leaf: leaf[rows], (made, *label))
        return residuals.sigma_factor(*some, jnp.asarray(cluster), cfg.conformal.num_clusters)

    anchor = anchor._replace(sigma=anchor.sigma * factor_of(anchor, in_train))
    trained = Trained(params, config, anchor, factor_of(forecast, in_val), None, data)
    rows, time, _ = flow_data(dataset, fold, trained, data.series, forecast, cfg.flow.leads)
    middle, last = dataset.part("val", fold)
    first = max(warm_up(dataset, fold), middle - FIT_DAYS * 86_400 // dataset.manifest["bin_s"])
    fitting = (time >= first) & (time < last)
    share = (time[fitting] >= middle).mean()
    return trained, Fitting(take(rows, fitting), time[fitting], float(share))


def score(
    dataset: TrafficDataset, fold: int, trained: Trained, scenario: str, seed: int, cfg: ExperimentConfig
) -> Scored:
    """Scores of calibration and test in one scenario."""
    rows, time, outage, kind, series = scenario_rows(dataset, fold, trained, scenario, seed, cfg.flow.leads)
    scores, weight = (np.asarray(part) for part in _judge(trained.flow, rows, cfg.flow.scoring()))
    alone = np.asarray(_judge(trained.flow, rows, cfg.flow.alone().scoring())[0])
    near, label = incident_log.surroundings(dataset)
    if scenario == "incidents":
        kind = label
    calibration, test = (part_mask(dataset, fold, part, time) for part in ("calibration", "test"))
    left_out = near if scenario != "incidents" else np.zeros_like(near)
    hidden = (near[time[calibration]], left_out[time[test]])
    ours, flows = (
        [np.where(mask, np.nan, found[part]) for mask, part in zip(hidden, (calibration, test), strict=True)]
        for found in (scores, alone)
    )
    unclear = near & (kind == 0) if scenario == "incidents" else near
    return Scored(
        calibration=ours[0],
        calibration_label=kind[time[calibration]] > 0,
        test=ours[1],
        weight=weight[test],
        flow_calibration=flows[0],
        flow_test=flows[1],
        first_residual=np.asarray(rows.z[..., 0])[test],
        kind=kind[time[test]],
        judged=np.asarray(series.observed[..., 0])[time[test]] & ~outage[test, None] & ~unclear[time[test]],
        mean=float(trained.flow.score_mean),
        sd=float(trained.flow.score_sd),
        time=time[test],
        outage=outage[test],
        calibration_outage=outage[calibration],
    )


def scenario_rows(
    dataset: TrafficDataset, fold: int, trained: Trained, scenario: str, seed: int, leads: residuals.Leads = "mean"
) -> ScenarioRows:
    """Changes the recording as the scenario asks and forecasts it again."""
    series, kind = change_recording(dataset, fold, trained, scenario, seed)
    neighbours = attention.neighbour_table(trained.data.graph)
    origins = jnp.asarray(all_origins(dataset))
    forecast = forecast_recording(trained.params, series, neighbours, origins, trained.config)
    return ScenarioRows(*flow_data(dataset, fold, trained, series, forecast, leads), kind, series)


def flow_data(
    dataset: TrafficDataset,
    fold: int,
    trained: Trained,
    series: TrafficSeries,
    forecast: Forecast,
    leads: residuals.Leads = "mean",
) -> tuple[FlowData, np.ndarray, np.ndarray]:
    """Rescaled residuals of the whole recording, the step of each row, and which steps are city-wide outages.

    Origins of the train part speak through the anchor, later ones through the network. [R, ...], [R], [R]
    """
    origins = all_origins(dataset)
    is_train = jnp.asarray(origins < dataset.part("train", fold)[1])[:, None, None]
    network = forecast._replace(sigma=forecast.sigma * trained.factor)
    mixed = jax.tree.map(lambda ours, theirs: jnp.where(is_train, ours, theirs), trained.anchor, network)
    label = labels_at(trained.data._replace(series=series), jnp.asarray(origins), trained.config.horizon)
    rows, time = residuals.residual_vectors(mixed, *label, origins, leads=leads)
    rows, outage = residuals.without_outages(rows)
    # The first day has no profile behind its forecasts; scales that followed it would have to come all the way back.
    warm = jnp.asarray(time >= warm_up(dataset, fold))
    rows = rows._replace(observed=rows.observed & warm[:, None])
    _, scaled = _rescale(scale.start_scale(rows.z.shape[1]), rows)
    clock = series.clock[time]
    flow = FlowData(scaled.z, scaled.observed, scaled.unit, clock, neighbour_table(trained.data.graph))
    return flow, time, np.asarray(outage & warm)


@partial(jax.jit, static_argnums=3)
def anchor_params(
    params: pu_gat_plus.ForecasterParams,
    series: TrafficSeries,
    neighbours: attention.Neighbours,
    config: pu_gat_plus.ForecasterConfig,
) -> pu_gat_plus.ForecasterParams:
    """The forecaster before any training: its answers rest on nothing but the past of each origin."""
    shared = (inputs.prepare(series, params.scaler, config), params.scaler, neighbours)
    origin = jnp.array([config.history - 1])
    return params._replace(network=pu_gat_plus.init_params(jax.random.key(0), shared, origin, config))


@partial(jax.jit, static_argnums=4)
def forecast_recording(
    params: pu_gat_plus.ForecasterParams,
    series: TrafficSeries,
    neighbours: attention.Neighbours,
    origins: Array,
    config: pu_gat_plus.ForecasterConfig,
) -> Forecast:
    """Forecasts of all origins, [W, H, N]; compiled once for all folds, seeds and scenarios."""
    shared = (inputs.prepare(series, params.scaler, config), params.scaler, neighbours)
    one = partial(pu_gat_plus.forecast_at, params, shared, cfg=config)
    return jax.lax.map(one, origins, batch_size=FORECAST_BATCH)


def change_recording(
    dataset: TrafficDataset, fold: int, trained: Trained, scenario: str, seed: int
) -> tuple[TrafficSeries, np.ndarray]:
    """The recording with the scenario's anomalies, history included, and the kind of each cell-step. [L, N]"""
    series, graph = trained.data.series, trained.data.graph
    kind = np.zeros(series.values.shape[:2], np.int8)
    if scenario in ("clean", "incidents"):
        return series, kind
    values = np.array(series.values)
    observed = np.asarray(series.observed[..., 0])
    residual_sd = residual_deviation(dataset, fold, trained)
    parts = [("test", InjectionConfig())]
    if scenario == "contaminated":
        parts.append(("calibration", InjectionConfig(rate=CONTAMINATION)))
    for number, (part, injection) in enumerate(parts):
        start, stop = dataset.part(part, fold)
        rng = np.random.default_rng([seed, fold, number])
        edges = (np.asarray(graph.senders), np.asarray(graph.receivers))
        result = inject_anomalies(
            rng, values[start:stop, :, 0], residual_sd, *edges, config=injection, observed=observed[start:stop]
        )
        values[start:stop, :, 0] = result.values
        kind[start:stop] = result.kind
    return series._replace(values=jnp.asarray(values)), kind


def residual_deviation(dataset: TrafficDataset, fold: int, trained: Trained) -> np.ndarray:
    """Standard deviation of each cell's one-step error of the anchor on the validation part, at least one. [N]"""
    origins = all_origins(dataset)
    target, mask = labels_at(trained.data, jnp.asarray(origins), trained.config.horizon)
    error = np.asarray(target - trained.anchor.mean)[:, 0]
    in_val = np.isin(origins, dataset.origins("val", fold))
    masked = np.ma.masked_array(error[in_val], ~np.asarray(mask)[in_val, 0])
    return np.maximum(np.ma.filled(masked.std(axis=0), 1.0), 1.0)


def all_origins(dataset: TrafficDataset) -> np.ndarray:
    """Every origin that has a full history and all its targets. [W]"""
    about = dataset.manifest
    return np.arange(about["window"] - 1, about["steps"] - about["horizon"], dtype=np.int32)


def part_mask(dataset: TrafficDataset, fold: int, part: str, time: np.ndarray) -> np.ndarray:
    """Rows whose step lies in a part. [R] bool"""
    start, stop = dataset.part(part, fold)
    return (time >= start) & (time < stop)


def warm_up(dataset: TrafficDataset, fold: int) -> int:
    """First step with a day of profile behind it, or the middle of a train part that is hardly longer than a day."""
    start, stop = dataset.part("train", fold)
    per_day = 86_400 // dataset.manifest["bin_s"]
    return start + min(per_day + dataset.manifest["horizon"], (stop - start) // 2)


def take(rows: FlowData, mask: np.ndarray) -> FlowData:
    """Some consecutive rows."""
    return FlowData(*(leaf[mask] for leaf in rows[:4]), rows.neighbours)


_judge = jax.jit(crfn_by.judge, static_argnums=2)
_rescale = jax.jit(scale.rescale_rows)
