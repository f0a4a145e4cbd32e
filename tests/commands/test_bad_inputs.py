"""Every bad input that we know of, through the command line: input -> outcome, as a table.

None may end in a traceback, and none may end well. `pytest -m slow -s tests/commands/test_bad_inputs.py` prints it.
"""

import bz2
import contextlib
import gzip
import io
import json
import re
import tarfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import rich
from pyspark.sql import SparkSession

from data.spark_etl import bounds
from experiments.cli import main
from experiments.stages import etl as stages
from tests.commands.test_damage import SHARD, flip
from tests.commands.test_run_etl import BOX, START, gps_rows, tdrive_text, write_gps
from tests.small_city import write_small_city

LONGEST = 1500  # characters of the sentence
LINE = 1_500_000  # bytes of a line that is too long, with a bound of a million instead of sixteen


class Case(NamedTuple):
    """One bad input."""

    name: str
    words: Callable[[Path], list]  # of the command line, given an empty folder for its files


def run(*words: object) -> Callable[[Path], list]:
    """A run that is refused for its options alone."""
    return lambda folder: ["run", "--out", folder / "out", *words]


def command(*words: object) -> Callable[[Path], list]:
    """Another command; `@` in a word stands for the folder."""
    return lambda folder: [str(word).replace("@", str(folder)) for word in words]


def gps(rows: Callable[[], list], *more: object, header: str = "vehicle,time,lon,lat") -> Callable[[Path], list]:
    """The etl stage on a file of fixes."""

    def words(folder: Path) -> list:
        raw = write_gps(folder / "fixes.csv", rows(), header)
        first = ["run", "--stage", "etl", "--dataset", "gps", "--raw", raw, "--out", folder / "out"]
        return [*first, *(() if "--time-format" in more else ("--time-format", "unix")), *more]

    return words


def etl(dataset: str, name: str, content: bytes | Callable[[Path], None], *more: object) -> Callable[[Path], list]:
    """The etl stage on a file with this content, or that this function writes."""

    def words(folder: Path) -> list:
        raw = folder / name
        raw.parent.mkdir(parents=True, exist_ok=True)
        raw.write_bytes(content) if isinstance(content, bytes) else content(raw)
        rest = [str(word).replace("@", str(folder)) for word in more]
        return ["run", "--stage", "etl", "--dataset", dataset, "--raw", raw, "--out", folder / "out", *rest]

    return words


def moved(lon: float = 0.0, lat: float = 0.0, seconds: float = 0, times: float = 1) -> Callable[[], list]:
    """The good fixes somewhere else, at another time or in another unit."""
    return lambda: [(v, int(times * t + seconds), x + lon, y + lat) for v, t, x, y in gps_rows()]


def packed(name: str, text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, text)

    return write


def escaping_tar(path: Path) -> None:
    (path.parent / "taxis.txt").write_text("1,2\n")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(path.parent / "taxis.txt", arcname="../../escaped.txt")
    (path.parent / "taxis.txt").unlink()


