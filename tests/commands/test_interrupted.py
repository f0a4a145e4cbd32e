"""The comparison behind `experiments/interrupted.py` sees a row that changed, is missing or doubled, and no clock."""

import sys

import pytest

from data.errors import DataError
from experiments import interrupted
from experiments.evaluation import results

ROW = {"dataset": "synthetic", "stage": "forecast", "method": "a", "metric": "nrmse", "value": 0.5}


def written(folder, rows):
    results.write_rows(folder / "results" / "synthetic" / "forecast.jsonl", rows)
    return interrupted.comparable(folder)


@pytest.mark.parametrize(
    ("rows", "unlike"),
    [
        ([ROW], 0),
        ([ROW, ROW | {"metric": "fit_seconds", "value": 3.0}], 0),
        ([ROW, ROW | {"metric": "seconds_per_epoch", "value": 3.0}], 0),
        ([ROW | {"value": 0.5 + 1e-12}], 2),
        ([ROW, ROW], 1),
        ([], 1),
    ],
)
def test_rows_are_compared_to_the_last_digit_and_seconds_are_not(tmp_path, rows, unlike):
    alone = written(tmp_path / "alone", [ROW, ROW | {"metric": "fit_seconds", "value": 2.0}])
    assert interrupted.differing(alone, written(tmp_path / "again", rows)) == unlike


def test_a_start_is_killed_with_all_its_children_and_begun_again_until_it_ends(tmp_path, monkeypatch, console):
    # A stand-in for run.py: each start leaves a line and a sleeping child, and only the third comes to an end.
    count = tmp_path / "count"
    program = (
        "import pathlib, subprocess, sys, time; f = pathlib.Path(sys.argv[1]); "
        "n = len(f.read_text().split()) if f.exists() else 0; "
        "child = subprocess.Popen(['sleep', '987']) if n < 2 else None; "
        "f.open('a').write(f'{child.pid if child else 0} '); time.sleep(60 if n < 2 else 0)"
    )
    monkeypatch.setattr(interrupted, "command", lambda args, out: [sys.executable, "-c", program, str(count)])
    moments = interrupted.kill_often(interrupted.InterruptedOptions(), tmp_path, 5, 20.0, console)
    started = count.read_text().split()
    assert len(moments) == 2 and len(started) == 3 and all(3.0 <= moment <= 6.0 for moment in moments)
    assert not any(_is_alive(pid) for pid in started[:2])


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "something").touch()
    with pytest.raises(DataError, match="an empty folder --out"):
        interrupted.main(["--out", str(tmp_path)])


def test_finished_runs_are_compared_and_the_kills_counted(tmp_path, capsys):
    for name in ("alone", "again", "killed_1"):
        written(tmp_path / "runs" / name, [ROW if name != "again" else ROW | {"value": 0.6}])
    (tmp_path / "runs" / interrupted.KILLS).write_text('{"killed_1": [4.0, 5.0]}')
    command = ["--compare", "--out", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert interrupted.main(command) == 1  # `again` differs
    rows = results.read_rows(tmp_path / "interrupted.jsonl")
    found = {row["run"]: row["value"] for row in rows if row["metric"] == "rows_that_differ"}
    assert found == {"alone": 0, "again": 2, "killed_1": 0}
    assert [row["value"] for row in rows if row["metric"] == "killed_after_s"] == [4.0, 5.0]


def _is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
