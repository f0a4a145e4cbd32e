"""Trip records: readers of the three New York formats and the table of pickups and drop-offs per zone and step.

Trips have no track between their ends: flow counts the ends, speed and density stay unobserved.
"""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from data.errors import DataError
from data.spark_etl.local_time import local_to_unix
from data.spark_etl.schema import FOIL_COLUMNS, TABLE_SCHEMA, UBER_COLUMNS
from data.spark_etl.sources import CORRUPT, MALFORMED, NONEXISTENT, WALL_TIME, read_csv
from data.spark_etl.zones import Zones, assign_zones

# Ends of trips: when, where (degrees, or a zone id), a hash of the whole row where it names a vehicle, what is wrong.
END_COLUMNS = ("time_s", "lon", "lat", "zone_id", "identity", "problem", "raw")


def read_trips(spark: SparkSession, paths: Sequence[str], timezone: str) -> DataFrame:
    """Reads FOIL csv, TLC parquet or Uber csv files, told apart by their columns, into one row per trip end."""
    frames = [_read_file(spark, path, timezone) for path in sorted(paths)]
    ends = frames[0]
    for frame in frames[1:]:
        ends = ends.unionByName(frame)
    return ends


def drop_zero_ends(ends: DataFrame) -> DataFrame:
    """Drops ends at longitude or latitude exactly 0; an end given by its zone has no coordinates to check."""
    has_position = F.col("zone_id").isNotNull() | ((F.col("lon") != 0) & (F.col("lat") != 0))
    return ends.filter(has_position).select(*END_COLUMNS)


def drop_duplicate_ends(ends: DataFrame) -> DataFrame:
    """Drops exact repetitions of a trip whose vehicle is named; without a name equal rows may be different trips."""
    alone = F.when(F.col("identity").isNull(), F.monotonically_increasing_id())
    return ends.withColumn("alone", alone).dropDuplicates(["identity", "alone"]).select(*END_COLUMNS)


def place_ends(ends: DataFrame, zones: Zones) -> DataFrame:
    """Adds `place`, from the zone id or else from the coordinates; ends outside every zone are dropped."""
    index = {int(zone): place for place, zone in enumerate(zones.ids)}
    lookup = F.create_map(*(F.lit(value) for pair in index.items() for value in pair))
    placed = assign_zones(ends, zones)
    place = F.coalesce(F.try_element_at(lookup, F.col("zone_id")), F.col("place"))
    return placed.select("time_s", place.alias("place")).filter(F.col("place").isNotNull())


def ends_to_table(ends: DataFrame, bin_s: int) -> DataFrame:
    """Flow per zone and step; there is no movement and no vehicle to count."""
    stepped = ends.withColumn("step", F.floor(F.col("time_s") / bin_s))
    flow = F.count(F.lit(1))
    unknown = F.lit(0).cast("long")
    return (
        stepped.groupBy("step", "place")
        .agg(flow.alias("flow"), flow.alias("points"))
        .withColumns({"speed_sum": unknown, "movements": unknown, "density": unknown})
        .select(*TABLE_SCHEMA.names)
    )


def _read_file(spark: SparkSession, path: str, timezone: str) -> DataFrame:
    if path.endswith((".parquet", ".pq")):
        return _read_tlc(spark, path, timezone)
    table = read_csv(spark, [path])
    if set(FOIL_COLUMNS) <= set(table.columns):
        return _read_foil(table, timezone)
    if set(UBER_COLUMNS) <= set(table.columns):
        return _read_uber(table, timezone)
    raise DataError(
        f"{Path(path).name} has the columns {', '.join(table.columns[:-1])}; expected those of the 2013 FOIL trips "
        f"({', '.join(FOIL_COLUMNS[5:7])}, ...), of the Uber FOIL pickups ({', '.join(UBER_COLUMNS)}) or a TLC parquet."
    )


