"""Sensor matrices: csv, parquet and npz in, readings, cells and graph out, and what is wrong with them in words."""

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data import loader
from data.errors import DataError
from data.spark_etl import sensors
from data.spark_etl.inputs import RawInputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.schema import CITIES
from data.spark_etl.sensors import SensorSource

START = int(datetime(2014, 7, 1, tzinfo=UTC).timestamp())
STEPS = 160


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def build(spark, console, folder: Path, source: SensorSource) -> loader.TrafficDataset:
    cfg = JobConfig(CITIES["sensors"], sensors=source)
    run_job(spark, cfg, RawInputs((source.matrix,)), folder / "data", console, folder)
    return loader.load(folder / "data", verify=True)


def test_csv_readings_are_local_and_gaps_nulls_and_the_missing_value_are_no_readings(spark, tmp_path):
    text = "when,a,b.c\n2014-07-01 10:00:00,1.5,2\n2014-07-01 10:05:00,0,\n2014-07-01 10:10:00,x,inf\nnever,1,1\n"
    path = write(tmp_path / "readings [1].csv", text)
    source = SensorSource(path, missing_value=0.0)
    readings, names = sensors.read_sensors(spark, source, "Europe/Lisbon", tmp_path)
    assert names == ["a", "b.c"]
    ten = int(datetime(2014, 7, 1, 9, tzinfo=UTC).timestamp())  # 10:00 summer time
    rows = [tuple(row) for row in readings.collect()]
    assert rows == [
        (ten, 0, 1.5), (ten, 1, 2.0), (ten + 300, 0, None), (ten + 300, 1, None),
        (ten + 600, 0, None), (ten + 600, 1, None), (None, 0, 1.0), (None, 1, 1.0),
    ]  # fmt: skip
    table = sensors.readings_to_table(readings.filter("time_s is not null"), 900).collect()
    # One quarter hour: sensor 0 has the reading 1.5, sensor 1 the reading 2, in millionths.
    assert {row["place"]: (row["sum"], row["count"]) for row in table} == {0: (1_500_000, 1), 1: (2_000_000, 1)}


def test_an_npz_with_coordinates_becomes_a_dataset_of_means_per_step(spark, console, tmp_path):
    time = START + 300 * np.arange(3 * STEPS)  # three readings a step
    values = np.arange(3 * STEPS * 2, dtype=np.float64).reshape(-1, 2)
    values[3:6, 1] = np.nan  # sensor 1 is silent in step 1
    values[6, 0] = np.nan
    np.savez(tmp_path / "m.npz", time=time, values=values)
    places = write(tmp_path / "places.csv", "sensor,lat,lon\nsensor_1,34.10,-118.20\nsensor_0,34.00,-118.30\n")
    source = SensorSource(tmp_path / "m.npz", coordinates=places, feature="speed", unit="mph")
    dataset = build(spark, console, tmp_path, source)
    shard = dataset.steps(0, STEPS)
    assert shard.time[0] == START and shard.values.shape == (STEPS, 2, 1)
    # Sensor 0 reads 0, 2, 4 in step 0 and 6, 8, 10 in step 1; in step 2 it reads -, 14, 16.
    np.testing.assert_array_equal(shard.values[:3, 0, 0], [2.0, 8.0, 15.0])
    np.testing.assert_array_equal(shard.observed[:3, 1, 0], [True, False, True])
    assert dataset.manifest["units"] == {"speed": "mph"} and dataset.manifest["features"] == ["speed"]
    rows = dataset.manifest["rows"]
    assert rows == {"rows_in": 960, "dropped": {"malformed": 0, "missing_reading": 4}, "used": 956}
    np.testing.assert_allclose(dataset.geometry["lonlat"], [[-118.3, 34.0], [-118.2, 34.1]])
    assert dataset.graph.senders.tolist() == [0, 1, 0, 1] and dataset.graph.receivers.tolist() == [0, 0, 1, 1]
    # 0.1 degrees of latitude are 11.12 km, of longitude 9.21 km at 34.05 degrees: 14.44 km apart.
    np.testing.assert_allclose(dataset.graph.edge_features[1, 0], 14.44, atol=0.01)
    assert not (tmp_path / "data" / "sensors.parquet").exists()


def test_a_csv_with_an_adjacency_has_the_edges_of_its_weights(spark, console, tmp_path):
    moments = [datetime(2014, 7, 1) + timedelta(minutes=15 * k) for k in range(STEPS)]
    text = "time,a,b,c\n" + "".join(f"{moment},{k},{k},{k}\n" for k, moment in enumerate(moments))
    matrix = write(tmp_path / "m.csv", text)
    adjacency = write(tmp_path / "w.csv", "1,0.5,0\n0,1,0\n0,0,1\n")
    dataset = build(spark, console, tmp_path, SensorSource(matrix, adjacency=adjacency))
    pairs = set(zip(dataset.graph.senders.tolist(), dataset.graph.receivers.tolist(), strict=True))
    assert pairs == {(0, 0), (1, 1), (2, 2), (0, 1), (1, 0)}
    np.testing.assert_array_equal(dataset.series().values[:, 0, 0], np.arange(STEPS))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sensor,x,y\na,1,2\n", "needs the columns sensor, lon, lat; it has sensor, x, y"),
        ("sensor,lon,lat\na,1,2\n", "has no coordinates for 1 sensors, such as 007"),
        ("sensor,lon,lat\na,1,2\n007,east,2\n", "gives 007 no longitude and latitude in degrees"),
        ("sensor,lon,lat\na,1,2\n007,,2\n", "gives 007 no longitude and latitude in degrees"),
        ("sensor,lon,lat\na,500000,4000000\n007,1,2\n", "gives a no longitude and latitude in degrees"),
        ("", "is not a readable csv of coordinates"),
    ],
)
def test_coordinates_that_cannot_be_used_are_named(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence):
        sensors.read_coordinates(write(tmp_path / "places.csv", text), ["a", "007"])


