"""One reader per kind of GPS recording, each ending in the raw-row schema: identity, time, position, what is wrong.

A row that cannot be used is never coerced: it is marked with its `problem`, counted and set aside.
"""

import dataclasses
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from data.errors import DataError
from data.spark_etl.local_time import local_to_unix
from data.spark_etl.schema import PORTO_SCHEMA, RAW_COLUMNS

MALFORMED = "malformed"
NONEXISTENT = "nonexistent_local_time"

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
    # Split by hand: three times as fast as Spark's csv reader, which unquotes what has no quotes.
    lines = spark.read.text(list(paths)).filter(F.col("value") != "")
    lines = lines.select("value", F.split("value", ",").alias("field"))
    taxi, time, lon, lat = (F.get("field", F.lit(i)) for i in range(4))
    is_time = (F.size("field") == 4) & (F.length(time) == 19)
    wall = F.when(is_time, F.try_to_timestamp(time))
    return _points(lines, taxi, taxi, wall, timezone, lon, lat, F.col("value"))


def read_porto(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Porto csv: one trip a row, POLYLINE a JSON list of [lon, lat] every 15 s from TIMESTAMP (unix seconds, UTC).

    A trip flagged MISSING_DATA has unknown holes in its polyline, so the times of its points are unknown: all its
    points are malformed. An empty polyline has no point and so no row.
    """
    trips = spark.read.csv(
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
    is_bad_trip = F.col("bad").isNotNull() | F.col("start_s").isNull() | F.col("path").isNull()
    no_fix = F.array(F.array(F.lit(None).cast("double")))  # a trip that cannot be read counts as one malformed row
    trips = trips.withColumn("bad_trip", is_bad_trip).withColumn(
        "path", F.when(is_bad_trip, no_fix).otherwise(F.col("path"))
    )
    fixes = trips.select("*", F.posexplode("path").alias("index", "fix"))
    lon, lat = F.get("fix", F.lit(0)), F.get("fix", F.lit(1))
    is_malformed = (
        F.col("bad_trip") | (F.col("MISSING_DATA") != "False") | (F.size("fix") != 2) | ~_is_position(lon, lat)
    )
    return _raw_rows(
        fixes,
        vehicle=F.xxhash64("TAXI_ID"),
        # Some TRIP_IDs are used twice in the official file; with the start time they are not.
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
    lines = lines.withColumn("line", text).filter(~F.col("line").isin(*PLT_HEADERS))
    field = F.split("line", ",")
    lines = lines.withColumn("field", field)
    wall = F.when(
        F.size("field") == 7, F.try_to_timestamp(F.concat_ws(" ", F.get("field", F.lit(5)), F.get("field", F.lit(6))))
    )
    user = F.regexp_extract("file", r"([^/]+)/Trajectory/[^/]+$", 1)
    return _points(
        lines, user, F.col("file"), wall, "UTC", F.get("field", F.lit(1)), F.get("field", F.lit(0)), F.col("line")
    )


def read_gps(spark: SparkSession, paths: Sequence[str], columns: GpsColumns, timezone: str) -> DataFrame:
    """A user's own csv (with header) or parquet of vehicle, time, longitude, latitude."""
    is_parquet = all(path.endswith((".parquet", ".pq")) for path in paths)
    table = spark.read.parquet(*paths) if is_parquet else spark.read.csv(list(paths), header=True)
    wanted = (columns.vehicle, columns.time, columns.lon, columns.lat)
    missing = [name for name in wanted if name not in table.columns]
    if missing:
        raise DataError(
            f"{paths[0]} has no column {', '.join(missing)}; its columns are {', '.join(table.columns)}. "
            "Name yours with --columns vehicle=...,time=...,lon=...,lat=..."
        )
    vehicle, time, lon, lat = (F.col(f"`{name}`").cast("string") for name in wanted)
    raw = F.concat_ws(",", vehicle, time, lon, lat)
    if columns.time_format in ("unix", "unix_ms"):
        divisor = 1000 if columns.time_format == "unix_ms" else 1
        seconds = F.floor(F.expr(f"try_cast(`{columns.time}` AS double)") / divisor)
        return _points_at(table, vehicle, vehicle, seconds, F.lit(False), lon, lat, raw)
    if columns.time_format != "iso":
        wall = F.try_to_timestamp(time, F.lit(columns.time_format))
        return _points(table, vehicle, vehicle, wall, timezone, lon, lat, raw)
    # A time with its own offset is absolute; one without is a wall clock of the given zone.
    table = table.withColumn("local_s", F.try_to_timestamp(time).cast("long"))
    is_absolute = time.rlike(r"(Z|[+-]\d{2}:?\d{2})$")
    seconds, is_skipped = local_to_unix(F.col("local_s"), timezone)
    seconds = F.when(is_absolute, F.col("local_s")).otherwise(seconds)
    return _points_at(table, vehicle, vehicle, seconds, is_skipped & ~is_absolute, lon, lat, raw)


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
        (F.col("_time").isNotNull() | is_skipped) & vehicle.isNotNull() & _is_position(F.col("_lon"), F.col("_lat"))
    )
    if "bad" in rows.columns:
        is_good = is_good & F.col("bad").isNull()
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
