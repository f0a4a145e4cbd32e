"""The detect stage end to end on a small recording, on top of a forecast stage run with the smallest networks."""

import math

import pytest
from rich.console import Console

from experiments import decisions, detect_stage, detection, forecast_stage, options, results
from tests.small_city import write_small_city

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data")
    args = options.parser().parse_args(["--preset", "smoke", "--seeds", "1", "--methods", "pu_gat_plus"])
    forecast_stage.forecast(args, out, QUIET)
    return out, args, detect_stage.detect(args, out, QUIET)


def test_every_arm_and_level_has_both_false_discovery_rates(run):
    rows = results.read_rows(run[2])
    for arm in decisions.ARMS:
        for level in decisions.LEVELS:
            for metric in ("fdr_step", "fdr_pooled", "recall"):
                wanted = {"scenario": "injected", "arm": arm, "level": level, "metric": metric}
                (row,) = [row for row in rows if wanted.items() <= row.items()]
                assert 0.0 <= row["value"] <= 1.0 and row["data"] == "synthetic"


def test_by_never_finds_more_than_bh_with_the_same_p_values(run):
    rows = results.read_rows(run[2])
    recall = {
        (r["arm"], r["level"]): r["value"] for r in rows if r["scenario"] == "injected" and r["metric"] == "recall"
    }
    for level in decisions.LEVELS:
        assert recall["full+by", level] <= recall["full+bh", level]


def test_null_uniformity_is_reported_with_its_test(run):
    rows = [row for row in results.read_rows(run[2]) if row["metric"] == "null_rate"]
    assert {row["level"] for row in rows} == {0.001, 0.01, 0.05, 0.1}
    assert all(0.0 <= row["binomial_p"] <= 1.0 and math.isfinite(row["upper"]) for row in rows)


def test_figures_are_drawn(run):
    for name in ("fdr_and_power", "null_p_values", "recall_by_kind", "detections"):
        assert (run[0] / "detect" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_run_trains_no_flow_and_writes_the_same_rows(run, monkeypatch):
    out, args, rows_file = run
    before = rows_file.read_text()
    monkeypatch.setattr(detection, "train_flow", lambda *_: pytest.fail("a finished fold was trained again"))
    detect_stage.detect(args, out, QUIET)
    assert rows_file.read_text() == before


def test_detecting_without_a_forecaster_says_what_to_run(tmp_path):
    write_small_city(tmp_path / "data")
    args = options.parser().parse_args(["--preset", "smoke"])
    with pytest.raises(ValueError, match="run the forecast stage first"):
        detect_stage.detect(args, tmp_path, QUIET)
