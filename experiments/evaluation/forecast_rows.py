"""What the forecast stage says about its methods beyond their scores: paired comparisons, and what gamma became."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from data.loader import TrafficDataset
from experiments.methods.forecasting import boosted_trees, staci
from experiments.methods.forecasting.profile import targets
from experiments.stages.forecasting import BLOCK, OURS, Outcome
from stream_jax.conformal import bootstrap, diagnostics
from stream_jax.gnn import pu_gat_plus

JOINT_CELLS = 20  # the publication's sets have 2 to 30 dimensions
STATISTICS = {"nrmse": bootstrap.nrmse_of_totals} | dict.fromkeys(("mae", "winkler", "crps"), bootstrap.ratio_of_totals)


def comparison_rows(outcomes: dict[str, list[Outcome]], alpha: float) -> list[dict]:
    """Each score of each method minus ours over the same steps, with a paired 95 % block-bootstrap interval.

    A score of several seeds is that of a seed drawn at random. The smaller every score the better.
    """
    if OURS not in outcomes:
        return []
    sums = {method: score_sums(folds, alpha) for method, folds in outcomes.items()}
    rows = []
    for method in sums.keys() - {OURS}:
        for score, statistic in STATISTICS.items():
            both = sums[method][score], sums[OURS][score]
            difference = bootstrap.paired_difference(jax.random.key(0), *both, statistic, BLOCK)
            rows += [
                {
                    "seed": 0,
                    "fold": "all",
                    "metric": f"{score}_{method}_minus_ours_{name}",
                    "value": float(getattr(difference, name)),
                }
                for name in ("estimate", "lower", "upper")
            ]
    return sorted(rows, key=lambda row: row["metric"])


def score_sums(folds: list[Outcome], alpha: float) -> dict[str, np.ndarray]:
    """Sums over the cells of every step, folds one after another, mean over seeds: [W, 2 or 3] of each score."""
    parts = [jax.vmap(partial(_sums, alpha=alpha), (0, 0, None, None))(*one[:2], one.target, one.mask) for one in folds]
    return {name: np.concatenate([np.asarray(part[name].mean(0)) for part in parts]) for name in STATISTICS}


def gamma_rows(params: pu_gat_plus.ForecasterParams, cfg: pu_gat_plus.ForecasterConfig, fold: int) -> list[dict]:
    """Learned gamma of every stream, layer and head; by layer the mean and the share that turned negative."""
    rows = []
    found = _gammas(params.network["params"], cfg.attention.mode == "pairwise")
    for (stream, layer), gamma in found.items():  # gamma [S, heads]
        for seed, values in enumerate(gamma):
            rows += [
                _gamma_row(seed, fold, f"gamma/{stream}/{layer}/head_{k}", value) for k, value in enumerate(values)
            ]
    layers = sorted({layer for _, layer in found})
    for layer in layers:
        together = np.concatenate([gamma for (_, name), gamma in found.items() if name == layer], axis=1)
        for seed, values in enumerate(together):
            rows.append(_gamma_row(seed, fold, f"gamma_mean/{layer}", values.mean()))
            rows.append(_gamma_row(seed, fold, f"gamma_negative_share/{layer}", (values < 0).mean()))
    return rows


def joint_rows(params: staci.StaciParams, dataset: TrafficDataset, fold: int, config: Any, cfg: Any) -> list[dict]:
    """Sets of STACI that hold the busiest cells all at once: how often they did, and how large they are per cell."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
    busiest = jnp.asarray(np.argsort(-np.asarray(data.series.values[..., 0]).mean(axis=0))[:JOINT_CELLS])
    calibration, live = (jnp.asarray(dataset.origins(part, fold)) for part in ("calibration", "test"))
    known = np.asarray(targets(data.series, live, config.horizon)[1][..., busiest].all(axis=-1))  # [W, H]
    rows = []
    for seed in range(params.centre.shape[0]):
        one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], params)
        sets, volume = staci.predict_jointly(one, data, calibration, live, busiest, config, cfg)
        bounded = known & np.isfinite(np.asarray(volume))
        measured = {
            "joint_coverage": np.asarray(sets.covered)[known].mean(),
            "joint_log_volume_per_cell": np.asarray(volume)[bounded].mean() / len(busiest),
        }
        rows += [
            {"seed": seed, "fold": str(fold), "metric": name, "value": float(value)} for name, value in measured.items()
        ]
    return rows


def num_parameters(params: Any) -> int:
    """Trained numbers of one seed; of trees, those in the leaves."""
    if isinstance(params, boosted_trees.BoostedTreesParams):
        return boosted_trees.num_leaves(params)
    return sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(params.network))


def _gammas(network: dict, is_softplus: bool) -> dict[tuple[str, str], np.ndarray]:
    """[S, heads] of every stream and layer that has a gamma."""
    found = {}
    for stream, layers in network.items():
        for layer, weights in layers.items() if isinstance(layers, dict) else ():
            if layer.startswith("layer_") and "gamma" in weights:
                raw = np.asarray(weights["gamma"])
                found[stream, layer] = np.logaddexp(0, raw) if is_softplus else raw
    return found


def _gamma_row(seed: int, fold: int, metric: str, value: float) -> dict:
    return {"seed": seed, "fold": str(fold), "metric": metric, "value": float(value)}


@partial(jax.jit, static_argnames="alpha")
def _sums(forecast: Any, interval: Any, target: Array, mask: Array, alpha: float) -> dict[str, Array]:
    is_finite = (interval.lower <= interval.upper) & (interval.upper < np.inf)  # as in the tables
    width = diagnostics.winkler(interval, target, alpha)
    return {
        "nrmse": bootstrap.nrmse_sums(forecast.mean, target, mask),
        "mae": bootstrap.mean_sums(abs(target - forecast.mean), mask),
        "winkler": bootstrap.mean_sums(width, mask & is_finite),
        "crps": bootstrap.mean_sums(diagnostics.crps_gaussian(forecast, target), mask),
    }
