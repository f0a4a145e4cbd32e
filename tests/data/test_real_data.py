"""Known facts of the real recordings, where STREAM_DATA_DIR holds them: counts, cells, steps, T-Drive to the byte."""

import dataclasses
import gzip
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import functions as F

from data import loader
from data.spark_etl import tables
from data.spark_etl.inputs import RawInputs, find_inputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.schema import CITIES
from data.spark_etl.sources import GpsColumns

pytestmark = pytest.mark.slow  # whole recordings
ROOT = os.environ.get("STREAM_DATA_DIR")


def found(name: str, scratch: Path, **options) -> RawInputs:
    if not ROOT or not (Path(ROOT) / name).exists():
        pytest.skip(f"set STREAM_DATA_DIR to a folder with the real {name} files to run this")
    return find_inputs(CITIES[name].source, Path(ROOT) / name, scratch, **options)


def build(spark, console, name: str, inputs: RawInputs, folder: Path) -> loader.TrafficDataset:
    run_job(spark, JobConfig(CITIES[name]), inputs, folder / "data", console, folder)
    dataset = loader.load(folder / "data", verify=True)
    assert dataset.manifest["data"] == "real"
    return dataset


def test_the_head_of_porto_has_405_taxis_and_every_point_of_its_polylines(spark, console, tmp_path):
    inputs = found("porto", tmp_path)
    rows = tables.read_rows(spark, CITIES["porto"], inputs, GpsColumns())
    # 7,732 trips of 405 taxis; 32 trips have an empty polyline and so no row, among them the only one of one taxi;
    # one pair of trips has the same TRIP_ID and start.
    taxis, trips, problems = rows.agg(F.count_distinct("vehicle"), F.count_distinct("trip"), F.count("problem")).first()
    assert (taxis, trips, problems) == (405 - 1, 7732 - 32 - 1, 0)
    dataset = build(spark, console, "porto", inputs, tmp_path)
    assert dataset.manifest["rows"]["rows_in"] == 374_144
    assert dataset.manifest["start"] == "2013-07-01T00:00:00+00:00"  # the first trip starts at 00:00:53
    assert dataset.manifest["cells"] <= 441


def test_geolife_has_the_fixes_of_eight_users(spark, tmp_path):
    inputs = found("geolife", tmp_path)
    assert len(inputs.files) == 712
    rows = tables.read_rows(spark, CITIES["geolife"], inputs, GpsColumns())
    count = F.count(F.lit(1))
    found_rows = rows.agg(count, F.count("problem"), F.count_distinct("vehicle"), F.count_distinct("trip")).first()
    assert tuple(found_rows) == (1_018_042, 0, 8, 712)


@pytest.fixture(scope="module")
def manhattan() -> np.ndarray:
    """Ids of the zones of the borough of Manhattan, by their object ids, which are unique."""
    if not ROOT or not (Path(ROOT) / "manhattan").exists():
        pytest.skip("set STREAM_DATA_DIR to a folder with the real manhattan files to run this")
    (path,) = (Path(ROOT) / "manhattan").glob("*zones*.geojson*")
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as stream:
        zones = [feature["properties"] for feature in json.load(stream)["features"]]
    return np.array([int(zone["objectid"]) for zone in zones if zone["borough"] == "Manhattan"])


def test_two_months_of_uber_have_166_pickups_a_quarter_hour_in_manhattan(spark, console, manhattan, tmp_path):
    dataset = build(spark, console, "manhattan", found("manhattan", tmp_path, trips="uber"), tmp_path)
    rows, manifest = dataset.manifest["rows"], dataset.manifest
    assert rows["rows_in"] == 1_216_951 and rows["dropped"]["malformed"] == rows["dropped"]["duplicate"] == 0
    assert (manifest["cells"], manifest["steps"]) == (263, 61 * 96)  # April and May on the local calendar
    assert manifest["start"] == "2014-04-01T04:00:00+00:00" and dataset.num_folds == 1
    series = dataset.series()
    is_manhattan = np.isin(dataset.geometry["ids"], manhattan)
    assert is_manhattan.sum() == 69
    # Shapely finds 970,171 of the pickups in the borough's polygons; a few on their borders may go either way.
    np.testing.assert_allclose(series.values[:, is_manhattan, 0].sum(), 970_171, rtol=1e-3)
    assert series.observed[..., 0].all() and not series.observed[..., 1:].any()
    events = dataset.events()
    # Of the 2,177 collisions shapely finds 2,174 in the city's polygons and 633 in the borough's.
    assert (len(events["cell"]), np.isin(events["cell"], np.nonzero(is_manhattan)[0]).sum()) == (2174, 633)
    assert events["kinds"].tolist() == ["collision"]


def test_green_cabs_have_two_ends_a_trip_and_their_trips_of_2009_are_strays(spark, console, tmp_path, manhattan):
    inputs = dataclasses.replace(found("manhattan", tmp_path, trips="tlc"), events=None)
    dataset = build(spark, console, "manhattan", inputs, tmp_path)
    rows, manifest = dataset.manifest["rows"], dataset.manifest
    assert rows["rows_in"] == 2 * (68_211 + 72_044)
    # Zones 264 (unknown) and 265 (outside the city): 201 + 187 pickups and 668 + 705 drop-offs.
    assert rows["dropped"]["outside_box"] == 201 + 187 + 668 + 705
    assert 0 < rows["dropped"]["stray_time"] < 10 and manifest["start"] >= "2022-12"
    assert dataset.series().values[..., 0].sum() == rows["used"]


def test_the_whole_of_t_drive_is_the_reference_to_the_byte(spark, console, tmp_path):
    dataset = build(spark, console, "tdrive", found("tdrive", tmp_path), tmp_path)
    rows = dataset.manifest["rows"]
    assert rows["rows_in"] == 16_649_726 and rows["rows_in"] - rows["dropped"]["duplicate"] == 15_353_770
    assert rows == {
        "rows_in": 16_649_726,
        "dropped": {
            "malformed": 0,
            "nonexistent_local_time": 0,
            "duplicate": 1_295_956,
            "zero_coordinate": 36_924,
            "outside_box": 3_840_757,
            "repeated_time": 2_197,
            "impossible_speed": 24_318,
            "stray_time": 0,
            "outside_cells": 2_620_095,
        },
        "used": 8_829_479,
    }
    assert (dataset.manifest["cells"], dataset.manifest["steps"], dataset.num_folds) == (293, 593, 3)
    # The bytes of an earlier run, so that no change of the job changes the numbers unnoticed.
    shard = dataset.steps(0, 593)
    digest = hashlib.sha256()
    for array in (shard.values, shard.observed, shard.time, dataset.geometry["ids"]):
        digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest() == "88030846f19b08e5719842bea6ffb56579066563a6a8a8ae823d7c45d69a3598"
