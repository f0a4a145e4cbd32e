"""Many seeds in one compiled fit, spread over the devices there are: `python experiments/sweep.py runs/tdrive-default`.

The paper reports 95 % intervals over ten seeds.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich
import tyro
from rich.table import Table

from data import loader
from data.errors import DataError
from experiments.cli import options
from experiments.cli.main import start
from experiments.cli.reading import UNSET, read
from experiments.evaluation import results
from experiments.presets import ExperimentConfig, experiment_config
from experiments.stages import forecasting
from stream_jax.devices import fit_seeds
from stream_jax.gnn import pu_gat_plus

SHOWN = ("nrmse", "mae", "coverage", "riw", "winkler", "crps")


DESCRIPTION = """\
Trains the forecaster with many seeds in one compiled fit, spread over the devices there are.

  stream-jax sweep runs/tdrive-default                ten seeds of the default preset
  stream-jax sweep runs/tdrive-smoke --preset smoke --seeds 4
"""


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """What is trained."""

    run: tyro.conf.Positional[Path]
    """folder of a run whose etl stage is done"""
    preset: Literal[options.PRESETS] = "default"  # type: ignore[valid-type]
    """sizes of the forecaster and of its training"""
    seeds: int = 10
    """number of seeds"""
    folds: Annotated[int | None, UNSET] = None
    """only the last folds of a short recording"""


class Summary(NamedTuple):
    """A metric over seeds; the interval is Student's for their mean, infinite from one seed."""

    mean: float
    lower: float
    upper: float
    seeds: int


def summarise(values: Sequence[float], level: float = 0.95) -> Summary:
    """Mean over seeds with its interval."""
    return Summary(float(np.mean(values)), *results.student(values, level), len(values))


def forecaster_rows(
    dataset: loader.TrafficDataset, cfg: ExperimentConfig, devices: Sequence | None = None
) -> list[dict]:
    """Metrics of every seed over the test parts of all folds together."""
    outcomes = []
    config = forecasting.forecaster_config(forecasting.OURS, dataset, cfg)
    keys = jax.vmap(jax.random.key)(cfg.first_seed + jnp.arange(cfg.seeds))
    for fold in cfg.folds(dataset.num_folds):
        data = jax.tree.map(jnp.asarray, dataset.forecast_data(fold))
        params = fit_seeds(pu_gat_plus.fit, keys, data, config, cfg.training, devices=devices)
        params = jax.device_put(params, jax.devices()[0])
        predict = lambda origins, p=params, d=data: pu_gat_plus.predict(p, d, origins, config)  # noqa: E731
        outcomes.append(forecasting.conformalise(predict, dataset, data, fold, cfg.conformal)[1])
    found = forecasting.metric_rows(outcomes, cfg, loader.DAY_S // dataset.manifest["bin_s"])
    return [row for row in found if row["fold"] == "all"]


def main(argv: Sequence[str] | None = None) -> int:
    """Trains the seeds, prints mean and interval of each metric, and keeps the rows beside the run's results."""
    args = read(SweepOptions, DESCRIPTION, argv, "sweep")
    for name in ("seeds", "folds"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise DataError(f"--{name} {getattr(args, name)} is not a positive number.")
    asked = options.RunOptions(preset=args.preset, seeds=args.seeds, folds=args.folds)
    dataset, console = loader.load(args.run / "data", verify=True), rich.get_console()
    manifest = dataset.manifest
    rows = forecaster_rows(dataset, experiment_config(asked))
    common = {"dataset": manifest["dataset"], "data": manifest["data"], "data_hash": manifest["content_hash"]}
    common |= {"preset": args.preset, "stage": "sweep", "method": forecasting.OURS}
    common |= {"device": jax.devices()[0].device_kind, "devices": len(jax.devices())}
    results.write_rows(args.run / "results" / manifest["dataset"] / "sweep.jsonl", (common | row for row in rows))
    table = Table("metric", "mean", "95 % interval", title=f"{manifest['dataset']} ({manifest['data']})")
    for metric in SHOWN:
        found = summarise([row["value"] for row in rows if row["metric"] == metric])
        table.add_row(metric, f"{found.mean:.4f}", f"[{found.lower:.4f}, {found.upper:.4f}] from {found.seeds} seeds")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(start("sweep"))
