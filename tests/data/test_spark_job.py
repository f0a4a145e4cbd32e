"""The whole job on a small city: the same bytes however the work is divided, every row counted, no future seen."""

import bz2
import csv
import dataclasses
import gzip
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyspark
import pytest
from pyspark.sql import SparkSession

from data import loader
from data.errors import DataError
from data.spark_etl import job, shards
from data.spark_etl.inputs import RawInputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.schema import CITIES
from data.spark_etl.session import java_home

ROOT = Path(__file__).parents[2]
SPEC = dataclasses.replace(CITIES["synthetic"], window=3, horizon=1, num_cells=4)
CFG = JobConfig(SPEC)
STEPS, HALF, TAXIS = 60, 30, 6
START = datetime(2014, 5, 14, 12, tzinfo=UTC)  # 13:00 on the city's clock; the recording goes over midnight
ROUTE = [(500 + 1000 * k, 500) for k in range(5)] + [
    (4500 - 1000 * k, 1500) for k in range(5)
]  # a round of ten squares

BAD = [  # each with the step that drops it
    ("malformed", "1,2014-05-14 20:00:00,ten,50.01"),
    ("malformed", "1,2014-05-14 20:00:00,10.01"),
    ("zero_coordinate", "1,2014-05-14 20:01:00,0.0,50.01"),
    ("outside_box", "1,2014-05-14 20:02:00,11.0,50.01"),
]


def line(taxi: int, moment: datetime, x: float, y: float) -> str:
    wall = moment + timedelta(hours=1)
    lon, lat = SPEC.box.lon_min + x / SPEC.box.metres_per_lon, SPEC.box.lat_min + y / SPEC.box.metres_per_lat
    return f"{taxi},{wall:%Y-%m-%d %H:%M:%S},{lon:.6f},{lat:.6f}"


def recording(place: Callable[[int, int], tuple[float, float]]) -> list[str]:
    """A fix every five minutes of each taxi, at the place that a function of taxi and index says."""
    moments = [START + timedelta(minutes=5 * k) for k in range(3 * STEPS)]
    return [line(taxi, moment, *place(taxi, k)) for taxi in range(1, TAXIS + 1) for k, moment in enumerate(moments)]


def on_route(taxi: int, index: int) -> tuple[float, float]:
    """Taxis 1 to 4 go to and fro between two squares each, the others go all the way round."""
    return ROUTE[(taxi * 2 + index % 2) % 10] if taxi <= 4 else ROUTE[(taxi + index) % 10]


LINES = recording(on_route)
FAULTY = [
    *LINES,
    *(row for _, row in BAD),
    *LINES[::100],  # exact repetitions
    line(1, datetime(1980, 1, 6, tzinfo=UTC), 500.0, 500.0),  # where the clock of GPS begins
    line(2, START, 9000.0, 9000.0),  # a second position at the same second, further east: dropped
    line(9, START, 500.0, 500.0),
    line(9, START + timedelta(seconds=30), 9000.0, 9000.0),  # 340 m/s: neither of the two is joined to anything
]


def write_raw(folder: Path, lines: list[str]) -> RawInputs:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "taxis.txt").write_text("\n".join(lines) + "\n")
    return RawInputs((folder / "taxis.txt",))


def build(spark: SparkSession, console, folder: Path, inputs: RawInputs, cfg: JobConfig = CFG) -> dict:
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    return run_job(spark, cfg, inputs, folder / "data", console, scratch)


def contents(folder: Path) -> dict[str, bytes]:
    """The files that the content hash covers."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npz"))}


@pytest.fixture(scope="module")
def reference(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the raw files and the dataset of the faulty recording, with an event log."""
    folder = tmp_path_factory.mktemp("reference")
    inputs = write_raw(folder / "raw", FAULTY)
    lon, lat = SPEC.box.lon_min + 4500 / SPEC.box.metres_per_lon, SPEC.box.lat_min + 500 / SPEC.box.metres_per_lat
    log = f"start,end,lon,lat,kind\n2014-05-14T14:00:00,2014-05-14T14:20:00,{lon:.6f},{lat:.6f},jam\n"
    (folder / "raw" / "events.csv").write_text(log)
    inputs = dataclasses.replace(inputs, events=folder / "raw" / "events.csv")
    build(spark, job.Console(quiet=True), folder, inputs)
    return folder


