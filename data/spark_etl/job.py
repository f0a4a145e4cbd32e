"""The job: read -> clean -> cells x steps -> shards, graph, labels, manifest; on any Spark master."""

import contextlib
import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from data.errors import DataError
from data.spark_etl import assemble, events, graph, plausible, shards, sources, tables
from data.spark_etl.inputs import RawInputs, check_timezone, expand_bzip2, find_broken
from data.spark_etl.manifest import Parts, finish_dataset
from data.spark_etl.progress import spark_progress
from data.spark_etl.quality import write_quality_page
from data.spark_etl.schema import UNITS, CitySpec
from data.spark_etl.sensor_job import sensor_parts
from data.spark_etl.sensors import SensorSource
from data.spark_etl.session import is_alive
from data.spark_etl.split import split_recording

MALFORMED_SHOWN = 10_000
STEPS_AT_ONCE = 13 * 672  # a quarter of a year of the table is brought to the driver at a time


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """Everything that decides what the dataset holds."""

    spec: CitySpec
    gps_columns: sources.GpsColumns = sources.GpsColumns()
    sensors: SensorSource | None = None


def run_job(spark: SparkSession, cfg: JobConfig, inputs: RawInputs, out: Path, console: Console, scratch: Path) -> dict:
    """Writes the dataset to `out`, all of it or nothing, and returns its manifest.

    Args:
        scratch: an empty folder for temporary files; used where Spark runs on this machine alone.
    """
    check_timezone(cfg.spec.timezone)
    try:
        with shards.atomic_folder(out) as folder:
            if cfg.sensors is not None:
                parts = sensor_parts(spark, cfg.spec, cfg.sensors, folder, console)
            else:
                is_local = str(spark.sparkContext.master).startswith("local")
                parts = _vehicle_parts(
                    spark, cfg, expand_bzip2(inputs, scratch) if is_local else inputs, folder, console
                )
            manifest = finish_dataset(folder, cfg.spec, inputs, parts)
            write_quality_page(folder, manifest)
        return manifest
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise DataError(_explain(error, inputs) if is_alive(spark) else _death(inputs)) from error
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):  # Java may be dead
            spark.catalog.clearCache()


