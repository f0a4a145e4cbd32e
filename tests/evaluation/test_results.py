"""Rows have the fields of `Row`, come back as they were written, and keep what a run's rows share in one place."""

import json

import numpy as np
import pytest

from experiments.evaluation import curves, results

FACTS = {"dataset": "d", "data": "synthetic", "data_hash": "h", "preset": "smoke", "stage": "forecast"}
ROW = FACTS | {"method": "a", "metric": "nrmse", "seed": None, "value": 0.5}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_all_rows_of_a_run_share_is_written_once_and_read_with_every_row(tmp_path):
    path, rows = tmp_path / "forecast.jsonl", [ROW, ROW | {"metric": "mae"}]
    results.write_rows(path, rows)
    assert lines(path) == [{"method": "a", "metric": name, "seed": None, "value": 0.5} for name in ("nrmse", "mae")]
    assert json.loads((tmp_path / results.RUNS).read_text()) == {"forecast": [FACTS]}
    assert results.read_rows(path) == rows


def test_rows_of_another_recording_name_their_facts(tmp_path):
    path, other = tmp_path / "forecast.jsonl", ROW | {"data_hash": "newer"}
    results.write_rows(path, [ROW])
    results.write_rows(path, [other])
    assert [line.get(results.OTHER_FACTS) for line in lines(path)] == [None, 1]
    assert results.read_rows(path) == [ROW, other]


def test_a_writer_killed_between_its_two_files_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "forecast.jsonl"
    results.write_rows(path, [ROW])
    write_text = results.store.write_text

    def killed(place, text):
        if place == path:
            raise KeyboardInterrupt
        write_text(place, text)

    monkeypatch.setattr(results.store, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        results.write_rows(path, [ROW | {"data_hash": "newer", "value": 0.25}])
    assert results.read_rows(path) == [ROW]


def test_rows_that_carry_their_own_facts_are_read_as_they_are(tmp_path):
    path = tmp_path / "forecast.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    assert results.read_rows(path) == [ROW]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (ROW | {"recal": 0.5}, "recal: a row of forecast.jsonl has no such field; there are dataset, "),
        (ROW | {"value": [0.5]}, "value of a row of forecast.jsonl is list, not a plain number or text."),
        (ROW | {"value": np.float32(0.5)}, "value of a row of forecast.jsonl is float32, not"),
    ],
)
def test_a_row_that_nobody_could_read_is_refused_in_one_sentence(row, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        results.write_rows(tmp_path / "forecast.jsonl", [row])
    assert not (tmp_path / "forecast.jsonl").exists()


def test_pandas_reads_rows_with_a_column_for_every_field(tmp_path):
    path = tmp_path / "forecast.jsonl"
    results.write_rows(path, [ROW | {"seed": seed, "value": value} for seed, value in enumerate((0.25, 0.75))])
    found = results.frame(path)
    assert list(found.columns) == list(results.FIELDS) and found["lower"].isna().all()
    assert found.groupby(["dataset", "method", "metric"])["value"].mean().to_dict() == {("d", "a", "nrmse"): 0.5}


def test_a_learning_curve_has_its_points_in_order_and_stands_beside_the_rows(tmp_path):
    file, learner = tmp_path / "control.jsonl", FACTS | {"method": "ppo", "seed": 1, "level": "heavy"}
    made = [{"kind": "train", "iteration": 0, "loss": 2.0}, {"kind": "validation", "iteration": 0, "is_kept": True}]
    curves.write(file, curves.of_learning(learner | point for point in made))
    other = learner | {"level": "overload"} | made[0]
    curves.write(file, curves.of_learning([other]))
    assert not file.exists()
    assert curves.learning(file, network=None) == [*(learner | point for point in made), other]
    curves.write(file, curves.of_learning([learner | made[1]]))
    assert curves.learning(file, network=None) == [other, learner | made[1]]