def test_every_row_is_used_or_dropped_for_one_counted_reason(reference):
    rows = shards.read_manifest(reference / "data")["rows"]
    assert rows["rows_in"] == len(FAULTY) == rows["used"] + sum(rows["dropped"].values())
    dropped = dict(rows["dropped"])
    assert dropped == {
        "malformed": 2,
        "nonexistent_local_time": 0,
        "duplicate": len(LINES[::100]),
        "zero_coordinate": 1,
        "outside_box": 1,
        "repeated_time": 1,
        "impossible_speed": 2,
        "stray_time": 1,
        "outside_cells": 576,  # 1080 good fixes, of which 126 lie in each of the four cells, see below
    }


def test_malformed_rows_are_listed_as_they_were(reference):
    with open(reference / "data" / "malformed.csv", newline="") as stream:
        rows = [tuple(row) for row in csv.reader(stream)]
    assert rows == [("problem", "row"), *sorted(pair for pair in BAD if pair[0] == "malformed")]


def test_the_tensor_is_what_the_route_says(reference):
    dataset = loader.load(reference / "data", verify=True)
    # The route's squares are 0 to 4 and, back, 14 to 10. Taxis 1 to 4 have two of the last eight each: 45 visits in the
    # first half, and taxis 5 and 6 add 9 each everywhere. Eight squares have 63 visits: the four smallest numbers stay.
    assert dataset.geometry["ids"].tolist() == [2, 3, 4, 10]
    series = dataset.series()
    assert series.values.shape == (STEPS, 4, 3) and series.observed[..., 0].all() and series.observed[..., 2].all()
    # 1000 m in 300 s at every movement, rounded to mm/s; the way between the rows is 1000 m too.
    speeds = series.values[..., 1][series.observed[..., 1]]
    np.testing.assert_allclose(speeds, 3.333, atol=2e-3)  # 1 mm/s of rounding, 6 decimals of a degree are 0.1 m
    # Every fix begins a visit: 90 of a taxi that goes to and fro and 18 of each that goes round.
    np.testing.assert_array_equal(series.values[..., 0].sum(axis=0), [126] * 4)


def test_events_become_labels_of_their_cell_and_steps(reference):
    dataset = loader.load(reference / "data")
    events = dataset.events()
    expected = np.zeros((STEPS, 4), np.int8)
    expected[4:6, 2] = 1  # square 4 is cell 2; 14:00 to 14:20 begins an hour into the recording
    np.testing.assert_array_equal(events["label"], expected)
    assert events["kinds"].tolist() == ["jam"] and dataset.manifest["events"]["count"] == 1


def test_the_same_bytes_come_of_shuffled_rows_other_files_and_other_partitions(spark, console, reference, tmp_path):
    rows = random.Random(1).sample(FAULTY, len(FAULTY))
    (tmp_path / "raw").mkdir()
    files = tuple(tmp_path / "raw" / name for name in ("c.txt", "a.txt.gz", "b.txt.bz2", "d.txt"))
    for path, part in zip(files, (rows[:300], rows[300:301], rows[301:], []), strict=True):
        text = "".join(f"{row}\n" for row in part).encode()
        path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(text))
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        inputs = RawInputs(files, events=reference / "raw" / "events.csv")
        manifest = build(spark, console, tmp_path, inputs)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert contents(tmp_path / "data") == contents(reference / "data")
    assert manifest["content_hash"] == shards.read_manifest(reference / "data")["content_hash"]


def test_what_comes_after_the_first_half_changes_neither_cells_nor_graph(spark, console, tmp_path):
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    build(spark, console, plain, write_raw(plain / "raw", LINES))
    later = recording(lambda taxi, k: on_route(taxi, k) if k < 3 * HALF else (500 + 1000 * (k % 8), 5500))
    build(spark, console, changed, write_raw(changed / "raw", later))
    one, other = loader.load(plain / "data"), loader.load(changed / "data")
    assert one.part("train")[1] <= HALF  # so the graph's training part ends before the change as well
    assert contents(plain / "data")[shards.GRAPH] == contents(changed / "data")[shards.GRAPH]
    assert one.graph.edge_features[:, 1].max() > 0  # there are transitions to get wrong
    np.testing.assert_array_equal(one.series().values[:HALF], other.series().values[:HALF])
    assert not np.array_equal(one.series().values[HALF:], other.series().values[HALF:])


def test_the_graph_counts_transitions_of_the_training_part_alone(spark, console, reference, tmp_path):
    cfg = JobConfig(dataclasses.replace(SPEC, num_cells=None))
    plain, changed = tmp_path / "plain", tmp_path / "changed"
    build(spark, console, plain, write_raw(plain / "raw", LINES), cfg)
    one = loader.load(plain / "data")
    end = one.part("train")[1]
    # The other way round from the first step after training: the same squares, the opposite transitions.
    back = recording(lambda taxi, k: on_route(taxi, k if k < 3 * end else 6 * STEPS - k))
    build(spark, console, changed, write_raw(changed / "raw", back), cfg)
    assert contents(plain / "data")[shards.GRAPH] == contents(changed / "data")[shards.GRAPH]
    assert contents(plain / "data") != contents(changed / "data")


