"""The command line on bad input: exit code 2, one sentence that names the file or the remedy, nothing half-written."""

import bz2
import gzip
import shutil
import tarfile
import warnings
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from data.spark_etl import shards
from experiments import run
from experiments.stages import etl as stages

START = 1_400_068_800  # 2014-05-14 12:00 UTC
BOX = "10,50,10.13,50.09"


def gps_rows(steps: int = 170) -> list[tuple]:
    """Two vehicles, one fix every ten minutes, three squares."""
    count = steps * 3 // 2
    return [(f"v{v}", START + 600 * k, 10.005 + 0.012 * ((k + v) % 3), 50.005) for v in (1, 2) for k in range(count)]


def write_gps(path: Path, rows: list[tuple], header: str = "vehicle,time,lon,lat") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def tdrive_text(lon: float = 116.4, lat: float = 39.9, rows: int = 400) -> str:
    moments = pd.date_range("2008-02-02", periods=rows, freq="10min")
    return "".join(f"1,{moment:%Y-%m-%d %H:%M:%S},{lon + 0.001 * (k % 9)},{lat}\n" for k, moment in enumerate(moments))


@pytest.fixture
def command(spark: SparkSession, tmp_path, monkeypatch, capsys):
    """Runs the command line with the tests' own Spark; returns the exit code and what was printed."""
    monkeypatch.delenv("STREAM_DATA_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(stages, "spark_session", lambda master, memory: spark)

    def call(*argv: str | Path) -> tuple[int, str]:
        capsys.readouterr()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            code = run.main(["--stage", "etl", "--out", str(tmp_path / "out"), *map(str, argv)])
        assert not any("org.apache" in str(warning.message) for warning in warned)
        captured = capsys.readouterr()
        assert not captured.err
        return code, captured.out

    return call


@pytest.fixture
def refuses(command, tmp_path):
    """Whether the command fails as it should: one sentence with these words, no trace, no dataset."""

    def check(argv: list, *words: str) -> bool:
        code, said = command(*argv)
        assert code == run.FAILED, said
        sentences = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(sentences) == 1 and said.splitlines()[-1] == sentences[0], said
        assert all(word in sentences[0] for word in words), sentences[0]
        assert not any(mark in said for mark in ("Traceback", "at org.apache", "at java.", "Py4J", "o.a.s"))
        out = tmp_path / "out"
        return not out.exists() or not [path for path in out.iterdir() if path.name != "raw"]

    return check


def gps(path: Path, *more: str) -> list:
    return ["--dataset", "gps", "--raw", path, "--time-format", "unix", "--box", BOX, *more]


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory) -> Path:
    """A finished run in a folder whose name would be markup to a careless console."""
    folder = tmp_path_factory.mktemp("run") / "a [bold] run"
    raw = write_gps(folder / "fixes.csv", gps_rows())
    patch = pytest.MonkeyPatch()
    patch.setattr(stages, "spark_session", lambda master, memory: spark)
    assert run.main(["--stage", "etl", "--out", str(folder / "out"), *map(str, gps(raw))]) == 0
    patch.undo()
    return folder


def test_a_good_recording_succeeds_and_is_up_to_date_the_second_time(command, finished):
    code, said = command(*gps(finished / "fixes.csv"), "--out", finished / "out")
    assert code == 0 and "a [bold] run/out/data is up to date" in said and "data: real" in said
    manifest = shards.read_manifest(finished / "out" / "data")
    assert manifest["steps"] == 170 and manifest["rows"]["used"] == len(gps_rows())
    assert sorted(path.name for path in (finished / "out").iterdir()) == ["data", "etl.key", "run.json"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["altered", "missing"])
