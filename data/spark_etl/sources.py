"""One reader per kind of GPS recording, each ending in the raw-row schema: identity, time, position, what is wrong.

A row that cannot be used is never coerced: it is marked with its `problem`, counted and set aside.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from data.errors import DataError
from data.spark_etl.local_time import local_to_unix
from data.spark_etl.schema import PORTO_SCHEMA, RAW_COLUMNS

MALFORMED = "malformed"
NONEXISTENT = "nonexistent_local_time"

CORRUPT = "_corrupt"  # a csv row with too few or too many fields, as it was read
WALL_TIME = 19  # characters of YYYY-MM-DD HH:MM:SS; Spark would read a bare date as midnight and a bare time as today's

PORTO_SECONDS_PER_POINT = 15
PLT_HEADERS = (
    "Geolife trajectory",
    "WGS 84",
    "Altitude is in Feet",
    "Reserved 3",
    "0,2,255,My Track,0,0,2,8421376",
    "0",
)


@dataclasses.dataclass(frozen=True)
class GpsColumns:
    """Which columns of a user's own table mean what."""

    vehicle: str = "vehicle"
    time: str = "time"
    lon: str = "lon"
    lat: str = "lat"
    time_format: str = "iso"  # iso | unix (seconds) | unix_ms | a Spark datetime pattern such as dd/MM/yyyy HH:mm


def read_tdrive(spark: SparkSession, paths: Sequence[str], timezone: str) -> DataFrame:
    """T-Drive text: `taxi_id,YYYY-MM-DD HH:MM:SS,lon,lat`, local time, no header; plain, gz or bz2."""
    # Split by hand: faster than Spark's csv reader, which looks for quotes where there are none.
    lines = spark.read.text(list(paths)).filter(F.col("value") != "")
    lines = lines.select("value", F.split("value", ",").alias("field"))
    taxi, time, lon, lat = (F.get("field", F.lit(i)) for i in range(4))
    is_time = (F.size("field") == 4) & (F.length(time) == WALL_TIME)
    wall = F.when(is_time, F.try_to_timestamp(time))
    return _points(lines, taxi, taxi, wall, timezone, lon, lat, F.col("value"))


