"""The command that looks for safe capacity: rows, a figure and a table, nothing driven twice, bad input a sentence."""

import pytest

from experiments import publish
from experiments.cli import main
from experiments.evaluation import results
from tests.small_city import write_small_city


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data", num_steps=1200, side=4)
    return out


def command(run, *words):
    return main.main(["capacity", "--out", str(run), "--preset", "smoke", "--workers", "0", *words])


@pytest.mark.slow
def test_two_controllers_get_a_capacity_and_what_was_driven_is_read(run, tmp_path, capsys):
    words = ("--hours", "2", "--rates", "100", "2400", "--controllers", "default_plan", "splits")
    assert command(run, *words) == 0
    said = capsys.readouterr().out
    assert "queue 10" in said and "small (synthetic data)" in said and "for the rest" in said
    (file,) = (run / "results").glob("*/capacity.jsonl")
    rows = results.read_rows(file)
    found = {(row["method"], row["metric"]): row for row in rows}
    for name, other in (("default_plan", "splits"), ("splits", "default_plan")):
        one = found[name, "safe_capacity"]
        assert one["hours"] == 2 and float(one["lower"]) <= float(one["upper"])
        assert (name, f"safe_capacity_minus_{other}_percent") in found
    assert {row["stage"] for row in rows} == {"capacity"} and rows[0]["intersections"] == 4
    assert (run / "control" / "capacity.png").stat().st_size > 0
    saved = sorted((run / "control").glob("episodes/*/*/*.npz"))
    times = [path.stat().st_mtime_ns for path in saved]
    assert len(saved) == 2 * sum(row["metric"] == "safety" for row in rows)
    assert command(run, *words) == 0
    assert [path.stat().st_mtime_ns for path in saved] == times and results.read_rows(file) == rows
    publish.publish(run, tmp_path / "results", stages=["capacity"])
    published = results.read_rows(tmp_path / "results" / file.parent.name / "capacity.jsonl")
    assert [(row["method"], row["metric"]) for row in published] == [(row["method"], row["metric"]) for row in rows]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--controllers", "nobody"], "No controller without learning is called nobody"),
        (["--rates", "3000", "2000"], "--rates needs a low and a high number"),
        (["--hours", "0"], "--hours must be at least 1"),
    ],
)
def test_bad_input_is_one_sentence(run, words, said, capsys):
    assert command(run, *words) == 2
    assert said in " ".join(capsys.readouterr().out.split())
