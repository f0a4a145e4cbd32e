"""Raw files to the table of places and steps, counting what every cleaning step drops on the way."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from data.errors import DataError
from data.spark_etl import sources, transforms, trips
from data.spark_etl.csv_files import delimiter_of
from data.spark_etl.inputs import RawInputs, spark_path
from data.spark_etl.schema import POINT_COLUMNS, Box, CitySpec
from data.spark_etl.zones import Zones, read_zones

# Reasons for which rows are dropped before their place is looked at.
BEFORE_BOX = (sources.MALFORMED, sources.NONEXISTENT, "duplicate", "zero_coordinate")
BOX_PERCENTILES = (0.005, 0.995)  # a box taken from the data leaves out the outermost 1 % each way


class Funnel:
    """Counts the rows that pass each step while Spark streams through the one plan."""

    def __init__(self) -> None:
        self._seen: dict[str, Observation] = {}

    def watch(self, frame: DataFrame, name: str) -> DataFrame:
        self._seen[name] = Observation(name)
        return frame.observe(self._seen[name], F.count(F.lit(1)).alias("rows"))

    def counts(self) -> tuple[int, dict[str, int]]:
        """Rows in, and the rows that each later step dropped; valid once an action has run."""
        rows = {name: observation.get["rows"] for name, observation in self._seen.items()}
        names = list(rows)
        return rows[names[0]], {name: rows[before] - rows[name] for before, name in itertools.pairwise(names)}


class Table(NamedTuple):
    """Features per place and step, still in Spark, and what is known of how they came about."""

    frame: DataFrame  # TABLE_SCHEMA
    funnel: Funnel
    spec: CitySpec  # with the box filled in
    zones: Zones | None
    transitions: Callable[[int, int], DataFrame] | None  # counts from a step until before another; None without tracks


def read_rows(spark: SparkSession, spec: CitySpec, inputs: RawInputs, columns: sources.GpsColumns) -> DataFrame:
    """Raw rows of any source, each with its problem or none."""
    paths = [spark_path(path) for path in inputs.files]
    match spec.source:
        case "tdrive":
            return sources.read_tdrive(spark, paths, spec.timezone)
        case "porto":
            return sources.read_porto(spark, paths)
        case "geolife":
            return sources.read_geolife(spark, paths)
        case "gps":
            delimiter = "," if inputs.files[0].suffix in (".parquet", ".pq") else delimiter_of(inputs.files[0])
            return sources.read_gps(spark, paths, columns, spec.timezone, delimiter)
        case "manhattan":
            return trips.read_trips(spark, paths, spec.timezone)
    raise DataError(f"There is no reader named {spec.source!r}.")


def build_table(spark: SparkSession, spec: CitySpec, inputs: RawInputs, columns: sources.GpsColumns) -> Table:
    """The table of tracks or of trips, whichever the source holds."""
    if spec.source == "manhattan":
        return trip_table(spark, spec, inputs)
    return track_table(spark, spec, inputs, columns)


def track_table(spark: SparkSession, spec: CitySpec, inputs: RawInputs, columns: sources.GpsColumns) -> Table:
    """The table of a recording with vehicle tracks: one shuffle, one sort, one pass."""
    rows = read_rows(spark, spec, inputs, columns)
    if spec.box is None:
        spec = dataclasses.replace(spec, box=_box_of(rows, inputs))
    box = spec.area
    funnel = Funnel()
    points = funnel.watch(rows, "rows_in")
    points = funnel.watch(transforms.drop_problems(points, sources.MALFORMED), sources.MALFORMED)
    points = funnel.watch(transforms.drop_problems(points, sources.NONEXISTENT), sources.NONEXISTENT)
    points = transforms.gather_trips(points.select(*POINT_COLUMNS))
    points = funnel.watch(transforms.drop_duplicates(points), "duplicate")
    points = funnel.watch(transforms.drop_zero_coordinates(points), "zero_coordinate")
    points = funnel.watch(transforms.drop_outside_box(points, box), "outside_box")
    points = funnel.watch(transforms.drop_repeated_times(points), "repeated_time")
    points = funnel.watch(transforms.drop_gps_jumps(points, box, spec.max_speed_mps), "impossible_speed")
    square = transforms.square_of(box, spec.square_m, spec.columns)
    presence = transforms.to_presence(points, square, box, spec.max_gap_s, spec.max_speed_mps, spec.bin_s)
    presence = presence.persist(StorageLevel.DISK_ONLY)
    frame = transforms.to_table(presence).persist(StorageLevel.DISK_ONLY)
    return Table(frame, funnel, spec, None, functools.partial(transforms.to_transitions, presence))


def trip_table(spark: SparkSession, spec: CitySpec, inputs: RawInputs) -> Table:
    """The table of trip records over polygon zones."""
    if inputs.zones is None:
        raise DataError("Trips need the polygons of their zones; download them with the recording.")
    zones = read_zones(inputs.zones)
    funnel = Funnel()
    ends = funnel.watch(read_rows(spark, spec, inputs, sources.GpsColumns()), "rows_in")
    ends = funnel.watch(transforms.drop_problems(ends, sources.MALFORMED), sources.MALFORMED)
    ends = funnel.watch(transforms.drop_problems(ends, sources.NONEXISTENT), sources.NONEXISTENT)
    ends = funnel.watch(trips.drop_duplicate_ends(ends), "duplicate")
    ends = funnel.watch(trips.drop_zero_ends(ends), "zero_coordinate")
    ends = funnel.watch(trips.place_ends(ends, zones), "outside_box")
    frame = trips.ends_to_table(ends, spec.bin_s).persist(StorageLevel.DISK_ONLY)
    return Table(frame, funnel, dataclasses.replace(spec, box=zones.box), zones, None)


def problem_rows(rows: DataFrame, limit: int) -> list[tuple[str, str]]:
    """Up to `limit` rows that could not be used, as they were read, each with its problem."""
    found = rows.filter(F.col("problem").isNotNull()).select("problem", "raw").limit(limit)
    return sorted((row["problem"], row["raw"] or "") for row in found.collect())


def why_nothing_is_left(rows: DataFrame, spec: CitySpec, inputs: RawInputs) -> str:
    """One sentence on why no row of a recording could be used."""
    name = inputs.files[0].name
    bounds = rows.agg(
        F.count(F.lit(1)),
        F.count("problem"),
        F.percentile_approx(F.when(F.col("problem").isNull(), F.col("lon")), [0.05, 0.95]),
        F.percentile_approx(F.when(F.col("problem").isNull(), F.col("lat")), [0.05, 0.95]),
    ).collect()
    total, problems, lon, lat = bounds[0]
    if total == 0:
        return f"{name} holds no rows; download it again or check --raw."
    if problems == total or lon is None:
        return f"None of the {total:,} rows of {name} could be read as {spec.source}; check the format and the columns."
    if max(map(abs, lon)) > 180 or max(map(abs, lat)) > 90:
        if max(map(abs, lon)) <= 90 and max(map(abs, lat)) <= 180:
            return _swapped(name)
        return (
            f"The coordinates of {name} are not degrees (x from {lon[0]:.0f} to {lon[1]:.0f}); "
            "convert them to longitude and latitude (WGS 84)."
        )
    box = spec.box
    if box and box.lon_min <= lat[0] <= lat[1] <= box.lon_max and box.lat_min <= lon[0] <= lon[1] <= box.lat_max:
        return _swapped(name)
    return (
        f"No row of {name} lies in the city box of {spec.dataset} (90 % have longitude {lon[0]:.3f} to {lon[1]:.3f}, "
        f"latitude {lat[0]:.3f} to {lat[1]:.3f}); give the right --dataset or your own --box."
    )


def _swapped(name: str) -> str:
    return f"Longitude and latitude of {name} seem to be in the wrong order; swap them in the file or in --columns."


def _box_of(rows: DataFrame, inputs: RawInputs) -> Box:
    """A box around nearly all fixes of a recording whose city nobody has named."""
    is_good = F.col("problem").isNull() & (F.col("lon") != 0) & (F.col("lat") != 0)
    low, high = BOX_PERCENTILES
    bounds = (
        rows.filter(is_good)
        .agg(F.percentile_approx("lon", [low, high], 100_000), F.percentile_approx("lat", [low, high], 100_000))
        .collect()
    )
    lon, lat = bounds[0]
    if lon is None:
        raise DataError(f"None of the rows of {inputs.files[0].name} could be read; check the format and --columns.")
    if max(map(abs, lon)) > 180 or max(map(abs, lat)) > 90:
        raise DataError(
            f"The coordinates of {inputs.files[0].name} are not degrees longitude, latitude "
            f"(x from {lon[0]:.1f} to {lon[1]:.1f}, y from {lat[0]:.1f} to {lat[1]:.1f}); convert them to WGS 84."
        )
    # Rounded outwards to 0.001 degrees, and never empty.
    return Box(_floor3(lon[0]), _floor3(lat[0]), _above3(lon[1]), _above3(lat[1]))


def _above3(degrees: float) -> float:
    """The next 0.001 degrees that really is larger: a box is open above."""
    above = _floor3(degrees) + 0.001
    return above if above > degrees else above + 0.001


def _floor3(degrees: float) -> float:
    return round((degrees * 1000) // 1 / 1000, 3)