def test_an_altered_or_removed_shard_is_named_and_the_remedy_works(command, finished, tmp_path, how):
    shutil.copytree(finished / "out", tmp_path / "out")
    shard = tmp_path / "out" / "data" / "shard-0000000.npz"
    content = shard.read_bytes()
    shard.unlink() if how == "missing" else shard.write_bytes(content[:-50] + bytes(50))
    code, said = command(*gps(finished / "fixes.csv"))
    assert code == run.FAILED and "shard-0000000.npz" in said and how in said and "delete its folder" in said
    shutil.rmtree(tmp_path / "out" / "data")
    if how == "altered":  # the remedy once is enough: it is the same for both
        assert command(*gps(finished / "fixes.csv"))[0] == 0
        assert shard.read_bytes() == content


def test_a_missing_or_empty_input_is_named(refuses, tmp_path):
    assert refuses(["--dataset", "porto", "--raw", tmp_path / "nowhere"], "nowhere", "does not exist", "--raw")
    (tmp_path / "nothing").mkdir()
    assert refuses(["--dataset", "porto", "--raw", tmp_path / "nothing"], "No porto files", "train*.csv", "--download")
    (tmp_path / "train.csv").touch()
    assert refuses(["--dataset", "porto", "--raw", tmp_path / "train.csv"], "train.csv is empty")
    (tmp_path / "other.csv").write_text("a\n1\n")
    assert refuses(["--dataset", "porto", "--raw", tmp_path / "other.csv"], "No porto files", "other.csv")
    raw = write_gps(tmp_path / "fixes.csv", gps_rows())
    assert refuses(gps(raw, "--events", tmp_path / "no.csv"), "no.csv does not exist")
    assert refuses(["--dataset", "gps"], "needs --raw")
    assert refuses(["--dataset", "sensors"], "need --raw")
    assert refuses(
        ["--dataset", "sensors", "--raw", raw, "--coordinates", tmp_path / "no.csv"], "no.csv does not exist"
    )


def test_real_data_that_was_required_is_not_replaced_by_a_synthetic_twin(refuses):
    assert refuses(["--dataset", "tdrive", "--require-real"], "No real tdrive files", "STREAM_DATA_DIR", "--download")


def test_a_header_without_rows_and_a_wrong_column_are_named(refuses, tmp_path):
    assert refuses(gps(write_gps(tmp_path / "a.csv", [])), "a.csv holds no rows")
    raw = write_gps(tmp_path / "b.csv", gps_rows(), header="cab,when,lon,lat")
    assert refuses(gps(raw), "b.csv has no column vehicle, time", "its columns are cab, when, lon, lat", "--columns")
    assert refuses(gps(raw, "--columns", "cab=vehicle"), "--columns 'cab=vehicle'")
    assert refuses(gps(raw, "--columns", "vehicle=cab,time=when,lon=lon,lat=[red]"), "no column [red]")


def test_files_with_different_headers_are_not_read_as_if_they_were_alike(refuses, tmp_path):
    write_gps(tmp_path / "raw" / "a.csv", gps_rows())
    write_gps(tmp_path / "raw" / "b.csv", gps_rows(), header="vehicle,time,lat,lon")
    assert refuses(gps(tmp_path / "raw"), ".csv has another header than the files beside it")


@pytest.mark.parametrize("suffix", [".txt.gz", ".txt.bz2"])
@pytest.mark.parametrize("how", ["truncated", "damaged", "fake"])
def test_a_broken_packed_file_is_named(refuses, tmp_path, suffix, how):
    text = tdrive_text(rows=3000).encode()
    packed = gzip.compress(text) if suffix == ".txt.gz" else bz2.compress(text)
    middle = len(packed) // 2
    content = {
        "truncated": packed[:middle],
        "damaged": packed[:middle] + b"\xff" * 64 + packed[middle + 64 :],
        "fake": text,
    }
    (tmp_path / f"taxis{suffix}").write_bytes(content[how])
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path], f"taxis{suffix} is", "download it again")


