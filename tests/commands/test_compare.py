"""The comparison of two runs says which rows differ, and leaves out how long something took."""

import pytest

from data.errors import DataError
from experiments import compare
from experiments.evaluation import results

ROW = {"dataset": "synthetic", "stage": "detect", "method": "crfn_by", "metric": "recall", "value": 0.5}


def written(folder, value, seconds):
    rows = [ROW | {"value": value}, ROW | {"metric": "fit_seconds", "value": seconds}]
    results.write_rows(folder / "results" / "synthetic" / "detect.jsonl", rows)
    return str(folder)


def test_equal_rows_agree_whatever_they_took(tmp_path, capsys):
    runs = [written(tmp_path / name, 0.5, seconds) for name, seconds in (("one", 1.0), ("other", 2.0))]
    assert compare.main(runs) == 0
    assert "detect.jsonl" in capsys.readouterr().out


def test_a_last_digit_is_a_difference_and_is_shown(tmp_path, capsys):
    runs = [written(tmp_path / name, value, 1.0) for name, value in (("one", 0.5), ("other", 0.5 + 1e-12))]
    assert compare.main(runs) == 1
    assert "0.500000000001" in capsys.readouterr().out


def test_a_folder_without_rows_is_named(tmp_path):
    with pytest.raises(DataError, match="nothing has no results rows"):
        compare.main([written(tmp_path / "one", 0.5, 1.0), str(tmp_path / "nothing")])