def linked(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def sensors(text: str, places: str = "sensor,lon,lat\na,10,50\nb,10.1,50.1\n", *more: object) -> Callable[[Path], list]:
    """The etl stage on a csv of readings with coordinates."""

    def words(folder: Path) -> list:
        (folder / "m.csv").write_text(text)
        (folder / "places.csv").write_text(places)
        first = ["run", "--stage", "etl", "--dataset", "sensors", "--raw", folder / "m.csv", "--out", folder / "out"]
        return [*first, "--coordinates", folder / "places.csv", *more]

    return words


def readings(steps: int = 200, start: int = START, step_s: int = 900) -> str:
    return "time,a,b\n" + "".join(f"{start + step_s * k},{k % 9},{k % 7}\n" for k in range(steps))


def events(text: str) -> Callable[[Path], list]:
    def words(folder: Path) -> list:
        (folder / "log.csv").write_text(text)
        return [*gps(gps_rows, "--box", BOX)(folder), "--events", folder / "log.csv"]

    return words


def damaged(how: Callable[[Path], object], *words: object) -> Callable[[Path], list]:
    """A command on a finished dataset of which something was damaged."""

    def made(folder: Path) -> list:
        write_small_city(folder / "out" / "data")
        how(folder / "out")
        return [str(word).replace("@", str(folder / "out")) for word in words]

    return made


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


ARGUMENTS = [
    Case("unknown command", command("tabels")),
    Case("unknown option", run("--datset", "porto")),
    Case("unknown dataset", run("--dataset", "prato")),
    Case("unknown preset", run("--preset", "huge")),
    Case("unknown stage", run("--stage", "train")),
    Case("a word for a number", run("--seeds", "many")),
    Case("0 seeds", run("--seeds", "0")),
    Case("-1 folds", run("--folds", "-1")),
    Case("0 episodes", run("--episodes", "0")),
    Case("-2 workers", run("--workers", "-2")),
    Case("a grid of 1", run("--grid", "1")),
    Case("a grid and a network", run("--grid", "3", "--network", "town.net.xml")),
    Case("demand factor 0", run("--demand-factor", "0")),
    Case("demand factor nan", run("--demand-factor", "nan")),
    Case("--stage and --from", run("--stage", "etl", "--from", "detect")),
    Case("--table and --stage", run("--table", "aci", "--stage", "etl")),
    Case("unknown forecaster", run("--methods", "foo", "bar")),
    Case("unknown variant", run("--methods", "pu_gat_plus:foo")),
    Case("unknown detector", run("--detectors", "foo")),
    Case("unknown controllers", run("--controllers", "foo", "bar")),
    Case("a network that is not there", run("--network", "/nowhere/town.net.xml")),
    Case("bin of 7 minutes", run("--dataset", "gps", "--raw", "/dev/null", "--bin-minutes", "7")),
    Case("square of -5 m", run("--dataset", "tdrive", "--square", "-5", "--stage", "etl")),
    Case("-3 cells", run("--dataset", "tdrive", "--cells", "-3", "--stage", "etl")),
    Case("a box of three numbers", run("--dataset", "tdrive", "--box", "1,2,3", "--stage", "etl")),
    Case("a box turned round", run("--dataset", "tdrive", "--box", "9,9,8,8", "--stage", "etl")),
    Case("--events for sensors", run("--dataset", "sensors", "--events", "/nowhere/log.csv")),
    Case("--events without the etl stage", run("--events", "/nowhere/log.csv", "--stage", "forecast")),
    Case("--columns for tdrive", run("--dataset", "tdrive", "--columns", "vehicle=id")),
    Case("--time-format for porto", run("--dataset", "porto", "--time-format", "unix")),
    Case("--missing-value for gps", run("--dataset", "gps", "--missing-value", "0")),
    Case("--square for taxi zones", run("--dataset", "manhattan", "--square", "500")),
    Case("--trips for porto", run("--dataset", "porto", "--trips", "foil")),
    Case("real data required, none there", run("--dataset", "tdrive", "--require-real", "--stage", "etl")),
    Case("gps without --raw", run("--dataset", "gps", "--stage", "etl")),
    Case("sensors without --raw", run("--dataset", "sensors", "--stage", "etl")),
    Case("a stage before the etl stage", run("--stage", "forecast")),
    Case("--out in a file", lambda folder: ["run", "--stage", "etl", "--out", write_gps(folder / "f", []) / "out"]),
    Case("drive for -5 minutes", command("drive", "--minutes", "-5")),
    Case("drive: unknown controller", command("drive", "--controller", "foo")),
    Case("drive: routes without a network", command("drive", "--routes", "/nowhere/a.rou.xml")),
    Case("drive: a network without routes", command("drive", "--network", "/nowhere/a.net.xml")),
    Case("drive: no such configuration", command("drive", "--network", "/nowhere/a.sumocfg")),
    Case("drive: no checkpoint there", command("drive", "--checkpoint", "@")),
    Case("verify: -1 episodes", command("verify", "--episodes", "-1")),
    Case("verify: no checkpoint there", command("verify", "--checkpoint", "@", "--episodes", "0")),
    Case("export: no run there", command("export", "@")),
    Case("export: unknown format", command("export", "@", "--to", "xlsx")),
    Case("publish: no run there", command("publish", "@", "--results", "@/results")),
    Case("compare: no rows there", command("compare", "@", "@")),
    Case("sweep: no run there", command("sweep", "@")),
    Case("sweep: 0 seeds", command("sweep", "@", "--seeds", "0")),
    Case("demand: 0 episodes", command("demand", "--out", "@", "--episodes", "0")),
    Case("demand: a negative rate", command("demand", "--out", "@", "--rates", "-5")),
    Case("demand: unknown controller", command("demand", "--out", "@", "--controllers", "foo")),
    Case("resco: unknown map", command("resco", "--maps", "cologne9")),
    Case("resco: 0 seeds", command("resco", "--seeds", "0")),
    Case("capacity: one rate", command("capacity", "--out", "@", "--rates", "500")),
    Case("capacity: 0 hours", command("capacity", "--out", "@", "--hours", "0")),
    Case("own routes without a network", run("--routes", "/nowhere/my.rou.xml")),
    Case("own routes with an etl stage", run("--routes", "/nowhere/my.sumocfg", "--stage", "etl")),
    Case("own routes that are not there", run("--routes", "/nowhere/my.sumocfg")),
    Case("download: unknown dataset", command("download", "prato")),
    Case("tables: unknown table", command("tables", "--table", "foo")),
    Case("figures: a folder that cannot be", command("figures", "--to", "/dev/null/figures")),
]
GPS = [
    Case("no such file", command("run", "--dataset", "gps", "--raw", "@/no.csv", "--stage", "etl", "--out", "@/out")),
    Case("an empty file", etl("gps", "a.csv", b"")),
    Case("a header alone", gps(list)),
    Case("wrong columns", gps(gps_rows, header="cab,when,lon,lat")),
    Case("a column option without a name", gps(gps_rows, "--columns", "vehicle=")),
    Case("an unknown delimiter", etl("gps", "a.csv", b"vehicle:time:lon:lat\n" + b"a:1:2:3\n" * 9)),
    Case("rows that are no table", etl("tdrive", "diary.txt", b"dear diary\n" * 9)),
    Case("metres instead of degrees", gps(moved(lon=450_000, lat=4_400_000))),
    Case("swapped degrees, far beyond the pole", etl("tdrive", "a.txt", tdrive_text(lon=39.9, lat=116.4).encode())),
    Case("swapped degrees, a box", gps(lambda: [(v, t, y, x) for v, t, x, y in gps_rows()], "--box", BOX)),
    Case("swapped degrees, a zone", gps(moved(lon=30.4, lat=-53.7), "--timezone", "Europe/Madrid")),
    Case("a zone hours away", gps(moved(lon=129.7, lat=-14.3), "--timezone", "Europe/Madrid")),
    Case("no such zone", gps(gps_rows, "--timezone", "Mars/Olympus")),
    Case("another city's box", etl("tdrive", "a.txt", tdrive_text(lon=12.5, lat=41.9).encode())),
    Case("milliseconds taken for seconds", gps(moved(times=1000), "--box", BOX)),
    Case("seconds taken for milliseconds", gps(gps_rows, "--box", BOX, "--time-format", "unix_ms")),
    Case("nanoseconds", gps(moved(times=10**9), "--box", BOX)),
    Case("years to come", gps(moved(seconds=2_000_000_000), "--box", BOX)),
    Case("a time pattern that is none", gps(gps_rows, "--box", BOX, "--time-format", "bogus {")),
    Case("unix seconds read as iso", gps(gps_rows, "--box", BOX, "--time-format", "iso")),
    Case("forty years between two fixes", gps(lambda: gps_rows() + moved(seconds=-1_300_000_000)(), "--box", BOX)),
    Case("a day alone", gps(lambda: gps_rows(90), "--box", BOX)),
    Case("a part without observations", gps(lambda: gps_rows(300) + moved(seconds=900 * 700)(), "--box", BOX)),
    Case("squares larger than the city", gps(gps_rows, "--box", BOX, "--square", "9000")),
    Case("a truncated gz", etl("tdrive", "a.txt.gz", gzip.compress(tdrive_text(rows=3000).encode())[:4000])),
    Case("a fake bz2", etl("tdrive", "a.txt.bz2", tdrive_text().encode())),
    Case("a truncated bz2", etl("tdrive", "a.txt.bz2", bz2.compress(tdrive_text(rows=3000).encode())[:2000])),
    Case("a parquet that is none", etl("gps", "a.parquet", b"PAR1 not really")),
    Case("a truncated zip", etl("tdrive", "a.zip", b"PK\x03\x04" + bytes(100))),
    Case("a tar that leads out", etl("tdrive", "a.tar.gz", escaping_tar)),
    Case("a zip that leads out", etl("tdrive", "a.zip", packed("../../escaped.txt", "1,2\n"))),
    Case("an endless line in a file", etl("gps", "a.csv", b"vehicle,time,lon,lat\n" + b"x" * 2 * LINE)),
    Case("an endless line in a gz", etl("gps", "a.csv.gz", gzip.compress(b"vehicle,time,lon,lat\n" + b"x" * LINE))),
    Case("an endless line in a zip", etl("tdrive", "a.zip", packed("a.txt", "x" * 2 * LINE))),
    Case("a link that leads out", lambda folder: etl("tdrive", "raw/a.txt", linked)(folder)[:-4] + tail(folder)),
    Case("events: no such file", gps(gps_rows, "--box", BOX, "--events", "/nowhere/log.csv")),
    Case("events: wrong columns", events("a,b\n1,2\n")),
    Case("events: no times", events("start,end,lon,lat,kind\nsoon,later,10,50,jam\n")),
    Case("events: in other years", events("start,end,lon,lat,kind\n2001-01-01,2001-01-02,10.005,50.005,jam\n")),
    Case("events: elsewhere", events("start,end,lon,lat,kind\n2014-05-14T13:00,2014-05-14T14:00,99,9,jam\n")),
]
SENSORS = [
    Case("no readings", sensors("time,a,b\n2014-07-01 10:00:00,x,\n")),
    Case("no times", sensors("time,a,b\nnever,1,2\n")),
    Case("no delimiter", sensors("time:a:b\n1:2:3\n")),
    Case("two sensors of one name", sensors("time,a,a\n1,2,3\n")),
    Case("times alone", sensors("time;\n1;\n", "sensor,lon,lat\na,1,1\n", "--time-column", "time")),
    Case("no such time column", sensors(readings(), "sensor,lon,lat\na,1,1\n", "--time-column", "when")),
    Case("no coordinates of one", sensors(readings(), "sensor,lon,lat\na,10,50\n")),
    Case("coordinates without degrees", sensors(readings(), "sensor,lon,lat\na,10,50\nb,east,50\n")),
    Case("coordinates of other columns", sensors(readings(), "sensor,x,y\na,10,50\nb,10,50\n")),
    Case("a zone hours away", sensors(readings(), "sensor,lon,lat\na,10,50\nb,10,51\n", "--timezone", "Asia/Tokyo")),
    Case("milliseconds", sensors(readings(200, 1000 * START, 900_000))),
    Case("years to come", sensors(readings(200, START + 2_000_000_000))),
    Case("too short", sensors(readings(20))),
    Case("a gap of one part", sensors(readings(200) + readings(200, START + 900 * 700).partition("\n")[2])),
    Case(
        "an npz without arrays",
        etl("sensors", "m.npz", lambda path: np.savez(path, a=np.eye(2)), "--adjacency", "@/m.npz"),
    ),
    Case("no neighbours and no coordinates", etl("sensors", "m.csv", readings().encode())),
    Case("an adjacency that is no matrix", etl("sensors", "m.csv", readings().encode(), "--adjacency", "@/m.csv")),
]


def flipped(out: Path) -> None:
    flip(out / "data" / SHARD)


def tail(folder: Path) -> list:
    return ["--raw", folder / "raw", "--out", folder / "out"]


def listed(out: Path) -> None:
    (out / "data" / "manifest.json").write_text("[]")


def truncated_forecast(out: Path) -> None:
    (out / "forecast").mkdir()
    (out / "forecast" / "pu_gat_plus-fold0-0123456789.npz").write_bytes(b"PK\x03\x04" + bytes(60))


def other_forecast(out: Path) -> None:
    (out / "forecast").mkdir()
    names = ("forecast_mean", "forecast_sigma", "interval_lower", "interval_upper")
    arrays = {name: np.zeros((1, 3, 4, 2)) for name in names} | {
        "mask": np.zeros((3, 4, 2)),
        "target": np.zeros((3, 4, 2)),
    }
    np.savez(out / "forecast" / "pu_gat_plus-fold0-0123456789.npz", **arrays)


def bad_rows(out: Path) -> None:
    (out / "results" / "small").mkdir(parents=True)
    (out / "results" / "small" / "forecast.jsonl").write_text('{"method": "persist')


DAMAGE = [
    *(
        Case(f"flipped bytes in a shard, stage {stage}", damaged(flipped, "run", "--stage", stage, "--out", "@"))
        for stage in ("forecast", "detect", "control", "report")
    ),
    Case("flipped bytes in a shard, export", damaged(flipped, "export", "@")),
    Case("a truncated graph", damaged(lambda out: cut(out / "data" / "graph.npz"), "export", "@")),
    Case("a truncated manifest", damaged(lambda out: cut(out / "data" / "manifest.json"), "export", "@")),
    Case(
        "a manifest that is a list",
        damaged(lambda out: (out / "data" / "manifest.json").write_text("[]"), "export", "@"),
    ),
    Case(
        "a shard that is gone",
        damaged(lambda out: (out / "data" / SHARD).unlink(), "run", "--stage", "report", "--out", "@"),
    ),
    Case("a truncated forecast", damaged(truncated_forecast, "export", "@")),
    Case("a forecast of other data", damaged(other_forecast, "export", "@")),
    Case("rows that are no rows", damaged(bad_rows, "compare", "@", "@")),
    Case("no forecasts to detect on", damaged(lambda out: None, "run", "--stage", "detect", "--out", "@")),
    Case("nothing to export of a stage", damaged(lambda out: None, "export", "@", "--stage", "detect")),
]


@pytest.fixture(scope="module")
def outcomes(spark: SparkSession, tmp_path_factory) -> Iterator[list[tuple[str, int, str]]]:
    """Every case through the command line, in one process: its name, exit code and last words."""
    patch, found = pytest.MonkeyPatch(), []
    patch.delenv("STREAM_DATA_DIR", raising=False)
    patch.setenv("COLUMNS", "200")
    patch.setattr(stages, "spark_session", lambda master, memory: spark)
    patch.setattr(bounds, "MAX_LINE", 1_000_000)
    for kind, cases in (("", ARGUMENTS), ("gps: ", GPS), ("sensors: ", SENSORS), ("damage: ", DAMAGE)):
        for case in cases:
            folder = tmp_path_factory.mktemp("case")
            found.append((kind + case.name, *outcome([str(word) for word in case.words(folder)])))
    patch.undo()
    yield found


def outcome(words: list[str]) -> tuple[int, str]:
    """Exit code, and what was printed; a traceback as Python would print it."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        rich.reconfigure(width=200)
        try:
            code = main.main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            code = 1
            traceback.print_exc()
    return code, said.getvalue()


def last_words(said: str) -> str:
    """The sentence that the user reads: after `error:`, or inside the frame of an argument error."""
    if "error: " in said:
        return " ".join(said.rsplit("error: ", 1)[1].split())
    plain = " ".join(re.sub(r"[-─│╭╮╰╯]{2,}|[│]", " ", said.partition("For full helptext")[0]).split())
    return plain[: LONGEST - 1]


@pytest.mark.slow
def test_no_bad_input_ends_in_a_traceback_or_well(outcomes, capsys):
    with capsys.disabled():
        print(f"\n{len(outcomes)} bad inputs")
        for name, code, said in outcomes:
            print(f"  {name} -> {code}: {last_words(said)[:160]}")
    wrong = {name: said[-2000:] for name, code, said in outcomes if code != 2 or "Traceback" in said}
    assert not wrong, json.dumps(wrong, indent=1)
    assert len(outcomes) >= 50


@pytest.mark.slow
def test_every_bad_input_is_answered_by_one_sentence_without_the_machinery(outcomes):
    marks = ("at org.apache", "at java.", "Py4J", "o.a.s", "(--debug")
    bare = [name for name, _, said in outcomes if not 10 < len(last_words(said)) < LONGEST]
    assert bare == []
    assert [(name, said[-500:]) for name, _, said in outcomes if any(mark in said for mark in marks)] == []


@pytest.mark.slow
def test_no_content_of_a_file_that_was_not_asked_for_is_shown(outcomes):
    assert not any("root:" in said for _, _, said in outcomes)
    assert pd.Series([name for name, _, _ in outcomes]).is_unique
