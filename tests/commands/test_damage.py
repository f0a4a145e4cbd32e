"""A damaged artefact is named by the stage that reads it, with the stage that makes it; names are never markup."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data.errors import DataError
from data.spark_etl import shards
from experiments import run
from experiments.cli import main
from sim.keeping import kept_recording
from tests.commands.test_run_etl import tdrive_text
from tests.small_city import write_small_city

SHARD = "shard-0000000.npz"


def flip(path: Path) -> None:
    """Inverts eight bytes in the middle, where the numbers are."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(255 - byte for byte in content[middle : middle + 8])
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("stage", ["forecast", "detect", "control", "report"])
def test_every_stage_verifies_the_shards_that_it_reads(tmp_path, capsys, stage):
    write_small_city(tmp_path / "data")
    flip(tmp_path / "data" / SHARD)
    assert run.main(["--preset", "smoke", "--stage", stage, "--out", str(tmp_path)]) == run.FAILED
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("error: ") and "Traceback" not in said
    assert f"{SHARD} was altered since it was written" in said and "run the etl stage again" in said


def test_export_and_checkpoints_verify_theirs(tmp_path):
    write_small_city(tmp_path / "data")
    flip(tmp_path / "data" / SHARD)
    with pytest.raises(DataError, match=f"{SHARD} was altered"):
        main.load("experiments.export:main")([str(tmp_path)])
    write_small_city(tmp_path / "checkpoint" / "data")
    flip(tmp_path / "checkpoint" / "data" / SHARD)
    with pytest.raises(DataError, match=f"{SHARD} was altered .* copy the checkpoint again"):
        kept_recording(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("place", "stage"),
    [
        ("forecast/stid-fold0-aa.npz", "forecast"),
        ("detect/fold0-seed0-clean-aa.npz", "detect"),
        ("control/episodes/1050/lookahead/000-aa.npz", "control"),
        ("control-town-x0.5/heavy/ppo-aa/seed0/000-aa.npz", "control"),
        ("data/graph.npz", "etl"),
        ("forecast/run/data/shard-0000000.npz", "etl"),
    ],
)
@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_damaged_artefact_names_the_stage_that_makes_it(tmp_path, place, stage, how):
    path = tmp_path / place
    shards.write_arrays(path, values=np.arange(1000.0))
    flip(path) if how == "flipped" else path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=f"is damaged; .*run the {stage} stage again"):
        shards.read_arrays(path)


def test_what_is_printed_is_not_read_as_markup(tmp_path, capsys):
    out = tmp_path / "a [bold red] :x: :smiley: run"
    write_small_city(out / "data")
    assert run.main(["--stage", "report", "--out", str(out)]) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "a [bold red] :x: :smiley: run/report.html" in said
    assert main.start("export", [str(out)]) == 0
    assert "a [bold red] :x: :smiley: run/export/cells.parquet" in capsys.readouterr().out
    assert run.main(["--dataset", "gps", "--raw", str(out / ":x: [b].csv"), "--out", str(out)]) == run.FAILED
    assert ":x: [b].csv does not exist" in capsys.readouterr().out


@pytest.mark.slow
def test_the_death_of_java_is_one_sentence(tmp_path):
    # A hundred taxis, so that the first pass over the file takes seconds.
    rows = "".join(tdrive_text(rows=4000).replace("1,2008", f"{taxi},2008") for taxi in range(100))
    (tmp_path / "a.txt").write_text(rows)
    words = ["--dataset", "tdrive", "--raw", str(tmp_path / "a.txt"), "--stage", "etl", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-u", "-m", "experiments.run", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout:
            if "reading and cleaning" in line:
                break
        time.sleep(1)
        for listing in Path(f"/proc/{running.pid}/task").glob("*/children"):
            for child in listing.read_text().split():
                os.kill(int(child), signal.SIGKILL)
        said = running.stdout.read()
    assert running.returncode == run.FAILED
    assert said.startswith("error: Java died while Spark read a.txt") and said.count("\n") == 1, said
