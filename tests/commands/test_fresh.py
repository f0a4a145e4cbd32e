"""The stopwatch on the README's commands: what it runs is what the README prints."""

from pathlib import Path

import pytest

from experiments.bench import fresh
from experiments.tables import speed_tables

ROOT = Path(__file__).parents[2]


def test_the_commands_are_those_of_the_readme_and_of_ci():
    found = fresh.commands()
    lines = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert " && ".join(found["test"]) in lines
    assert found["run"][-1].endswith("stream-jax run --preset smoke") and found["default"][-1].endswith(
        "stream-jax run"
    )


def test_installing_and_working_are_timed_apart_and_the_last_line_is_kept(tmp_path):
    clone = tmp_path / "clone"
    clone.mkdir()
    row = fresh.measure("test", ["sleep 0.3", "true", "echo 1; echo 2 passed"], clone)
    assert row["said"] == "2 passed"
    assert row["install_s"] > 0.3 > row["work_s"]
    table = "\n".join(speed_tables.fresh_table([row | {"machine": "a machine"}]))
    assert "| test | 0.0 | 0.0 | 2 passed |" in table


def test_a_command_that_fails_ends_the_measurement_with_its_own_words(tmp_path):
    with pytest.raises(SystemExit, match=r"ended with 3(?s:.)*no room"):
        fresh.measure("run", ["true", "echo no room; exit 3"], tmp_path)