def test_a_job_that_breaks_leaves_the_old_dataset_and_no_temporary_folder(spark, console, tmp_path, monkeypatch):
    inputs = write_raw(tmp_path / "raw", LINES)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("old")

    def break_half_way(spark, cfg, inputs, folder, console):
        (folder / "shard-0000000.npz").write_bytes(b"half")
        raise RuntimeError("power cut")

    monkeypatch.setattr(job, "_vehicle_parts", break_half_way)
    with pytest.raises(RuntimeError, match="power cut"):
        build(spark, console, tmp_path, inputs)
    assert (tmp_path / "data" / "manifest.json").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "raw", "scratch"]


def test_a_wrong_clock_that_stretches_the_recording_over_decades_is_refused(spark, console, tmp_path):
    stray = recording(on_route)[:10]
    stray = [row.replace("2014-05-14", "1980-01-06") for row in stray]  # too many to be strays
    with pytest.raises(DataError, match=r"taxis\.txt spans 1980-01-06 to 2014-05-1"):
        build(spark, console, tmp_path, write_raw(tmp_path / "raw", [*LINES, *stray]))
    assert not (tmp_path / "data").exists()


CHILD = """
import dataclasses, sys
from pathlib import Path
from rich.console import Console
from data.spark_etl.inputs import RawInputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.schema import CITIES
from data.spark_etl.session import java_home, spark_session

raw, out, master = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
spec = dataclasses.replace(CITIES["synthetic"], window=3, horizon=1, num_cells=4)
spark = spark_session(master, "512m", 5)
inputs = RawInputs((raw / "taxis.txt",), events=raw / "events.csv")
run_job(spark, JobConfig(spec), inputs, out / "data", Console(), out)
print("java", java_home(), "master", spark.sparkContext.master)
spark.stop()
"""


def run_child(reference: Path, out: Path, master: str, env: dict[str, str]) -> str:
    """The reference's job in a process of its own, since a process has one Java machine."""
    env = {"PYTHONPATH": str(ROOT), "HOME": str(out), **env}
    command = [sys.executable, "-c", CHILD, str(reference / "raw"), str(out), master]
    done = subprocess.run(command, env=env, cwd=out, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def spark_home(folder: Path) -> Path:
    """PySpark's own Spark under another root: local-cluster workers write beside their jars."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.slow
def test_a_cluster_of_two_workers_writes_the_same_bytes(reference, tmp_path):
    env = {"PATH": os.environ["PATH"], "SPARK_HOME": str(spark_home(tmp_path / "spark"))}
    said = run_child(reference, tmp_path, "local-cluster[2,1,1024]", env)
    assert "master local-cluster[2,1,1024]" in said
    assert contents(tmp_path / "data") == contents(reference / "data")


@pytest.mark.slow
def test_without_a_system_java_the_bundled_one_writes_the_same_bytes(reference, tmp_path):
    tools = tmp_path / "bin"  # the shell tools of Spark's launcher, and no java
    tools.mkdir()
    for name in ("bash", "env", "dirname", "ps", "sh", "uname", "nice", "rm", "mkdir"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    said = run_child(reference, tmp_path, "local[2]", {"PATH": str(tools)})
    assert f"java {tmp_path}" in said  # the wrapper in the home's cache
    assert contents(tmp_path / "data") == contents(reference / "data")


@pytest.mark.slow
def test_spark_submit_runs_the_command_line(tmp_path):
    rows = [
        f"{taxi},{1_400_068_800 + 600 * k},{10.005 + 0.012 * ((k + taxi) % 3):.3f},50.005"
        for taxi in range(2)
        for k in range(300)
    ]
    (tmp_path / "fixes.csv").write_text("vehicle,time,lon,lat\n" + "\n".join(rows) + "\n")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    arguments = ["--stage", "etl", "--dataset", "gps", "--raw", str(tmp_path / "fixes.csv"), "--time-format", "unix"]
    arguments += ["--box", "10,50,10.13,50.09", "--out", str(tmp_path / "out")]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "JAVA_HOME": str(java_home())}
    env |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [str(submit), "--master", "local[1]", str(ROOT / "experiments" / "run.py"), *arguments],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert loader.load(tmp_path / "out" / "data", verify=True).manifest["steps"] == 200
