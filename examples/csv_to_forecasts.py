"""Your table of vehicle positions to forecasts with 90 % intervals, by library functions.

  python examples/csv_to_forecasts.py                 writes a small synthetic table first and uses that
  python examples/csv_to_forecasts.py taxis.csv       your table, with the columns vehicle, time, lon and lat

The model here is tiny so that the script ends within a minute. For models of a useful size run
`stream-jax run --dataset gps --raw taxis.csv`.
"""

import argparse
import csv
import dataclasses
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from data.errors import DataError
from data.loader import TrafficDataset, load
from data.spark_etl.inputs import RawInputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.schema import CITIES, Box
from data.spark_etl.session import spark_session
from stream_jax.conformal import diagnostics, intervals
from stream_jax.fit import TrainConfig
from stream_jax.gnn.pu_gat_plus import ForecasterConfig, fit, predict
from stream_jax.types import Forecast

DAYS, VEHICLES, MINUTES = 6, 40, 5  # of the synthetic table: its length, its fleet, minutes between two positions
BOX = Box(10.00, 50.00, 10.05, 50.03)  # degrees: about 3.6 by 3.3 km


def write_table(path: Path) -> None:
    """Writes synthetic vehicles that wander through a small city, more of them during the day than at night."""
    rng = np.random.default_rng(0)
    begin = datetime(2024, 3, 4, tzinfo=UTC)
    with open(path, "w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(("vehicle", "time", "lon", "lat"))
        position = rng.random((VEHICLES, 2))  # in the box, 0 to 1
        for minute in range(0, DAYS * 24 * 60, MINUTES):
            now = begin + timedelta(minutes=minute)
            position = np.abs((position + rng.normal(0.0, 0.08, position.shape) + 1.0) % 2.0 - 1.0)
            busy = 0.55 - 0.4 * np.cos(2 * np.pi * (minute / 60 - 3) / 24)  # share of the fleet that is out
            for vehicle in np.flatnonzero(rng.random(VEHICLES) < busy):
                x, y = position[vehicle]
                lon = BOX.lon_min + x * (BOX.lon_max - BOX.lon_min)
                lat = BOX.lat_min + y * (BOX.lat_max - BOX.lat_min)
                table.writerow((vehicle, now.isoformat(), f"{lon:.6f}", f"{lat:.6f}"))


def build_dataset(table: Path, is_synthetic: bool, folder: Path, scratch: Path) -> TrafficDataset:
    """Runs the Spark job: clean the positions, assign them to squares of 1 km, count per 15 minutes."""
    spec = CITIES["gps"] if not is_synthetic else dataclasses.replace(CITIES["gps"], box=BOX)
    spark = spark_session("local[2]", memory="1g", shuffle_partitions=4)
    run_job(spark, JobConfig(spec), RawInputs((table,), synthetic=is_synthetic), folder, Console(quiet=True), scratch)
    return load(folder)


def labels(dataset: TrafficDataset, origins: np.ndarray, horizon: int) -> tuple[jax.Array, jax.Array]:
    """What was observed after each origin, and where: two arrays [origins, horizon, cells]."""
    series = dataset.series()
    ahead = origins[:, None] + 1 + np.arange(horizon)
    return jnp.asarray(series.values[ahead][..., 0]), jnp.asarray(series.observed[ahead][..., 0])


def forecast(dataset: TrafficDataset) -> None:
    """Fits a tiny forecaster, calibrates its intervals, and prints what it says about the busiest cell."""
    last = dataset.num_folds - 1  # a short recording has several folds; the last one trains on most days
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(last))
    cfg = ForecasterConfig(hidden=8, layers=1, heads=2)
    params = fit(jax.random.key(0), data, cfg, TrainConfig(epochs=3))

    # Forecasts of the calibration days say how wide an interval must be; the test days show whether it holds.
    forecasts, observed = {}, {}
    for part in ("calibration", "test"):
        origins = dataset.origins(part, last)
        forecasts[part] = predict(params, data, jnp.asarray(origins), cfg)
        observed[part] = labels(dataset, origins, cfg.horizon)
    conformal = intervals.ConformalConfig(target=0.1, num_clusters=1)
    one_cluster = jnp.zeros(forecasts["test"].mean.shape[-1], jnp.int32)
    state = intervals.calibrate(forecasts["calibration"], *observed["calibration"], one_cluster, conformal)
    _, online = intervals.run_online(state, forecasts["test"], *observed["test"], conformal)
    show(dataset, forecasts["test"], online, *observed["test"])


def show(
    dataset: TrafficDataset, made: Forecast, online: intervals.OnlineResult, target: jax.Array, mask: jax.Array
) -> None:
    """Prints the last forecast of the busiest cell, and how the intervals did on the test days."""
    cell = int(target.mean((0, 1)).argmax())
    lon, lat = dataset.geometry["lonlat"][cell]
    print(f"\nBusiest cell: {lon:.3f} east, {lat:.3f} north. Its last forecast, in vehicles per 15 minutes:")
    for step in range(made.mean.shape[1]):
        lower, upper = online.interval.lower[-1, step, cell], online.interval.upper[-1, step, cell]
        seen = target[-1, step, cell]
        print(
            f"  in {15 * (step + 1)} min: {made.mean[-1, step, cell]:5.1f}, interval [{lower:.1f}, {upper:.1f}], "
            f"observed {seen:.0f}"
        )
    errors = diagnostics.point_errors(made.mean, target, mask)
    quality = diagnostics.interval_quality(online.interval, target, mask, alpha=0.1)
    print(f"All {target.shape[-1]} cells on the test day: NRMSE {errors.nrmse:.3f}, coverage {quality.coverage:.1%}.")
    print(f"Data: {dataset.manifest['data']}.")


def main() -> None:
    """Reads the arguments and runs the three steps in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="?", help="CSV or Parquet with vehicle, time, lon, lat")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        table = args.table or Path(scratch) / "vehicles.csv"
        if args.table is None:
            write_table(table)
        elif not table.exists():
            raise SystemExit(f"{table} does not exist; give the path of a CSV or Parquet file.")
        try:
            dataset = build_dataset(table, args.table is None, Path(scratch) / "dataset", Path(scratch))
        except DataError as error:
            raise SystemExit(str(error)) from None
        rows = dataset.manifest["rows"]
        print(f"{rows['rows_in']:,} positions read, {rows['used']:,} used, {dataset.manifest['cells']} cells.")
        forecast(dataset)


if __name__ == "__main__":
    main()