def test_coordinates_keep_leading_zeros_and_the_first_of_two_rows(tmp_path):
    path = write(tmp_path / "places.csv", "sensor,lon,lat\n007,1,2\na,3,4\na,5,6\n")
    np.testing.assert_array_equal(sensors.read_coordinates(path, ["a", "007"]), [[3, 4], [1, 2]])


def test_an_adjacency_of_another_size_or_kind_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"is \(1, 2\), but the readings have 2 sensors"):
        sensors.read_adjacency(write(tmp_path / "w.csv", "1,2\n"), 2)
    np.savez(tmp_path / "w.npz", weights=np.eye(2))
    np.testing.assert_array_equal(sensors.read_adjacency(tmp_path / "w.npz", 2), np.eye(2))
    whole = (tmp_path / "w.npz").read_bytes()
    empty_zip = b"PK\x05\x06" + bytes(18)
    broken = {"a.npy": b"", "b.npz": whole[:60], "c.csv": b"a,b\nc,d\n", "d.npz": empty_zip}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} is not a readable adjacency matrix"):
            sensors.read_adjacency(tmp_path / name, 2)


def test_an_npz_or_a_time_column_that_is_not_there_is_named(spark, tmp_path):
    np.savez(tmp_path / "m.npz", values=np.eye(2))
    with pytest.raises(DataError, match=r"m\.npz needs the arrays time"):
        sensors.read_sensors(spark, SensorSource(tmp_path / "m.npz"), "UTC", tmp_path)
    np.savez(tmp_path / "m.npz", time=np.arange(3), values=np.eye(2))
    with pytest.raises(DataError, match=r"time is \(3,\) and values \(2, 2\)"):
        sensors.read_sensors(spark, SensorSource(tmp_path / "m.npz"), "UTC", tmp_path)
    pd.DataFrame({"a": [1.0]}).to_parquet(tmp_path / "m.parquet")
    with pytest.raises(DataError, match=r"m\.parquet has no column when; its first columns are a"):
        sensors.read_sensors(spark, SensorSource(tmp_path / "m.parquet", time_column="when"), "UTC", tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("time,a,b\nnever,1,2\n", "No row of .*m.csv has a time that can be read"),
        ("time,a,b\n2014-07-01 10:00:00,x,\n", "m.csv holds no readings"),
    ],
)
def test_a_matrix_without_times_or_readings_is_refused(spark, console, tmp_path, text, sentence):
    source = SensorSource(write(tmp_path / "m.csv", text), coordinates=tmp_path / "places.csv")
    with pytest.raises(DataError, match=sentence):
        build(spark, console, tmp_path, source)
    assert not (tmp_path / "data").exists()


def test_numbers_in_a_csv_are_unix_seconds_as_they_are_in_a_parquet(spark, tmp_path):
    path = write(tmp_path / "m.csv", f"time,a\n{START},1\n 2014-07-01 00:05:00,2\n")
    readings, _ = sensors.read_sensors(spark, SensorSource(path), "UTC", tmp_path)
    assert next(tuple(row) for row in readings.collect()) == (START, 0, 1.0)


ODD = ["A.1/km 3.5", 'the "old" bridge', "back`tick", "semi;colon", "comma, here", "Ä" * 300, "north", "North"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_sensor_keeps_the_name_that_it_has_in_the_file(spark, console, tmp_path, delimiter):
    with (tmp_path / "m.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(["when", *ODD])
        for k in range(STEPS):
            writer.writerow([f"{datetime(2014, 7, 1) + timedelta(minutes=15 * k)}", *range(len(ODD))])
    with (tmp_path / "places.csv").open("w", newline="") as stream:
        rows = [(name, 10 + 0.01 * k, 50 + 0.01 * k) for k, name in enumerate(ODD)]
        csv.writer(stream, delimiter=delimiter).writerows([("sensor", "lon", "lat"), *reversed(rows)])
    source = SensorSource(tmp_path / "m.csv", coordinates=tmp_path / "places.csv")
    dataset = build(spark, console, tmp_path, source)
    assert dataset.names == ODD
    # Sensor k always reads k and stands 0.01 k degrees north-east of the first.
    np.testing.assert_array_equal(dataset.steps(0, 3).values[0, :, 0], range(len(ODD)))
    np.testing.assert_allclose(dataset.geometry["lonlat"][:, 0], 10 + 0.01 * np.arange(len(ODD)))


def test_names_of_a_parquet_survive_too(spark, tmp_path):
    pd.DataFrame({"t": [START], "a.b": [1.0], "c`d": [2.0]}).to_parquet(tmp_path / "m.parquet")
    readings, names = sensors.read_sensors(spark, SensorSource(tmp_path / "m.parquet"), "UTC", tmp_path)
    assert names == ["a.b", "c`d"] and [tuple(row) for row in readings.collect()] == [(START, 0, 1.0), (START, 1, 2.0)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("time:a:b\n1:2:3\n", "header of one column, 'time:a:b', so its delimiter is unknown"),
        ("time,a,a\n1,2,3\n", "has two columns 'a'"),
    ],
)
def test_a_header_that_cannot_be_told_apart_is_named(spark, tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence):
        sensors.read_sensors(spark, SensorSource(write(tmp_path / "m.csv", text)), "UTC", tmp_path)