def test_a_truncated_parquet_is_named_and_nanoseconds_have_a_remedy(refuses, tmp_path):
    table = pd.DataFrame(gps_rows(), columns=["vehicle", "time", "lon", "lat"])
    table.to_parquet(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    assert refuses(gps(tmp_path / "a.parquet"), "a.parquet is damaged or truncated", "download it again")
    table["time"] = pd.to_datetime(table["time"], unit="s").astype("datetime64[ns]")
    table.to_parquet(tmp_path / "a.parquet")
    assert refuses(
        ["--dataset", "gps", "--raw", tmp_path / "a.parquet"], "a.parquet has times in nanoseconds", "coerce"
    )


@pytest.mark.slow
def test_swapped_and_metric_coordinates_are_recognised(refuses, tmp_path):
    (tmp_path / "swapped.txt").write_text(tdrive_text(lon=39.9, lat=116.4))
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "swapped.txt"], "Longitude and latitude", "wrong order")
    (tmp_path / "metric.txt").write_text(tdrive_text(lon=450_000.0, lat=4_400_000.0))
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "metric.txt"], "metric.txt are not degrees", "WGS 84")
    raw = write_gps(tmp_path / "metric.csv", [(v, t, 450_000 + x, 4_400_000) for v, t, x, _ in gps_rows()])
    assert refuses(["--dataset", "gps", "--raw", raw, "--time-format", "unix"], "metric.csv are not degrees", "WGS 84")
    (tmp_path / "rome.txt").write_text(tdrive_text(lon=12.5, lat=41.9))
    assert refuses(
        ["--dataset", "tdrive", "--raw", tmp_path / "rome.txt"], "No row of rome.txt lies in the city box", "--box"
    )


def test_degrees_that_are_swapped_in_most_rows_are_recognised(refuses, tmp_path):
    # A tenth of the rows are right, so the recording is not empty; nine tenths lie in Beijing only if exchanged.
    right, wrong = tdrive_text(rows=400), tdrive_text(lon=39.9, lat=116.4, rows=4000).replace("1,2008", "2,2008")
    (tmp_path / "mixed.txt").write_text(right + wrong)
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "mixed.txt"], "wrong order", "4,000 of 4,400 fixes lie")
    (tmp_path / "far.txt").write_text(
        right[:2000] + tdrive_text(lon=12.5, lat=41.9, rows=9000).replace("1,2008", "2,2008")
    )
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "far.txt"], "fixes of far.txt lie in the box", "--box")


def test_a_place_that_its_time_zone_does_not_know_is_refused(refuses, tmp_path):
    madrid = [(v, t, -3.7 + x - 10, 40.4) for v, t, x, _ in gps_rows()]
    swapped = write_gps(tmp_path / "swapped.csv", [(v, t, lat, lon) for v, t, lon, lat in madrid])
    options = ["--time-format", "unix", "--timezone", "Europe/Madrid"]
    assert refuses(["--dataset", "gps", "--raw", swapped, *options], "wrong order", "Europe/Madrid", "--columns")
    tokyo = write_gps(tmp_path / "tokyo.csv", [(v, t, 139.7 + x - 10, 35.7) for v, t, x, _ in gps_rows()])
    assert refuses(["--dataset", "gps", "--raw", tokyo, *options], "7 hours from the clock of Europe/Madrid")


def test_times_of_another_unit_or_to_come_are_named(refuses, tmp_path):
    rows = gps_rows()
    milli = write_gps(tmp_path / "milli.csv", [(v, 1000 * t, x, y) for v, t, x, y in rows])
    assert refuses(gps(milli), "milli.csv count milliseconds", "--time-format unix_ms")
    seconds = write_gps(tmp_path / "seconds.csv", rows)
    assert refuses(gps(seconds, "--time-format", "unix_ms"), "seconds.csv end on 1970-01-17", "unix means seconds")
    nano = write_gps(tmp_path / "nano.csv", [(v, 10**9 * t, x, y) for v, t, x, y in rows])
    assert refuses(gps(nano), "nano.csv count micro- or nanoseconds")
    later = write_gps(tmp_path / "later.csv", [(v, t + 10**9 * 2, x, y) for v, t, x, y in rows])
    assert refuses(gps(later), "later.csv has times to come, up to 2077")


