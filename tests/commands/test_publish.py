"""Rows of a run reach the committed results with the command that wrote them, and nothing else is lost."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import DataError
from experiments import publish
from experiments.cli import plan
from experiments.evaluation import curves, results
from experiments.stages import final_controllers, packed_weights
from experiments.stages.final_controllers import Controller
from tests.small_city import write_small_city

ROW = {"dataset": "small", "preset": "smoke", "data_hash": "a", "stage": "forecast", "metric": "nrmse"}


@pytest.fixture
def run(tmp_path):
    write_small_city(tmp_path / "run" / "data")
    rows = [ROW | {"method": "ours", "value": 0.5}]
    results.write_rows(tmp_path / "run" / "results" / "small" / "forecast.jsonl", rows)
    plan.record(tmp_path / "run", "etl", 3.0, ["--stage", "etl"])
    plan.record(tmp_path / "run", "forecast", 3.0, ["--dataset", "small", "--methods", "ours", "a b"])
    return tmp_path / "run"


def test_rows_written_again_replace_the_old_and_leave_the_others(run, tmp_path):
    file = tmp_path / "results" / "twin" / "forecast.jsonl"
    results.write_rows(file, [ROW | {"method": name, "value": 0.1} for name in ("ours", "theirs")])
    publish.publish(run, tmp_path / "results", "twin")
    assert {row["method"]: row["value"] for row in results.read_rows(file)} == {"ours": 0.5, "theirs": 0.1}


def test_hashes_are_shortened_in_old_rows_and_new_ones_so_that_they_still_replace_each_other(run, tmp_path):
    file = tmp_path / "results" / "small" / "forecast.jsonl"
    long = ROW | {"data_hash": "0123456789abcdef"}
    results.write_rows(file, [long | {"method": name, "value": 0.1} for name in ("ours", "theirs")])
    results.replace_rows(run / "results" / "small" / "forecast.jsonl", [long | {"method": "ours", "value": 0.5}])
    publish.publish(run, tmp_path / "results")
    rows = results.read_rows(file)
    assert {row["method"]: row["value"] for row in rows} == {"ours": 0.5, "theirs": 0.1}
    assert {row["data_hash"] for row in rows} == {"0123456789ab"}


def test_the_commands_stand_beside_the_rows(run, tmp_path):
    publish.publish(run, tmp_path / "results")
    said = json.loads((tmp_path / "results" / "small" / publish.COMMANDS).read_text())
    assert said == {
        "etl": ["python experiments/run.py --stage etl"],
        "forecast": ["python experiments/run.py --dataset small --methods ours 'a b'"],
    }


def test_every_command_that_wrote_rows_is_kept_once(run, tmp_path):
    kept = tmp_path / "results" / "small" / publish.COMMANDS
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"forecast": "python experiments/run.py --old", "control": "python other"}))
    for words in (["--a"], ["--b"], ["--a"]):
        plan.record(run, "forecast", 1.0, words)
    publish.publish(run, tmp_path / "results")
    said = json.loads(kept.read_text())
    assert [one.split()[-1] for one in said["forecast"]] == ["--old", "b'", "--b", "--a"]
    assert said["control"] == ["python other"]


def test_the_rows_of_one_stage_can_be_published_alone(run, tmp_path, capsys):
    others = [ROW | {"stage": "detect", "method": "ours", "value": 0.3}]
    results.write_rows(run / "results" / "small" / "detect.jsonl", others)
    to = ["--results", str(tmp_path / "results"), "--name", "alone"]
    assert publish.main([str(run), *to, "--stages", "control"]) == 2
    assert "no results rows of control yet" in capsys.readouterr().out
    assert publish.main([str(run), *to, "--stages", "detect"]) == 0
    written = {path.name for path in (tmp_path / "results" / "alone").iterdir()}
    assert written == {"detect.jsonl", results.RUNS, publish.COMMANDS}


def test_a_run_without_rows_is_refused_in_one_sentence(tmp_path, capsys):
    write_small_city(tmp_path / "run" / "data")
    assert publish.main([str(tmp_path / "run"), "--results", str(tmp_path / "results")]) == 2
    assert "run its stages first" in capsys.readouterr().out and not (tmp_path / "results").exists()


def test_rows_of_another_recording_are_not_mixed_in(run, tmp_path, capsys):
    file = tmp_path / "results" / "small" / "forecast.jsonl"
    results.write_rows(file, [ROW | {"method": "ours", "value": 0.1, "data_hash": "b"}])
    assert publish.main([str(run), "--results", str(tmp_path / "results")]) == 2
    assert "rows of another recording" in capsys.readouterr().out
    assert [row["data_hash"] for row in results.read_rows(file)] == ["b"]
    assert publish.main([str(run), "--results", str(tmp_path / "results"), "--name", "small-b"]) == 0


def test_single_folds_keep_their_scores_and_numbers_six_digits(run, tmp_path):
    rows = [
        ROW | {"method": "theirs", "fold": fold, "metric": metric, "value": 0.123456789}
        for fold in ("0", "all")
        for metric in ("nrmse", "coverage_hour_7", "gamma/trend")
    ]
    results.write_rows(run / "results" / "small" / "forecast.jsonl", rows)
    file = publish.publish(run, tmp_path / "results")[0]
    kept = {(row["fold"], row["metric"]): row["value"] for row in results.read_rows(file) if row["method"] == "theirs"}
    assert kept.keys() == {("0", "nrmse"), ("0", "gamma/trend")} | {("all", row["metric"]) for row in rows}
    assert set(kept.values()) == {0.123457}


def test_other_targets_than_the_headline_one_keep_our_own_rates_alone(run, tmp_path):
    rows = [
        ROW | {"stage": "detect", "method": method, "metric": metric, "level": level, "scenario": "injected"}
        for method in ("crfn_by", "pca+conformal_by")
        for metric in ("fdr_step", "precision")
        for level in (None, 0.05, 0.2)
    ]
    results.write_rows(run / "results" / "small" / "detect.jsonl", rows)
    publish.publish(run, tmp_path / "results")
    kept = results.read_rows(tmp_path / "results" / "small" / "detect.jsonl")
    assert len([row for row in kept if row["level"] != 0.2]) == 8
    (other,) = [row for row in kept if row["level"] == 0.2]
    assert (other["method"], other["metric"]) == ("crfn_by", "fdr_step")


def test_leads_loads_and_targets_become_curves_and_what_tables_ask_for_stays_a_row(run, tmp_path):
    row = ROW | {"method": "ours", "fold": "all", "seed": 0}
    rows = [row | {"metric": f"{name}_h{lead}", "value": lead / 8} for name in ("crps", "nrmse") for lead in (1, 4)]
    rows += [row | {"metric": "coverage_load_2", "value": 0.75}]
    results.write_rows(run / "results" / "small" / "forecast.jsonl", rows)
    rate = ROW | {"stage": "detect", "method": "crfn_by", "arm": "full+by", "seed": 0, "metric": "fdr_step"}
    rows = [
        rate | {"scenario": scenario, "level": level, "value": level, "lower": 0.0, "upper": 0.5}
        for scenario in ("injected", "contaminated")
        for level in (0.05, 0.2)
    ]
    results.write_rows(run / "results" / "small" / "detect.jsonl", rows)
    for _ in range(2):  # what is published again is the same
        publish.publish(run, tmp_path / "results")
        folder = tmp_path / "results" / "small"
        assert [one["metric"] for one in results.read_rows(folder / "forecast.jsonl")] == ["nrmse_h4"]
        lead, load = curves.read(folder / "forecast.jsonl")
        assert lead["columns"] == {"lead": [1, 4], "seed": [0, 0], "crps": [0.125, 0.5], "nrmse": [0.125, 0.5]}
        assert load["columns"] == {"load": [2], "seed": [0], "coverage": [0.75]}
        assert {one["scenario"] for one in results.read_rows(folder / "detect.jsonl")} == {"injected"}
        (rates,) = curves.read(folder / "detect.jsonl")
        found = [(point["level"], point["fdr_step"], point["fdr_step_upper"]) for point in curves.points([rates])]
        assert found == [(0.05, 0.05, 0.5), (0.2, 0.2, 0.5)] and rates["scenario"] == "contaminated"


def test_weights_that_several_controllers_have_are_kept_once_and_come_back_to_the_bit(run, tmp_path):
    folder, key = run / "control" / final_controllers.FOLDER, jax.random.key(0)
    world, actor = jax.random.normal(key, (64, 64)), jax.random.normal(key, (9,))
    learned = {name: {"world": world, "actor": actor + k, "fitted": True} for k, name in enumerate(("ppo", "cpo"))}
    for name, weights in learned.items():
        path = final_controllers.file_of(folder, name, 0)
        final_controllers.write(path, Controller(weights, {}, [], {"network": "grid-2x2"}))
    row = ROW | {"stage": "control", "method": "ppo", "level": "heavy", "value": 0.5}
    results.write_rows(run / "results" / "small" / "control.jsonl", [row])
    for _ in range(2):
        publish.publish(run, tmp_path / "results")
    kept = tmp_path / "results" / "small" / final_controllers.FOLDER
    for name, weights in learned.items():
        path = final_controllers.file_of(kept, name, 0)
        like = jax.tree.map(jnp.asarray, weights)
        chex.assert_trees_all_equal(final_controllers.read(path, like, {}).weights, like)
        assert path.stat().st_size < world.nbytes / 4
    (kept / packed_weights.COMMON).unlink()
    with pytest.raises(DataError, match="copy the whole folder"):
        final_controllers.read(path, like, {})


def test_a_controller_keeps_its_rows_at_levels_that_were_not_driven_again(run, tmp_path):
    row = ROW | {"stage": "control", "method": "ours", "metric": "safety"}
    file = tmp_path / "results" / "small" / "control.jsonl"
    results.write_rows(file, [row | {"level": level, "value": 0.1} for level in ("heavy", "moderate")])
    results.write_rows(run / "results" / "small" / "control.jsonl", [row | {"level": "heavy", "value": 0.5}])
    publish.publish(run, tmp_path / "results")
    assert {one["level"]: one["value"] for one in results.read_rows(file)} == {"heavy": 0.5, "moderate": 0.1}


def test_final_controllers_are_published_with_the_rows_those_of_ablations_too(run, tmp_path):
    folder = run / "control" / final_controllers.FOLDER
    for name in ("lycon_wrl_plus", "lycon_wrl_plus:soft_1", "ppo"):
        final_controllers.write(
            final_controllers.file_of(folder, name, 0), Controller({"w": np.ones(2)}, {}, [], {"network": "grid-2x2"})
        )
    row = ROW | {"stage": "control", "method": "ppo", "level": "heavy", "value": 0.5}
    results.write_rows(run / "results" / "small" / "control.jsonl", [row])
    written = publish.publish(run, tmp_path / "results")
    kept = tmp_path / "results" / "small" / final_controllers.FOLDER
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    assert len(list(kept.iterdir())) == 3 and set(kept.iterdir()) <= set(written)