def _vehicle_parts(spark: SparkSession, cfg: JobConfig, inputs: RawInputs, folder: Path, console: Console) -> Parts:
    """Shards, graph and labels of tracks or trips."""
    with spark_progress(spark, "reading and cleaning", console):
        table = tables.build_table(spark, cfg.spec, inputs, cfg.gps_columns)
        live = table.frame.groupBy("step").agg(F.sum("points")).orderBy("step").collect()
    rows = tables.read_rows(spark, cfg.spec, inputs, cfg.gps_columns)
    if not live:
        raise DataError(tables.why_nothing_is_left(rows, cfg.spec, inputs))
    rows_in, dropped = table.funnel.counts()
    spec = table.spec
    step, points = np.array(live).T
    first, last = assemble.recording_span(step, points, 86_400 // spec.bin_s)
    num_steps = last - first + 1
    dropped["stray_time"] = int(points[(step < first) | (step > last)].sum())
    table = table._replace(frame=table.frame.filter(F.col("step").between(first, last)))
    is_gps = spec.source == "gps"
    plausible.check_times(first * spec.bin_s, last * spec.bin_s, inputs.files[0].name, is_gps)
    if table.zones is None:
        _check_box(rows, spec, rows_in, dropped, inputs.files[0].name)
    if is_gps:
        lon, lat = (spec.area.lon_min + spec.area.lon_max) / 2, (spec.area.lat_min + spec.area.lat_max) / 2
        plausible.check_place(lon, lat, spec.timezone, inputs.files[0].name)
    folds = split_recording(num_steps, 86_400 // spec.bin_s, spec.window, spec.horizon)
    plausible.check_parts(
        folds, np.isin(np.arange(first, last + 1), step), first * spec.bin_s, spec.bin_s, inputs.files[0].name
    )
    with spark_progress(spark, "filling the shards", console):
        cells = _choose_cells(table, first + num_steps // 2)
        entries, used = _write_shards(table, cells, first, num_steps, folder)
        edges = _graph(table, cells, first, first + folds[0].train[1])
    dropped["outside_cells"] = rows_in - sum(dropped.values()) - used
    if dropped[sources.MALFORMED]:
        _set_aside(rows, folder / "malformed.csv")
    labels = None
    if inputs.events:
        log = events.read_events(inputs.events, spec.timezone)
        find_cell = assemble.cell_finder(cells, spec, table.zones)
        labels = events.label_events(log, find_cell, first * spec.bin_s, num_steps, len(cells.ids), spec.bin_s)
        if len(labels["start"]) == 0:
            raise DataError(
                f"None of the {len(log.start):,} incidents with a place in {inputs.events} falls into the recording's "
                "cells and time; check its times and degrees, or take the file away."
            )
    counts = {"rows_in": rows_in, "dropped": dropped, "used": used}
    return Parts(spec.box, UNITS, first * spec.bin_s, num_steps, folds, entries, cells, edges, labels, counts)


def _check_box(rows: DataFrame, spec: CitySpec, rows_in: int, dropped: dict[str, int], name: str) -> None:
    """Looks at swapped degrees only where most fixes lie outside: it is another pass over the files."""
    outside = dropped["outside_box"]
    inside = rows_in - sum(dropped[reason] for reason in (*tables.BEFORE_BOX, "outside_box"))
    if outside <= inside:
        return
    box = spec.area
    is_inside = F.col("lat").between(box.lon_min, box.lon_max) & F.col("lon").between(box.lat_min, box.lat_max)
    swapped = rows.filter(F.col("problem").isNull() & is_inside).count()
    plausible.check_box(inside, swapped, inside + outside, name)


def _choose_cells(table: tables.Table, half: int) -> graph.Cells:
    """All zones, or the squares with the most flow in the first half of the recording: no look at the second."""
    if table.zones:
        return assemble.zone_cells(table.zones)
    by_place = table.frame.filter(F.col("step") < half).groupBy("place").agg(F.sum("flow").alias("flow")).toPandas()
    squares = assemble.choose_squares(by_place.set_index("place")["flow"], table.spec.num_cells)
    if len(squares) < 2:
        raise DataError(
            f"Only {len(squares)} squares of {table.spec.square_m:.0f} m have flow in the first half of the recording; "
            "give a smaller --square, a larger --box or more days."
        )
    return assemble.square_cells(squares, table.spec)


def _write_shards(
    table: tables.Table, cells: graph.Cells, first: int, num_steps: int, folder: Path
) -> tuple[list[shards.ShardEntry], int]:
    """Writes the shards in order of time, a quarter of a year of the table in memory; also counts the points used."""
    places = np.arange(len(cells.ids)) if table.zones else cells.ids
    cell = pd.Series(np.arange(len(places)), index=places)
    entries, used = [], 0
    for group_start in range(0, num_steps, STEPS_AT_ONCE):
        group_stop = min(group_start + STEPS_AT_ONCE, num_steps)
        rows = table.frame.filter(F.col("step").between(first + group_start, first + group_stop - 1)).toPandas()
        is_live = np.isin(np.arange(group_start, group_stop) + first, rows["step"].to_numpy())
        used += int(rows.loc[rows["place"].isin(cell.index), "points"].sum())
        for start, stop in assemble.shard_ranges(group_start, group_stop, 86_400 // table.spec.bin_s):
            part = rows[rows["step"].between(first + start, first + stop - 1)]
            time = (first + np.arange(start, stop)) * table.spec.bin_s
            live = is_live[start - group_start : stop - group_start]
            shard = assemble.fill_track_shard(part, time, first + start, cell, live, table.transitions is not None)
            entries.append(assemble.write_shard(folder, start, shard))
    return entries, used


def _graph(table: tables.Table, cells: graph.Cells, first_step: int, end_step: int) -> dict[str, np.ndarray]:
    """Spatial neighbours and the transitions of the (first fold's) training part."""
    num_cells = len(cells.ids)
    counts = np.zeros((num_cells, num_cells), np.int64)
    if table.zones:
        return graph.build_graph(cells.position, graph.polygon_neighbours(table.zones.polygons), counts)
    if table.transitions:
        moved = table.transitions(first_step, end_step).toPandas()
        moved = moved[moved["origin"].isin(cells.ids) & moved["place"].isin(cells.ids)]
        counts[np.searchsorted(cells.ids, moved["origin"]), np.searchsorted(cells.ids, moved["place"])] = moved["count"]
    return graph.build_graph(cells.position, graph.square_neighbours(cells.ids, table.spec.columns), counts)


def _set_aside(rows: DataFrame, path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("problem", "row"))
        writer.writerows(tables.problem_rows(rows, MALFORMED_SHOWN))


def _death(inputs: RawInputs) -> str:
    return f"Java died while Spark read {inputs.files[0].name}, maybe for want of memory; give more with --memory 6g."


def _explain(error: Exception, inputs: RawInputs) -> str:
    """One sentence for a failure inside Spark, naming the broken file if there is one."""
    text = str(error)
    if "No space left on device" in text:
        return "The disk is full: Spark needs room for its temporary files; free some space or set SPARK_LOCAL_DIRS."
    broken = find_broken(inputs.files)
    if broken:
        return f"{broken[0]} is damaged or truncated ({broken[1]}); download it again."
    if "OutOfMemoryError" in text:
        return "Spark ran out of memory; give it more with --memory 6g."
    named = re.search(r"reading file \S*/([^/\s]+?)\.?\s", text)
    name = named.group(1) if named else inputs.files[0].name
    if "CSV header does not conform" in text:
        return f"{name} has another header than the files beside it, or than its format; check --dataset and --raw."
    if "DATETIME_WEEK_BASED_PATTERN" in text or "DATETIME_PATTERN" in text:
        return f"--time-format is no pattern for the times of {name}; write one such as dd/MM/yyyy HH:mm:ss."
    if "TIMESTAMP(NANOS" in text:
        return f"{name} has times in nanoseconds; write it with pandas' to_parquet(..., coerce_timestamps='us')."
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [line for line in lines if line.startswith("Caused by")] or lines[:1]
    return f"Spark failed on {name}: {causes[-1][:300]} (--debug shows the whole trace)."
