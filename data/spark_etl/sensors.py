"""A matrix of sensor readings (time x sensor) as a dataset: csv, parquet or npz, with coordinates or an adjacency."""

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from data.errors import DataError
from data.spark_etl.csv_files import delimiter_of, header_of
from data.spark_etl.inputs import spark_path
from data.spark_etl.local_time import local_to_unix
from data.spark_etl.schema import READING_SCHEMA

# What numpy and pandas raise on a file that is not what its name says.
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, zipfile.BadZipFile)
_PLACE = "c{}"  # what Spark calls a column: names of a user may hold what Spark takes for structure
MICRO = 1_000_000  # readings are summed as integer millionths, so that the mean does not depend on their order


@dataclasses.dataclass(frozen=True)
class SensorSource:
    """Where a sensor matrix comes from and what it means."""

    matrix: Path
    adjacency: Path | None = None
    coordinates: Path | None = None
    feature: str = "flow"
    unit: str = "vehicles per step"
    time_column: str | None = None  # None: the first column
    missing_value: float | None = None  # a reading that means 'no reading', such as 0 in METR-LA


def read_sensors(
    spark: SparkSession, source: SensorSource, timezone: str, scratch: Path
) -> tuple[DataFrame, list[str]]:
    """Long readings (time, sensor index, value; null where missing) and the sensors' names in column order."""
    table, columns = _read_table(spark, source, scratch)
    time = source.time_column or columns[0]
    if time not in columns:
        raise DataError(f"{source.matrix} has no column {time}; its first columns are {', '.join(columns[:8])}.")
    names = [name for name in columns if name != time]
    if not names:
        raise DataError(f"{source.matrix} has no column beside {time}; give one with the readings of each sensor.")
    seconds = _seconds(table, _PLACE.format(columns.index(time)), timezone)
    values = F.array(*(F.col(_PLACE.format(columns.index(name))).try_cast("double") for name in names))
    long = table.select(seconds.alias("time_s"), F.posexplode(values).alias("place", "value"))
    is_reading = F.abs("value") < float("inf")  # NaN is larger than infinity in Spark
    if source.missing_value is not None:
        is_reading = is_reading & (F.col("value") != source.missing_value)
    value = F.when(is_reading, F.col("value")).alias("value")
    return long.select("time_s", "place", value).select(*READING_SCHEMA.names), names


def readings_to_table(readings: DataFrame, bin_s: int) -> DataFrame:
    """Sum of readings in millionths and their number, per sensor and step."""
    micro = F.round(F.col("value") * MICRO).cast("long")
    stepped = readings.withColumn("step", F.floor(F.col("time_s") / bin_s))
    return stepped.groupBy("step", "place").agg(
        F.coalesce(F.sum(micro), F.lit(0)).alias("sum"), F.count("value").alias("count")
    )


def read_adjacency(path: Path, num_sensors: int) -> np.ndarray:
    """A square matrix of non-negative weights from csv, npy or npz (its first array)."""
    try:
        if path.suffix == ".npy":
            matrix = np.load(path, allow_pickle=False)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                matrix = archive[archive.files[0]]
        else:
            matrix = pd.read_csv(path, header=None).to_numpy(float)
    except _UNREADABLE as error:
        raise DataError(
            f"{path} is not a readable adjacency matrix ({error}); give a csv, npy or npz of numbers."
        ) from None
    if matrix.shape != (num_sensors, num_sensors):
        raise DataError(
            f"{path} is {matrix.shape}, but the readings have {num_sensors} sensors: it must be square over them."
        )
    return np.nan_to_num(matrix, nan=0.0, posinf=0.0)


def read_coordinates(path: Path, names: list[str]) -> np.ndarray:
    """Longitude and latitude [N, 2] of each sensor, from a csv with the columns sensor, lon, lat."""
    try:
        table = pd.read_csv(path, dtype=str, sep=delimiter_of(path), keep_default_na=False)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable csv of coordinates ({error}).") from None
    table.columns = [name.strip().lower() for name in table.columns]
    if not {"lon", "lat"} <= set(table.columns):
        raise DataError(f"{path} needs the columns sensor, lon, lat; it has {', '.join(table.columns)}.")
    called = table["sensor"] if "sensor" in table.columns else table.iloc[:, 0]
    by_name = table.set_index(called.astype(str).str.strip())[["lon", "lat"]]
    missing = [name for name in names if name not in by_name.index]
    if missing:
        raise DataError(f"{path} has no coordinates for {len(missing)} sensors, such as {missing[0]}.")
    lonlat = by_name[~by_name.index.duplicated()].loc[names].apply(pd.to_numeric, errors="coerce").to_numpy(float)
    if not (np.abs(lonlat) <= [180, 90]).all():
        name = names[int(np.argmin((np.abs(lonlat) <= [180, 90]).all(axis=1)))]
        raise DataError(f"{path} gives {name} no longitude and latitude in degrees; correct its row.")
    return lonlat


def _read_table(spark: SparkSession, source: SensorSource, scratch: Path) -> tuple[DataFrame, list[str]]:
    """The matrix with its columns called by their place, and the names that they have in the file."""
    path = _npz_as_parquet(source.matrix, scratch) if source.matrix.suffix == ".npz" else source.matrix
    if path.suffix in (".parquet", ".pq"):
        table = spark.read.parquet(spark_path(path))
        return table.toDF(*map(_PLACE.format, range(len(table.columns)))), table.columns
    delimiter = delimiter_of(path)
    columns = header_of(path, delimiter)
    schema = StructType([StructField(_PLACE.format(k), StringType()) for k in range(len(columns))])
    table = spark.read.csv(
        spark_path(path), schema, sep=delimiter, header=True, escape='"', maxColumns=max(len(columns), 20_480)
    )
    return table, columns


def _seconds(table: DataFrame, time: str, timezone: str):
    kind = dict(table.dtypes)[time]
    if kind in ("int", "bigint", "double"):
        return F.col(time).cast("long")
    text = F.col(time).cast("string")
    wall = F.when(text.rlike(r"^\d{4}-\d{1,2}-\d{1,2}"), F.try_to_timestamp(text))
    local = local_to_unix(wall.cast("long"), timezone)[0]
    return F.when(text.rlike(r"^\s*\d+\s*$"), text.try_cast("long")).otherwise(local)  # a number is unix seconds


def _npz_as_parquet(path: Path, scratch: Path) -> Path:
    """The arrays `time` (unix seconds) and `values` [T, N] of an npz, as a parquet that Spark can read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            time, values = archive["time"], archive["values"]
    except _UNREADABLE as error:
        raise DataError(f"{path} needs the arrays time [T] (unix seconds) and values [T, sensors] ({error}).") from None
    if time.ndim != 1 or values.ndim != 2 or len(time) != len(values):
        raise DataError(f"{path}: time is {time.shape} and values {values.shape}; expected [T] and [T, sensors].")
    table = pd.DataFrame(values, columns=[f"sensor_{i}" for i in range(values.shape[1])])
    table.insert(0, "time", time.astype(np.int64))
    target = scratch / "sensors.parquet"
    table.to_parquet(target)
    return target