def _read_uber(table: DataFrame, timezone: str) -> DataFrame:
    """Uber FOIL pickups. No vehicle is named and times are whole minutes, so equal rows may be different pickups."""
    wall = F.try_to_timestamp("Date/Time", F.lit("M/d/yyyy H:m:s"))
    ends = table.select(
        wall.alias("wall"),
        F.col("Lon").try_cast("double").alias("lon"),
        F.col("Lat").try_cast("double").alias("lat"),
        F.lit(None).cast("int").alias("zone_id"),
        F.coalesce(CORRUPT, F.concat_ws(",", *(f"`{name}`" for name in UBER_COLUMNS))).alias("raw"),
        F.col(CORRUPT),
    )
    return _finish(ends, timezone)


def _read_foil(table: DataFrame, timezone: str) -> DataFrame:
    """2013 FOIL trips: each has a pickup and a drop-off."""
    raw = F.coalesce(CORRUPT, F.concat_ws(",", *FOIL_COLUMNS))
    two_ends = F.array(*(_foil_end(kind) for kind in ("pickup", "dropoff")))
    ends = table.select(CORRUPT, raw.alias("raw"), F.posexplode(two_ends).alias("which", "end"))
    ends = ends.select(CORRUPT, "raw", "which", "end.*")
    ends = ends.withColumn("identity", F.xxhash64("raw", "which"))
    return _finish(ends.withColumn("zone_id", F.lit(None).cast("int")), timezone)


def _foil_end(kind: str):
    return F.struct(
        F.when(F.length(f"{kind}_datetime") == WALL_TIME, F.try_to_timestamp(f"{kind}_datetime")).alias("wall"),
        F.col(f"{kind}_longitude").try_cast("double").alias("lon"),
        F.col(f"{kind}_latitude").try_cast("double").alias("lat"),
    )


def _read_tlc(spark: SparkSession, path: str, timezone: str) -> DataFrame:
    """TLC parquet with zone ids; the time columns are wall clock and named after the service (lpep, tpep, ...)."""
    table = spark.read.parquet(path)
    names = {name.lower(): name for name in table.columns}
    ends = []
    for kind, zone in (("pickup", "pulocationid"), ("dropoff", "dolocationid")):
        time = next((names[name] for name in names if name.endswith(f"{kind}_datetime")), None)
        if time is None or zone not in names:
            raise DataError(f"{Path(path).name} lacks a {kind} time or zone; it has {', '.join(table.columns)}.")
        ends.append(
            F.struct(
                F.col(time).cast("timestamp_ntz").cast("timestamp").alias("wall"),
                F.col(names[zone]).cast("int").alias("zone_id"),
            )
        )
    rows = table.select(F.explode(F.array(*ends)).alias("end")).select("end.*")
    unknown = F.lit(None).cast("double")
    raw = F.concat_ws(",", F.col("wall").cast("string"), F.col("zone_id").cast("string"))
    return _finish(rows.withColumns({"lon": unknown, "lat": unknown, "raw": raw}), timezone)


def _finish(ends: DataFrame, timezone: str) -> DataFrame:
    ends = ends.withColumn("local_s", F.col("wall").cast("long"))  # the session's zone is UTC
    seconds, is_skipped = local_to_unix(F.col("local_s"), timezone)
    ends = ends.withColumn("time_s", seconds)
    if "identity" not in ends.columns:
        ends = ends.withColumn("identity", F.lit(None).cast("long"))
    is_placed = F.col("zone_id").isNotNull() | (
        (F.abs(F.col("lon")) < float("inf")) & (F.abs(F.col("lat")) < float("inf"))
    )
    is_good = F.coalesce(F.col("local_s").isNotNull() & is_placed, F.lit(False))
    if CORRUPT in ends.columns:
        is_good = is_good & F.col(CORRUPT).isNull()
    ends = ends.withColumn("problem", F.when(~is_good, MALFORMED).when(is_skipped, NONEXISTENT))
    return ends.withColumn("raw", F.when(F.col("problem").isNotNull(), F.col("raw"))).select(*END_COLUMNS)
