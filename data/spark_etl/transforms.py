"""DataFrame -> DataFrame steps from raw rows to presence and to the cell x step table, one idea each.

Sums are integers throughout, so that no result depends on how Spark divides the work.
"""

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from data.spark_etl.schema import POINT_COLUMNS, PRESENCE_COLUMNS, TABLE_SCHEMA, Box


def gather_trips(points: DataFrame) -> DataFrame:
    """Brings each vehicle's fixes to one place: the only shuffle of the per-point path."""
    return points.repartition("vehicle").sortWithinPartitions("vehicle", "trip", "time_s", "lon", "lat")


def drop_problems(rows: DataFrame, problem: str) -> DataFrame:
    """Drops the rows that the reader marked with `problem`."""
    return rows.filter(F.col("problem").isNull() | (F.col("problem") != problem))


def drop_duplicates(points: DataFrame) -> DataFrame:
    """Drops exact repetitions of a fix; sorted by time and place, they stand next to each other."""
    is_repetition = (
        (F.lag("time_s").over(_by_time()) == F.col("time_s"))
        & (F.lag("lon").over(_by_time()) == F.col("lon"))
        & (F.lag("lat").over(_by_time()) == F.col("lat"))
    )
    marked = points.withColumn("repetition", F.coalesce(is_repetition, F.lit(False)))
    return marked.filter(~F.col("repetition")).select(*POINT_COLUMNS)


def drop_zero_coordinates(points: DataFrame) -> DataFrame:
    """Drops fixes at longitude or latitude exactly 0, which receivers write when they have no fix."""
    return points.filter((F.col("lon") != 0) & (F.col("lat") != 0)).select(*POINT_COLUMNS)


def drop_outside_box(points: DataFrame, box: Box) -> DataFrame:
    """Drops fixes outside the city box."""
    in_lon = (F.col("lon") >= box.lon_min) & (F.col("lon") < box.lon_max)
    in_lat = (F.col("lat") >= box.lat_min) & (F.col("lat") < box.lat_max)
    return points.filter(in_lon & in_lat).select(*POINT_COLUMNS)


def drop_repeated_times(points: DataFrame) -> DataFrame:
    """Keeps one position of a trip per second."""
    is_repeated = F.lag("time_s").over(_by_time()) == F.col("time_s")
    marked = points.withColumn("repeated", F.coalesce(is_repeated, F.lit(False)))
    return marked.filter(~F.col("repeated")).select(*POINT_COLUMNS)


def drop_gps_jumps(points: DataFrame, box: Box, max_speed_mps: float) -> DataFrame:
    """Drops fixes that neither the trip's previous nor its next fix could have reached; lone fixes stay."""
    from_previous = _is_reachable(F.lag, box, max_speed_mps)
    to_next = _is_reachable(F.lead, box, max_speed_mps)
    marked = points.withColumns({"from_previous": from_previous, "to_next": to_next})
    is_lone = F.col("from_previous").isNull() & F.col("to_next").isNull()
    is_joined = F.coalesce(F.col("from_previous"), F.lit(False)) | F.coalesce(F.col("to_next"), F.lit(False))
    return marked.filter(is_lone | is_joined).select(*POINT_COLUMNS)


def to_presence(
    points: DataFrame, place: Column, box: Box, max_gap_s: int, max_speed_mps: float, bin_s: int
) -> DataFrame:
    """One row per fix: vehicle, step, place, the place it moved from, and the speed of that movement.

    Args:
        place: the column expression that numbers the place of a fix.
    """
    placed = points.withColumns({"place": place, "step": F.floor(F.col("time_s") / bin_s)})
    elapsed = F.col("time_s") - F.lag("time_s").over(_by_time())
    placed = placed.withColumns(
        {"elapsed_s": elapsed, "moved_m": _distance(F.lag, box), "previous": F.lag("place").over(_by_time())}
    )
    is_movement = (F.col("elapsed_s") <= max_gap_s) & (F.col("moved_m") <= max_speed_mps * F.col("elapsed_s"))
    speed_mmps = F.floor(F.try_divide(F.col("moved_m"), F.col("elapsed_s")) * 1000 + 0.5).cast("int")
    return placed.withColumns(
        {
            "origin": F.when(is_movement, F.col("previous")).otherwise(F.lit(-1)),
            "speed_mmps": F.when(is_movement, speed_mmps),
        }
    ).select(*PRESENCE_COLUMNS)


def square_of(box: Box, square_m: float, columns: int) -> Column:
    """Number of the grid square that holds (lon, lat): row * columns + column, from the south-western corner."""
    column = F.floor((F.col("lon") - box.lon_min) * box.metres_per_lon / square_m)
    row = F.floor((F.col("lat") - box.lat_min) * box.metres_per_lat / square_m)
    return (row * columns + column).cast("int")


def to_table(presence: DataFrame) -> DataFrame:
    """Flow, speed sum, movements, density and points per place and step."""
    visits_begun = F.sum((F.col("origin") != F.col("place")).cast("long"))
    per_vehicle = presence.groupBy("vehicle", "step", "place").agg(
        visits_begun.alias("flow"),
        F.sum("speed_mmps").alias("speed_sum"),
        F.count("speed_mmps").alias("movements"),
        F.count(F.lit(1)).alias("points"),
    )
    return (
        per_vehicle.groupBy("step", "place")
        .agg(
            F.sum("flow").alias("flow"),
            F.coalesce(F.sum("speed_sum"), F.lit(0)).alias("speed_sum"),
            F.sum("movements").alias("movements"),
            F.count(F.lit(1)).alias("density"),
            F.sum("points").alias("points"),
        )
        .select(*TABLE_SCHEMA.names)
    )


def to_transitions(presence: DataFrame, first_step: int, end_step: int) -> DataFrame:
    """How often a movement that ended in [first_step, end_step) led from one place to another."""
    is_crossing = (F.col("origin") >= 0) & (F.col("origin") != F.col("place"))
    is_in_time = (F.col("step") >= first_step) & (F.col("step") < end_step)
    return presence.filter(is_crossing & is_in_time).groupBy("origin", "place").agg(F.count(F.lit(1)).alias("count"))


def _by_time() -> WindowSpec:
    """A trip's fixes in order; longitude and latitude only make the order of simultaneous fixes definite."""
    return Window.partitionBy("vehicle", "trip").orderBy("time_s", "lon", "lat")


def _distance(shift, box: Box) -> Column:
    """Metres between this fix and the neighbour that `shift` (lag or lead) picks; null at the end of a trip."""
    dx = (F.col("lon") - box.lon_min) * box.metres_per_lon - (
        shift("lon").over(_by_time()) - box.lon_min
    ) * box.metres_per_lon
    dy = (F.col("lat") - box.lat_min) * box.metres_per_lat - (
        shift("lat").over(_by_time()) - box.lat_min
    ) * box.metres_per_lat
    return F.sqrt(dx * dx + dy * dy)


def _is_reachable(shift, box: Box, max_speed_mps: float) -> Column:
    # Compared as distances: Spark 4 raises on division by zero.
    seconds = F.abs(F.col("time_s") - shift("time_s").over(_by_time()))
    return _distance(shift, box) <= max_speed_mps * seconds
