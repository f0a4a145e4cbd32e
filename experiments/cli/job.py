"""The ETL job that the options of a run ask for: the dataset's specification with what the user overrides."""

import dataclasses
import os
from pathlib import Path

from data.errors import DataError
from data.spark_etl.job import JobConfig
from data.spark_etl.schema import CITIES, Box
from data.spark_etl.sensors import SensorSource
from data.spark_etl.sources import GpsColumns
from experiments.cli.options import RunOptions


def job_config(args: RunOptions) -> JobConfig:
    """The dataset's specification with what the command line overrides."""
    spec = CITIES[args.dataset]
    changes: dict = {}
    if args.timezone:
        changes["timezone"] = args.timezone
    if args.box:
        changes["box"] = parse_box(args.box)
    if args.square is not None:
        changes["square_m"] = _positive("--square", args.square)
    if args.cells is not None:
        if spec.source in ("manhattan", "sensors"):
            raise DataError(f"--cells chooses among squares; {args.dataset} has cells of its own, so leave it out.")
        changes["num_cells"] = _cells(args.cells)
    if args.bin_minutes is not None:
        changes["bin_s"] = _bin_seconds(args.bin_minutes)
    sensors = None
    if spec.source == "sensors":
        sensors = SensorSource(
            _matrix_path(args),
            args.adjacency,
            args.coordinates,
            args.feature,
            args.unit,
            args.time_column,
            args.missing_value,
        )
    return JobConfig(dataclasses.replace(spec, **changes), parse_columns(args.columns, args.time_format), sensors)


def raw_folder(args: RunOptions) -> Path | None:
    """Where the user said, or where the environment says; None when neither holds the dataset."""
    if args.raw:
        return args.raw
    root = os.environ.get("STREAM_DATA_DIR")
    found = Path(root) / args.dataset if root else None
    return found if found and found.exists() else None


def parse_box(text: str) -> Box:
    """Four comma-separated degrees."""
    try:
        box = Box(*(float(number) for number in text.split(",")))
    except (TypeError, ValueError):
        raise DataError(f"--box {text!r} is not lon_min,lat_min,lon_max,lat_max in degrees.") from None
    if not (-180 <= box.lon_min < box.lon_max <= 180 and -90 <= box.lat_min < box.lat_max <= 90):
        raise DataError(f"--box {text!r} is empty or not on Earth; the order is lon_min,lat_min,lon_max,lat_max.")
    return box


def parse_columns(text: str | None, time_format: str) -> GpsColumns:
    """`vehicle=...,time=...,lon=...,lat=...`, any of which may be left out."""
    names = {}
    for pair in (text or "").split(","):
        key, _, value = pair.partition("=")
        if pair and (key not in ("vehicle", "time", "lon", "lat") or not value):
            raise DataError(
                f"--columns {pair!r} is not one of vehicle=, time=, lon=, lat= followed by a column's name."
            )
        if pair:
            names[key] = value
    return GpsColumns(**names, time_format=time_format)


def _bin_seconds(minutes: int) -> int:
    if minutes <= 0 or 1440 % minutes:
        raise DataError(f"--bin-minutes {minutes} does not divide a day; use 5, 10, 15, 20, 30 or 60.")
    return 60 * minutes


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise DataError(f"{name} {value:g} is not a positive number; give metres, such as 500.")
    return value


def _cells(number: int) -> int | None:
    if number < 0:
        raise DataError(f"--cells {number} is negative; 0 keeps every square that has flow.")
    return number or None


def _matrix_path(args: RunOptions) -> Path:
    raw = raw_folder(args)
    if raw is None:
        raise DataError("Sensors need --raw: the csv, parquet or npz with one column a sensor.")
    if not raw.is_file():
        raise DataError(f"{raw} is not a file; --raw must name the csv, parquet or npz of the readings.")
    return raw