def test_a_part_without_observations_is_named_with_its_dates(refuses, tmp_path):
    # 1,000 steps, of which the last 300 and the first 300 have fixes: nothing in between, where calibration lies.
    rows = gps_rows(300)
    gap = write_gps(tmp_path / "gap.csv", rows + [(v, t + 900 * 700, x, y) for v, t, x, y in rows])
    assert refuses(gps(gap), "Nothing was observed from 2014-05-", "part of gap.csv")


def test_an_unknown_delimiter_is_named_and_the_usual_ones_are_read(command, refuses, tmp_path):
    text = write_gps(tmp_path / "a.csv", gps_rows()).read_text()
    (tmp_path / "colon.csv").write_text(text.replace(",", ":"))
    assert refuses(gps(tmp_path / "colon.csv"), "colon.csv", "delimiter is unknown", "semicolon")
    (tmp_path / "a.csv").write_text(text.replace(",", ";").replace("vehicle", '"my.`cab` ""7"""'))
    code, said = command(*gps(tmp_path / "a.csv", "--columns", 'vehicle=my.`cab` "7"'))
    assert code == 0, said


def test_incidents_that_fall_nowhere_are_not_a_log_of_nothing(refuses, tmp_path):
    raw = write_gps(tmp_path / "raw" / "fixes.csv", gps_rows())
    log = tmp_path / "log.csv"
    log.write_text("start,end,lon,lat,kind\n2019-01-01T00:00:00,2019-01-01T01:00:00,10.005,50.005,crash\n")
    assert refuses(gps(raw, "--events", log), "None of the 1 incidents", "log.csv")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--dataset", "sensors", "--events", "no.csv"], ["--events says nothing about --dataset sensors"]),
        (["--dataset", "tdrive", "--columns", "vehicle=id"], ["--columns says nothing", "it is read for gps"]),
        (["--dataset", "porto", "--time-format", "unix"], ["--time-format says nothing"]),
        (["--dataset", "manhattan", "--square", "500"], ["--square says nothing"]),
        (["--dataset", "gps", "--missing-value", "0"], ["--missing-value says nothing", "sensors"]),
        (["--dataset", "porto", "--trips", "foil"], ["--trips says nothing", "manhattan"]),
        (["--controllers", "foo", "bar"], ["No controller is called foo, bar", "default_plan", "la_mbda"]),
    ],
)
def test_an_option_that_nobody_would_read_is_refused(refuses, argv, words):
    assert refuses(argv, *words)


def test_rows_none_of_which_can_be_read_are_called_so(refuses, tmp_path):
    (tmp_path / "notes.txt").write_text("dear diary\n" * 5)
    assert refuses(
        ["--dataset", "tdrive", "--raw", tmp_path / "notes.txt"], "None of the 5 rows of notes.txt could be read"
    )


def test_a_recording_that_is_too_short_says_how_much_is_needed(refuses, tmp_path):
    assert refuses(gps(write_gps(tmp_path / "a.csv", gps_rows(100))), "only 100 steps; at least 1", "are needed")
    assert refuses(
        gps(write_gps(tmp_path / "b.csv", gps_rows()), "--square", "9000"), "Only 1 squares", "smaller --square"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--timezone", "Mars/Olympus"], ["no time zone 'Mars/Olympus'", "Europe/Lisbon"]),
        (["--timezone", "Europe"], ["no time zone 'Europe'"]),
        (["--timezone", "../../etc/passwd"], ["no time zone"]),
        (["--box", "1,2,3"], ["--box '1,2,3' is not lon_min,lat_min"]),
        (["--box", "a,b,c,d"], ["--box 'a,b,c,d' is not"]),
        (["--box", "10.13,50,10,50.09"], ["is empty or not on Earth"]),
        (["--box", "nan,50,10,50.09"], ["is empty or not on Earth"]),
        (["--square", "0"], ["--square 0 is not a positive number"]),
        (["--square", "nan"], ["--square nan is not a positive number"]),
        (["--cells", "-5"], ["--cells -5 is negative"]),
        (["--bin-minutes", "7"], ["--bin-minutes 7 does not divide a day"]),
        (["--bin-minutes", "0"], ["--bin-minutes 0 does not divide a day"]),
        (["--time-format", "bogus {"], ["fixes.csv"]),
    ],
)
def test_an_option_that_means_nothing_is_refused(refuses, tmp_path, options, words):
    assert refuses(gps(write_gps(tmp_path / "fixes.csv", gps_rows()), *options), *words)