def read_porto(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Porto csv: one trip a row, POLYLINE a JSON list of [lon, lat] every 15 s from TIMESTAMP (unix seconds, UTC).

    A trip flagged MISSING_DATA has unknown holes in its polyline, so the times of its points are unknown: all its
    points are malformed. An empty polyline has no point and so no row.
    """
    reader = spark.read.option("columnPruning", "false")  # with pruned columns Spark does not count the fields
    trips = reader.csv(
        list(paths),
        schema=PORTO_SCHEMA,
        header=True,
        columnNameOfCorruptRecord="bad",
        enforceSchema=False,
        escape='"',
    )
    trips = trips.withColumns(
        {
            "path": F.from_json("POLYLINE", "array<array<double>>", {"mode": "PERMISSIVE"}),
            "start_s": F.expr("try_cast(TIMESTAMP AS bigint)"),
        }
    )
    is_named = (F.trim("TRIP_ID") != "") & (F.trim("TAXI_ID") != "")
    is_read = F.col("bad").isNull() & F.col("start_s").isNotNull() & F.col("path").isNotNull()
    is_bad_trip = ~(is_read & F.coalesce(is_named, F.lit(False)))
    no_fix = F.array(F.array(F.lit(None).cast("double")))  # a trip that cannot be read counts as one malformed row
    trips = trips.withColumn("bad_trip", is_bad_trip).withColumn(
        "path", F.when(is_bad_trip, no_fix).otherwise(F.col("path"))
    )
    fixes = trips.select("*", F.posexplode("path").alias("index", "fix"))
    lon, lat = F.get("fix", F.lit(0)), F.get("fix", F.lit(1))
    is_malformed = (
        F.col("bad_trip") | ~F.col("MISSING_DATA").eqNullSafe("False") | (F.size("fix") != 2) | ~_is_position(lon, lat)
    )
    return _raw_rows(
        fixes,
        vehicle=F.xxhash64("TAXI_ID"),
        # TRIP_IDs of the official file are not unique; with the start time very few are left that are not.
        trip=F.xxhash64("TRIP_ID", "TIMESTAMP"),
        time_s=F.col("start_s") + PORTO_SECONDS_PER_POINT * F.col("index"),
        lon=lon,
        lat=lat,
        problem=F.when(is_malformed, MALFORMED),
        raw=F.concat_ws(",", "TRIP_ID", "TAXI_ID", "TIMESTAMP", "MISSING_DATA", F.substring("POLYLINE", 1, 80)),
    )


def read_geolife(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """GeoLife `.plt`: six header lines, then `lat,lon,0,altitude,days,YYYY-MM-DD,HH:MM:SS` in GMT."""
    lines = spark.read.text(list(paths)).withColumn("file", F.col("_metadata.file_path"))
    text = F.rtrim(F.regexp_replace("value", "\r$", ""))
    lines = lines.withColumn("line", text).filter(~F.col("line").isin("", *PLT_HEADERS))
    field = F.split("line", ",")
    lines = lines.withColumn("field", field)
    time = F.concat_ws(" ", F.get("field", F.lit(5)), F.get("field", F.lit(6)))
    is_time = (F.size("field") == 7) & (F.length(time) == WALL_TIME)
    wall = F.when(is_time, F.try_to_timestamp(time))
    user = F.regexp_extract("file", r"([^/]+)/(?:Trajectory/)?[^/]+$", 1)
    return _points(
        lines, user, F.col("file"), wall, "UTC", F.get("field", F.lit(1)), F.get("field", F.lit(0)), F.col("line")
    )


def read_gps(
    spark: SparkSession, paths: Sequence[str], columns: GpsColumns, timezone: str, delimiter: str = ","
) -> DataFrame:
    """A user's own csv (with header) or parquet of vehicle, time, longitude, latitude."""
    is_parquet = {path.endswith((".parquet", ".pq")) for path in paths}
    if len(is_parquet) > 1:
        raise DataError(f"There are both csv and parquet files beside {Path(paths[0]).name}; give one kind with --raw.")
    table = spark.read.parquet(*paths) if is_parquet == {True} else read_csv(spark, paths, delimiter)
    wanted = (columns.vehicle, columns.time, columns.lon, columns.lat)
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        there = ", ".join(name for name in table.columns if name != CORRUPT)
        raise DataError(
            f"{Path(paths[0]).name} has no column {', '.join(missing)}; its columns are {there}. "
            "Name yours with --columns vehicle=...,time=...,lon=...,lat=..."
        )
    vehicle, time, lon, lat = (column_of(name).cast("string") for name in wanted)
    raw = F.concat_ws(",", vehicle, time, lon, lat)
    moment, is_absolute = _gps_moment(table, columns)
    table = table.withColumns({"_moment": moment, "_absolute": is_absolute})
    seconds, is_skipped = local_to_unix(F.col("_moment"), timezone)
    seconds = F.when(F.col("_absolute"), F.col("_moment")).otherwise(seconds)
    return _points_at(table, vehicle, vehicle, seconds, is_skipped & ~F.col("_absolute"), lon, lat, raw)


def column_of(name: str) -> Column:
    """The column of exactly this name, which may hold dots and backticks."""
    return F.col("`" + name.replace("`", "``") + "`")


def read_csv(spark: SparkSession, paths: Sequence[str], delimiter: str = ",") -> DataFrame:
    """Csv files with one and the same header, every column text, and a last column CORRUPT."""
    options = {"header": True, "ignoreLeadingWhiteSpace": True, "ignoreTrailingWhiteSpace": True}
    options |= {"sep": delimiter, "escape": '"'}  # a quote in quotes is doubled (RFC 4180)
    names = [*spark.read.options(**options).csv(list(paths)).columns, CORRUPT]
    schema = StructType([StructField(name, StringType()) for name in names])
    reader = spark.read.options(**options, columnPruning=False)  # with pruned columns Spark does not count the fields
    return reader.csv(list(paths), schema=schema, enforceSchema=False, columnNameOfCorruptRecord=CORRUPT)


def _gps_moment(table: DataFrame, columns: GpsColumns) -> tuple[Column, Column]:
    """Seconds of a user's time column, and whether they are unix seconds: a time without an offset is a wall clock."""
    column, kind = column_of(columns.time), dict(table.dtypes)[columns.time]
    text = F.trim(column.cast("string"))
    if columns.time_format in ("unix", "unix_ms"):
        divisor = 1000 if columns.time_format == "unix_ms" else 1
        number = column.try_cast("double")
        return F.when(F.abs(number) < float("inf"), F.floor(number / divisor)), F.lit(True)
    if columns.time_format != "iso":
        moment = F.try_to_timestamp(text, F.lit(columns.time_format))
        is_absolute = F.lit(bool(re.search("[XxZzVO]", re.sub("'[^']*'", "", columns.time_format))))
    elif kind.startswith("timestamp"):
        moment, is_absolute = column.cast("timestamp"), F.lit(kind == "timestamp")
    else:
        moment = F.when(text.rlike(r"^\d{4}-\d{1,2}-\d{1,2}[T ]\d"), F.try_to_timestamp(text))
        is_absolute = text.rlike(r":\d{1,2}(\.\d+)?\s*[A-Za-z+-]")
    return moment.cast("long"), is_absolute  # the session's zone is UTC


def _points(
    rows: DataFrame, vehicle: Column, trip: Column, wall: Column, timezone: str, lon: Column, lat: Column, raw: Column
) -> DataFrame:
    """Raw rows from wall-clock timestamps and positions given as text."""
    rows = rows.withColumn("local_s", wall.cast("long"))  # the session's zone is UTC
    seconds, is_skipped = local_to_unix(F.col("local_s"), timezone)
    return _points_at(rows, vehicle, trip, seconds, is_skipped, lon, lat, raw)


def _points_at(
    rows: DataFrame,
    vehicle: Column,
    trip: Column,
    time_s: Column,
    is_skipped: Column,
    lon: Column,
    lat: Column,
    raw: Column,
) -> DataFrame:
    """Raw rows from unix seconds and positions given as text; whatever does not parse is malformed."""
    rows = rows.withColumns({"_time": time_s, "_lon": lon.try_cast("double"), "_lat": lat.try_cast("double")})
    is_good = (
        (F.col("_time").isNotNull() | is_skipped) & (F.trim(vehicle) != "") & _is_position(F.col("_lon"), F.col("_lat"))
    )
    if CORRUPT in rows.columns:
        is_good = is_good & F.col(CORRUPT).isNull()
        raw = F.coalesce(F.col(CORRUPT), raw)
    problem = F.when(~F.coalesce(is_good, F.lit(False)), MALFORMED).when(is_skipped, NONEXISTENT)
    return _raw_rows(
        rows,
        vehicle=F.xxhash64(vehicle),
        trip=F.xxhash64(trip),
        time_s=F.col("_time"),
        lon=F.col("_lon"),
        lat=F.col("_lat"),
        problem=problem,
        raw=raw,
    )


def _raw_rows(rows: DataFrame, **columns: Column) -> DataFrame:
    columns["raw"] = F.when(columns["problem"].isNotNull(), columns["raw"])
    return rows.select(*(columns[name].alias(name) for name in RAW_COLUMNS))


def _is_position(lon: Column, lat: Column) -> Column:
    """True for two finite numbers; degrees that are not on Earth are left to the box."""
    is_finite = (F.abs(lon) < float("inf")) & (F.abs(lat) < float("inf"))  # NaN is larger than infinity in Spark
    return F.coalesce(is_finite, F.lit(False))
