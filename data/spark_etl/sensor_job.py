"""The sensor branch of the job: a matrix of readings to shards, with neighbours from coordinates or an adjacency."""

from pathlib import Path

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from data.errors import DataError
from data.spark_etl import assemble, graph, plausible, sensors, shards
from data.spark_etl.manifest import Parts
from data.spark_etl.progress import spark_progress
from data.spark_etl.schema import Box, CitySpec
from data.spark_etl.split import split_recording


def sensor_parts(
    spark: SparkSession, spec: CitySpec, source: sensors.SensorSource, folder: Path, console: Console
) -> Parts:
    """Shards and graph of a sensor matrix; one cell a sensor, in the order of the columns."""
    with spark_progress(spark, "reading the sensors", console):
        readings, names = sensors.read_sensors(spark, source, spec.timezone, folder)
        total, problems = readings.agg(F.count(F.lit(1)), F.count_if(F.col("time_s").isNull())).collect()[0]
        usable = readings.filter(F.col("time_s").isNotNull())
        table = sensors.readings_to_table(usable, spec.bin_s).persist(StorageLevel.DISK_ONLY)
        first, last, used = table.agg(F.min("step"), F.max("step"), F.sum("count")).collect()[0]
    (folder / "sensors.parquet").unlink(missing_ok=True)
    if first is None:
        raise DataError(f"No row of {source.matrix} has a time that can be read; name its column with --time-column.")
    if not used:
        raise DataError(f"{source.matrix} holds no readings, only gaps; check the file and --missing-value.")
    name = source.matrix.name
    plausible.check_times(first * spec.bin_s, last * spec.bin_s, name, is_gps=False)
    num_steps = last - first + 1
    folds = split_recording(num_steps, 86_400 // spec.bin_s, spec.window, spec.horizon)
    rows = table.toPandas()
    total_of, count_of = np.zeros((2, num_steps, len(names)), np.int64)
    total_of[rows["step"] - first, rows["place"]] = rows["sum"]
    count_of[rows["step"] - first, rows["place"]] = rows["count"]
    plausible.check_parts(folds, np.asarray(count_of.any(axis=1)), first * spec.bin_s, spec.bin_s, name)
    mean = (total_of / np.maximum(count_of, 1) / sensors.MICRO).astype(np.float32)
    entries = []
    for start, stop in assemble.shard_ranges(0, num_steps, 86_400 // spec.bin_s):
        time = (first + np.arange(start, stop)) * spec.bin_s
        shard = shards.Shard(time, mean[start:stop, :, None], count_of[start:stop, :, None] > 0)
        entries.append(assemble.write_shard(folder, start, shard))
    cells, edges, box = _place_sensors(source, names)
    if box is not None:
        lon, lat = cells.lonlat.mean(axis=0).tolist()
        plausible.check_place(lon, lat, spec.timezone, name)
    dropped = {"malformed": int(problems), "missing_reading": int(total - problems - used)}
    counts = {"rows_in": int(total), "dropped": dropped, "used": int(used)}
    units = {source.feature: source.unit}
    return Parts(box, units, first * spec.bin_s, num_steps, folds, entries, cells, edges, None, counts, names)


def _place_sensors(source: sensors.SensorSource, names: list[str]) -> tuple[graph.Cells, dict, Box | None]:
    """Cells without area, and edges from coordinates (nearest neighbours) or from an adjacency (its non-zeros)."""
    ids = np.arange(len(names))
    if source.coordinates:
        lonlat = sensors.read_coordinates(source.coordinates, names)
        low, high = lonlat.min(axis=0), lonlat.max(axis=0)
        box = Box(*map(float, low), *map(float, high + 1e-3))
        position = assemble.to_metres(lonlat, box)
    elif source.adjacency:
        lonlat, box = np.zeros((len(names), 2)), None
        angle = 2 * np.pi * ids / len(names)  # nowhere in particular: on a circle, so that maps still show them
        position = 1000.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    else:
        raise DataError("Sensors need --coordinates (sensor, lon, lat) or --adjacency (a square matrix).")
    weights = np.zeros((len(names), len(names)))
    if source.adjacency:
        weights = sensors.read_adjacency(source.adjacency, len(names))
        one, other = np.nonzero(weights > 0)
    else:
        one, other = graph.nearest_neighbours(position)
    cells = graph.Cells(ids, position, lonlat, lonlat, np.arange(len(names) + 1))
    return cells, graph.build_graph(position, (one, other), np.zeros_like(weights)), box