def test_an_output_folder_that_cannot_be_made_is_named(command, tmp_path):
    raw = write_gps(tmp_path / "fixes.csv", gps_rows())
    code, said = command(*gps(raw), "--out", tmp_path / "fixes.csv" / "out")
    assert code == run.FAILED and "fixes.csv" in said and "choose another --out" in said and said.count("\n") == 1


def test_archives_are_unpacked_but_never_outside_their_folder(refuses, command, tmp_path):
    for name in ("evil.zip", "evil.tar.gz", "cut.zip"):
        (tmp_path / name.partition(".")[0]).mkdir(exist_ok=True)
    with zipfile.ZipFile(tmp_path / "evil" / "a.zip", "w") as archive:
        archive.writestr("../../escaped.txt", tdrive_text())
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "evil"], "a.zip holds ../../escaped.txt", "refused")
    (tmp_path / "evil" / "a.zip").unlink()
    (tmp_path / "taxis.txt").write_text(tdrive_text())
    with tarfile.open(tmp_path / "evil" / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "taxis.txt", arcname="../../escaped.txt")
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "evil"], "a.tar.gz", "outside", "refused")
    assert not list(tmp_path.rglob("escaped.txt"))
    with zipfile.ZipFile(tmp_path / "cut" / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "taxis.txt", "taxis.txt")
    whole = (tmp_path / "cut" / "a.zip").read_bytes()
    (tmp_path / "cut" / "a.zip").write_bytes(whole[:200])
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "cut"], "a.zip cannot be unpacked", "download it again")
    (tmp_path / "cut" / "a.zip").write_bytes(whole[:100] + b"\xff" * 64 + whole[164:])
    assert refuses(["--dataset", "tdrive", "--raw", tmp_path / "cut"], "a.zip cannot be unpacked", "download it again")


def test_a_new_recording_replaces_the_old_one_and_a_failed_one_does_not(command, finished, tmp_path):
    shutil.copytree(finished / "out", tmp_path / "out")
    before = shards.read_manifest(tmp_path / "out" / "data")
    code, _ = command(*gps(write_gps(tmp_path / "a.csv", gps_rows(100))))
    assert code == run.FAILED and shards.read_manifest(tmp_path / "out" / "data") == before
    shards.verify_content(tmp_path / "out" / "data", before)


def test_a_synthetic_recording_stays_synthetic_wherever_it_is_read_from(tmp_path):
    twin = tmp_path / "twin"
    write_gps(twin / "Data" / "000" / "fixes.csv", gps_rows())
    (twin / "SYNTHETIC.txt").write_text("written by a program")
    for raw in (twin, twin / "Data", twin / "Data" / "000" / "fixes.csv", tmp_path):
        assert stages.find_inputs("gps", raw, tmp_path / "scratch").synthetic, raw


def test_an_event_log_beside_the_fixes_is_not_read_as_fixes(tmp_path):
    write_gps(tmp_path / "raw" / "fixes.csv", gps_rows())
    (tmp_path / "raw" / "events.csv").write_text("start,end,lon,lat,kind\n")
    inputs = stages.find_inputs("gps", tmp_path / "raw", tmp_path / "scratch")
    assert [path.name for path in inputs.files] == ["fixes.csv"] and inputs.events.name == "events.csv"
