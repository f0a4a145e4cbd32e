"""The command: stages in order, one run a folder, plans that write nothing, one sentence for whatever goes wrong."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from data.errors import DataError
from experiments import run
from experiments.cli import display, job, lock, options, plan, running
from experiments.evaluation import results
from experiments.methods import catalogue
from experiments.methods.control import controllers
from experiments.stages import agents, detectors, forecasting
from sim.errors import RoadError

ROOT = Path(__file__).parents[2]
HOLD = """
import sys, time
from pathlib import Path
from rich.console import Console
from experiments.cli import lock
with lock.only_run(Path(sys.argv[1]), Console(quiet=True)):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command with stages that only write down that they ran, or raise what they are told to."""
    monkeypatch.setenv("COLUMNS", "200")
    ran, raises, real = [], {}, running.load

    def fake(name: str):
        def stage(args, out, console):
            ran.append(name)
            if name in raises:
                raise raises[name]

        return stage

    names = {place: name for name, place in running.WORK.items()}
    monkeypatch.setattr(running, "load", lambda place: fake(names[place]) if place in names else real(place))

    def call(*argv: str, **failing: BaseException) -> tuple[int, str, list[str]]:
        ran.clear()
        raises.clear()
        raises.update(failing)
        code = run.main(["--out", str(tmp_path / "out"), "--preset", "smoke", *argv])
        return code, capsys.readouterr().out, list(ran)

    return call


def test_all_stages_run_in_order_whatever_order_they_are_named_in(command):
    assert command()[2] == ["etl", "forecast", "detect", "control", "report"]
    assert command("--stage", "detect", "etl")[2] == ["etl", "detect"]
    assert command("--from", "detect")[2] == ["detect", "control", "report"]


@pytest.mark.parametrize("dataset", ["manhattan", "sensors"])
def test_cells_cannot_be_chosen_where_they_are_given(dataset):
    args = options.parse(["--dataset", dataset, "--cells", "64"])
    with pytest.raises(DataError, match="has cells of its own, so leave it out"):
        job.job_config(args)


def test_every_stage_names_a_function_that_exists():
    for place in running.WORK.values():
        assert callable(running.load(place)), place


def test_a_table_runs_what_it_needs_and_then_itself(command):
    assert command("--table", "aci")[2] == ["etl", "forecast", "table"]
    assert command("--table", "trimming")[2] == ["etl", "forecast", "detect", "table"]
    assert set(options.TABLE_STAGES) == set(options.paper.TABLES)


def test_every_forecaster_detector_and_controller_that_a_table_asks_for_exists():
    known = {
        "FORECASTERS": forecasting.METHODS,
        "DETECTORS": detectors.NAMES,
        "CONTROLLERS": controllers.NAMES,
        "LEARNERS": agents.VARIANTS,
    }
    for kind, names in known.items():
        for one in catalogue.records(getattr(catalogue, kind)).values():
            assert one.tables.keys() <= options.paper.TABLES.keys()
            assert {name for asked in one.tables.values() for name in asked} <= set(names)


def test_each_stage_is_announced_and_timed_in_plain_lines(command, tmp_path):
    code, said, _ = command("--stage", "etl", "forecast")
    assert code == 0 and "etl, stage 1 of 2" in said and "forecast took" in said and "\x1b" not in said
    record = json.loads((tmp_path / "out" / plan.RECORD).read_text())
    assert set(record["seconds"]) == {"etl", "forecast"} and "--stage" in record["commands"]["forecast"][-1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DataError("taxis.txt is empty; download it again."), "taxis.txt is empty; download it again."),
        (RoadError("no SUMO; install it."), "no SUMO; install it."),
        (ValueError("two\nlines"), "two lines (--debug shows where)"),
        (ValueError("checkpoint: No space left on device"), "is full; free some space and run the same command"),
        (OSError("connection reset"), "connection reset (--debug shows where)"),
        (
            OSError(errno.ENOSPC, "No space left on device", "x.npz"),
            "is full; free some space and run the same command",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "x.npz"),
            "Permission denied: x.npz; choose another --out.",
        ),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_exit_code_two(command, error, words):
    code, said, ran = command(forecast=error)
    assert code == run.FAILED and ran == ["etl", "forecast"]
    last = said.splitlines()[-1]
    assert ("--debug" in last) == ("--debug" in words)
    assert last.startswith("error: ") and words in last and said.count("error: ") == 1 and "Traceback" not in said


def test_debug_shows_the_whole_trace(command):
    with pytest.raises(DataError):
        command("--debug", etl=DataError("no"))


def test_an_interrupted_run_says_how_to_go_on_and_exits_with_130(command, tmp_path):
    code, said, _ = command(detect=KeyboardInterrupt())
    assert code == 130 and said.splitlines()[-1] == "Stopped; run the same command to go on from what is finished."
    assert not (tmp_path / "out" / lock.LOCK).exists()
    assert command()[0] == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found under /proc")
def test_a_stopped_run_leaves_no_process_behind():
    code = "import subprocess as s; from experiments.cli.main import *; p = s.Popen(['sleep', '60']); end_children(); "
    argv = [sys.executable, "-c", f"{code}print(p.wait(20))"]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert int(said) == -signal.SIGTERM


@pytest.mark.parametrize("name", ["seeds", "folds", "episodes", "workers"])
def test_a_count_below_one_is_refused(command, name):
    code, said, ran = command(f"--{name}", "0")
    assert code == run.FAILED and not ran and f"--{name} 0 is not a positive number" in said


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--grid", "3", "--network", "my.net.xml"], "--grid generates a network and --network reads yours; give one"),
        (["--grid", "11"], "--grid 11 is not between 2 and 10 intersections a side"),
        (["--demand-factor", "0"], "--demand-factor 0 is not a positive number"),
        (["--demand-factor", "nan"], "--demand-factor nan is not a positive number"),
        (["--table", "rl", "--grid", "3"], "--table is about the preset's own grid"),
        (["--network", "nowhere.net.xml"], "nowhere.net.xml does not exist; give a SUMO network"),
        (["--network", "torn.sumocfg"], "torn.sumocfg is no readable SUMO configuration"),
        (["--network", "torn.net.xml"], "torn.net.xml is no readable SUMO network"),
    ],
)
def test_a_network_that_cannot_be_meant_is_refused_before_any_stage(command, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    for torn in ("torn.sumocfg", "torn.net.xml"):
        Path(torn).write_text("<net><edge")
    code, said, ran = command(*argv)
    assert code == run.FAILED and not ran and words in said and said.count("error: ") == 1


def test_a_plan_names_the_network_and_what_its_own_folder_holds(command, tmp_path):
    for folder in ("control", "control-grid-3x3"):
        (tmp_path / "out" / folder).mkdir(parents=True)
    (tmp_path / "out" / "control" / "x.json").touch()
    plan.record(tmp_path / "out", "control", 90.0, [])
    own, other = (command("--dry-run", "--stage", "control", "--grid", side)[1] for side in ("2", "3"))
    assert "1 finished files" in own and "1 min 30 s" in own and "control-grid" not in own
    assert "control-grid-3x3" in other and "nothing" in other and "not timed yet" in other


def test_contradicting_choices_of_stages_are_refused(command):
    assert command("--stage", "etl", "--from", "etl")[0] == run.FAILED
    assert command("--table", "aci", "--from", "etl")[0] == run.FAILED


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(command, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with lock.only_run(out, Console(quiet=True)):
        code, said, ran = command()
        assert code == run.FAILED and not ran
        assert f"Another run (process {os.getpid()}) is at work in" in said and "choose another --out" in said
        assert (out / lock.LOCK).exists()
    assert command()[0] == 0


def test_the_lock_of_a_killed_run_is_recovered(command, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert holder.stdout.readline() == "held\n"
    assert command()[0] == run.FAILED
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (out / lock.LOCK).exists()
    code, said, _ = command()
    assert code == 0 and "stopped by force" in said and not (out / lock.LOCK).exists()


def test_a_plan_writes_nothing_and_knows_recorded_seconds(command, tmp_path):
    code, said, ran = command("--dry-run", "--stage", "etl", "forecast")
    assert code == 0 and not ran and not (tmp_path / "out").exists()
    assert "would run" in said and "not timed yet" in said and "MB are free" in said
    row = {"dataset": "synthetic", "preset": "smoke", "metric": "fit_seconds", "stage": "forecast", "method": "m"}
    rows = [row | {"value": 100.0, "fold": "0"}, row | {"value": 25.0, "fold": "1"}]
    results.write_rows(tmp_path / "out" / "results" / "synthetic" / "forecast.jsonl", rows)
    assert "2 min 05 s" in command("--dry-run")[1]
    plan.record(tmp_path / "out", "forecast", 3725.0, [])
    assert "1 h 02 min" in command("--dry-run")[1]


def test_a_quick_second_run_does_not_hide_how_long_the_work_took(tmp_path):
    for seconds in (90.0, 2.0):
        plan.record(tmp_path, "etl", seconds, ["--stage", "etl"])
    assert json.loads((tmp_path / plan.RECORD).read_text())["seconds"] == {"etl": 90.0}


def test_the_display_on_a_terminal_shows_stage_and_last_metrics(tmp_path):
    row = {"dataset": "d", "preset": "smoke", "data_hash": "h", "stage": "forecast", "method": "m", "fold": "all"}
    other = row | {"metric": "nrmse", "seed": 0, "value": 9.0, "network": "town"}  # is not mixed with what came last
    rows = [row | {"metric": "nrmse", "seed": k, "value": v} for k, v in enumerate((0.25, 0.75))]
    results.write_rows(tmp_path / "results" / "d" / "forecast.jsonl", [other, *rows])
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with display.stage_display("forecast", "1 of 1", tmp_path, console):
        pass
    said = console.file.getvalue()
    assert "1 of 1 · 0 s · m nrmse 0.500" in said and "took 0 s; m nrmse 0.500" in said


@pytest.mark.parametrize(("seconds", "words"), [(9.7, "9 s"), (125, "2 min 05 s"), (3725, "1 h 02 min")])
def test_durations_are_readable(seconds, words):
    assert display.duration(seconds) == words
