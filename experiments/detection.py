"""From a trained forecaster to anomaly scores: residuals of each part, the flow, and the scores of every scenario.

Parts keep their purpose: the flow learns on validation residuals, calibration scores are seen by nothing else, test is
scored as it would have been live. Scenarios differ in what is done to the recording before forecasting:
`clean` nothing, `injected` anomalies in the test part, `contaminated` some in the calibration part as well; `incidents`
are those of the recording's own log.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.injection import InjectionConfig, inject_anomalies
from data.loader import TrafficDataset
from experiments.configs import ExperimentConfig
from experiments.forecasting import labels_at
from stream_jax.checkpoint import ForecasterCheckpoint, load_forecaster
from stream_jax.conformal import clusters
from stream_jax.flows import crfn_by
from stream_jax.flows.context import FlowData, neighbour_table
from stream_jax.flows.residuals import residual_vectors, sigma_factor
from stream_jax.gnn import pu_gat_plus
from stream_jax.types import Forecast, ForecastData

CONTAMINATION = 0.02  # of the calibration part, in the scenario that has it


class Scored(NamedTuple):
    """Scores of one fold and seed in one scenario."""

    calibration: np.ndarray  # [Tc, N] NaN where not observed or named by the incident log, whatever the score
    calibration_label: np.ndarray  # [Tc, N] bool, injected anomalies
    test: np.ndarray  # [T, N] NaN where not tested
    first_residual: np.ndarray  # [T, N] one-step normalised residual, for parametric p-values
    kind: np.ndarray  # [T, N] int8, 0 normal, else the kind of anomaly
    mean: float  # of held-out validation scores, for e-values
    sd: float
    time: np.ndarray  # [T] step index of each test row


class Trained(NamedTuple):
    """A forecaster of one seed with the flow fitted on its validation residuals."""

    predict: Any  # (series) -> function of origins
    factor: jax.Array  # [H, N] static calibration of sigma
    flow: crfn_by.FlowParams
    data: ForecastData


def load_upstream(folder: Path, dataset: TrafficDataset, fold: int) -> ForecasterCheckpoint:
    """The forecaster that the forecast stage trained for this fold."""
    return load_forecaster(folder / "checkpoint" / f"pu_gat_plus-fold{fold}", dataset.manifest["content_hash"])


def train_flow(
    dataset: TrafficDataset, fold: int, upstream: ForecasterCheckpoint, seed: int, cfg: ExperimentConfig, progress: bool
) -> Trained:
    """Fits the flow of one seed on the validation residuals of the forecaster of the same seed."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[seed], upstream.params)

    def predict(changed: ForecastData, origins: jax.Array) -> Forecast:
        return pu_gat_plus.predict(params, changed, origins, upstream.config)

    origins = jnp.asarray(dataset.origins("val", fold))
    target, mask = labels_at(data, origins, upstream.config.horizon)
    forecast = predict(data, origins)
    errors = np.asarray((target - forecast.mean) / forecast.sigma)
    cluster = clusters.cluster_cells(errors, np.asarray(mask), dataset.manifest["steps"], cfg.conformal)
    factor = sigma_factor(forecast, target, mask, jnp.asarray(cluster), cfg.conformal.num_clusters)
    residuals = flow_data(dataset, fold, "val", data, predict, factor, upstream.config.horizon)[0]
    key = jax.random.key(cfg.first_seed + seed)
    flow = crfn_by.fit(key, residuals, cfg.flow, cfg.flow_training, progress)
    return Trained(predict, factor, flow, data)


def flow_data(
    dataset: TrafficDataset, fold: int, part: str, data: ForecastData, predict: Any, factor: jax.Array, horizon: int
) -> tuple[FlowData, np.ndarray]:
    """Residual vectors of a part, and the step of each row."""
    origins = dataset.origins(part, fold)
    target, mask = labels_at(data, jnp.asarray(origins), horizon)
    residuals = residual_vectors(predict(data, jnp.asarray(origins)), target, mask, origins, factor)
    clock = data.series.clock[residuals.time]
    flow = FlowData(residuals.z, residuals.observed, clock, neighbour_table(data.graph))
    return flow, np.asarray(residuals.time)


def score(
    dataset: TrafficDataset, fold: int, trained: Trained, scenario: str, seed: int, cfg: ExperimentConfig
) -> Scored:
    """Scores of calibration and test in one scenario."""
    changed, kind = change_recording(dataset, fold, trained, scenario, seed)
    horizon = dataset.manifest["horizon"]
    scores, times, first = {}, {}, None
    for part in ("calibration", "test"):
        rows, times[part] = flow_data(dataset, fold, part, changed, trained.predict, trained.factor, horizon)
        scores[part] = np.asarray(jax.jit(crfn_by.scores, static_argnums=2)(trained.flow, rows, cfg.flow))
        first = np.asarray(rows.z[..., 0])
    events = dataset.events()
    logged = np.zeros_like(kind) if events is None else events["label"]
    if scenario == "incidents":
        kind = logged
    return Scored(
        np.where(logged[times["calibration"]] > 0, np.nan, scores["calibration"]),
        kind[times["calibration"]] > 0,
        scores["test"],
        first,
        kind[times["test"]],
        float(trained.flow.score_mean),
        float(trained.flow.score_sd),
        times["test"],
    )


def change_recording(
    dataset: TrafficDataset, fold: int, trained: Trained, scenario: str, seed: int
) -> tuple[ForecastData, np.ndarray]:
    """The recording with the scenario's anomalies, history included, and the kind of each cell-step. [L, N]"""
    data = trained.data
    kind = np.zeros(data.series.values.shape[:2], np.int8)
    if scenario in ("clean", "incidents"):
        return data, kind
    values = np.array(data.series.values)
    observed = np.asarray(data.series.observed[..., 0])
    residual_sd = residual_deviation(dataset, fold, trained)
    parts = [("test", InjectionConfig())]
    if scenario == "contaminated":
        parts.append(("calibration", InjectionConfig(rate=CONTAMINATION)))
    for number, (part, injection) in enumerate(parts):
        start, stop = dataset.part(part, fold)
        rng = np.random.default_rng([seed, fold, number])
        graph = (np.asarray(data.graph.senders), np.asarray(data.graph.receivers))
        result = inject_anomalies(
            rng, values[start:stop, :, 0], residual_sd, *graph, config=injection, observed=observed[start:stop]
        )
        values[start:stop, :, 0] = result.values
        kind[start:stop] = result.kind
    return data._replace(series=data.series._replace(values=jnp.asarray(values))), kind


def residual_deviation(dataset: TrafficDataset, fold: int, trained: Trained) -> np.ndarray:
    """Standard deviation of each cell's one-step error on the validation part, at least one vehicle. [N]"""
    origins = jnp.asarray(dataset.origins("val", fold))
    target, mask = labels_at(trained.data, origins, dataset.manifest["horizon"])
    error = np.ma.masked_array(
        np.asarray(target - trained.predict(trained.data, origins).mean)[:, 0], ~np.asarray(mask)[:, 0]
    )
    return np.maximum(np.ma.filled(error.std(axis=0), 1.0), 1.0)
