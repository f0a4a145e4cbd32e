"""RESCO's maps: a run goes on where it was, one controller is replaced alone, and bad input is one sentence."""

import importlib.util
import json

import pytest

from experiments import resco
from experiments.cli import main
from experiments.evaluation import resco_episodes, results
from experiments.evaluation.resco_episodes import CONTROLLERS, MAPS, Job
from experiments.evaluation.trips import METRICS
from experiments.tables import resco_tables

KNOWN = {"delay": 20.0, "longest_wait": 90.0} | dict.fromkeys(set(METRICS) - {"delay", "longest_wait"}, 1.0)


def command(folder, *words):
    places = ["--out", str(folder / "out"), "--results", str(folder / "rows"), "--workers", "1"]
    return main.main(["resco", *words, *places])


def rows(folder, name="ingolstadt1"):
    return results.read_rows(folder / "rows" / f"{name}.jsonl")


@pytest.fixture
def driven(monkeypatch):
    """Episodes that are finished at once; what was asked for is listed."""
    asked = []

    def finish(jobs, workers, console):
        asked.extend(jobs)
        for job in jobs:
            yield job, KNOWN

    monkeypatch.setattr(resco, "driven", finish)
    return asked


@pytest.mark.slow
def test_a_map_is_driven_and_its_rows_say_what_they_are_of(tmp_path, capsys):
    assert command(tmp_path, "--maps", "ingolstadt1", "--controllers", "fixed", "--seeds", "1") == 0
    found = {row["metric"]: row for row in rows(tmp_path)}
    assert list(found) == list(METRICS) and {row["seed"] for row in found.values()} == {0}
    delay = found["delay"]
    assert (delay["map"], delay["method"], delay["yellow_s"], delay["teleport_s"]) == ("ingolstadt1", "fixed", 3, -1)
    # 1716 trips are due within the hour; in a free road delay would be a few seconds, and half an hour in a jam.
    assert found["trips"]["value"] == 1716 and 10 < delay["value"] < 100
    assert found["longest_wait"]["value"] >= found["p90_wait"]["value"] >= found["wait"]["value"] > 0
    assert (tmp_path / "out" / "resco.png").stat().st_size > 0
    said = capsys.readouterr().out
    assert "1 of 1" in said and "published learner" in said


@pytest.mark.slow
def test_an_episode_repeats_itself_exactly(tmp_path):
    words = ("--maps", "ingolstadt1", "--controllers", "fixed", "greedy", "--seeds", "1")
    assert command(tmp_path / "both", *words) == command(tmp_path / "alone", *words[:3], "greedy", "--seeds", "1") == 0
    both, alone = rows(tmp_path / "both"), rows(tmp_path / "alone")
    assert [row for row in both if row["method"] == "greedy"] == alone


def test_finished_episodes_are_not_driven_again_and_more_seeds_are_added(tmp_path, driven):
    words = ("--maps", "ingolstadt1", "--controllers", "fixed", "greedy", "--seeds")
    assert command(tmp_path, *words, "1") == command(tmp_path, *words, "2") == 0
    assert driven == [Job("ingolstadt1", who, seed) for seed in (0, 1) for who in ("fixed", "greedy")]
    assert command(tmp_path, *words, "1") == 0 and len(driven) == 4
    assert {(row["method"], row["seed"]) for row in rows(tmp_path)} == {
        (who, seed) for who in ("fixed", "greedy") for seed in (0, 1)
    }
    said = json.loads((tmp_path / "rows" / resco.COMMANDS).read_text())["resco"]
    assert [line.split("--seeds ")[1][0] for line in said] == ["2", "1"]


def test_a_controller_with_other_settings_replaces_its_own_rows_alone(tmp_path, driven, monkeypatch):
    words = ("--maps", "ingolstadt1", "--seeds", "2", "--controllers")
    assert command(tmp_path, *words, "fixed", "lookahead") == 0
    before = rows(tmp_path)
    monkeypatch.setitem(CONTROLLERS, "lookahead", CONTROLLERS["lookahead"]._replace(settings=lambda protocol: "tuned"))
    assert command(tmp_path, *words, "lookahead") == 0
    assert len(driven) == 6
    of = lambda who, some: [row for row in some if row["method"] == who]  # noqa: E731
    assert of("fixed", rows(tmp_path)) == of("fixed", before)
    keys = [{row["settings"] for row in of("lookahead", some)} for some in (before, rows(tmp_path))]
    assert len(keys[0]) == len(keys[1]) == 1 and keys[0] != keys[1]


def test_the_key_of_an_episode_depends_on_map_controller_and_its_code(tmp_path, monkeypatch):
    first = resco_episodes.settings_key("ingolstadt1", "greedy")
    others = {resco_episodes.settings_key("cologne1", "greedy"), resco_episodes.settings_key("ingolstadt1", "fixed")}
    assert first not in others and len(others) == 2
    (tmp_path / "rule.py").write_text("changed")
    other = CONTROLLERS["greedy"]._replace(sources=(str(tmp_path / "rule.py"),))
    monkeypatch.setitem(CONTROLLERS, "greedy", other)
    assert resco_episodes.settings_key("ingolstadt1", "greedy") != first


def test_every_map_is_in_the_wheel_and_has_a_begin_and_an_end():
    for name in MAPS:
        said = resco_episodes.read_sumocfg(resco_episodes.config_file(name))
        assert said.end_s - said.begin_s == 3600 and len(said.routes) == 1
        assert name in resco_tables.PUBLISHED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--maps", "ingolstadt8"], "There is no map 'ingolstadt8'; did you mean ingolstadt7?"),
        (["--maps", "paris"], "There is no map 'paris'; choose among cologne1,"),
        (["--controllers", "gredy"], "There is no controller 'gredy'; did you mean greedy?"),
        (["--seeds", "0"], "--seeds 0 is not a positive number"),
        (["--workers", "-1"], "--workers -1 is not a positive number"),
    ],
)
def test_bad_input_is_one_sentence(words, said, capsys):
    assert main.main(["resco", *words]) == main.FAILED
    out = capsys.readouterr().out
    assert said in out and out.count("error:") == 1


def test_without_the_wheel_the_extra_is_named(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sumo_rl" else find(name))
    assert main.main(["resco", "--maps", "cologne1"]) == main.FAILED
    assert 'sumo-rl, which is not installed: pip install "stream_jax[resco]"' in capsys.readouterr().out
