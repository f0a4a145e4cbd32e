"""The forecast stage end to end on a small recording: rows, figures, a checkpoint that predicts, nothing done twice."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from data import loader
from experiments.cli import options
from experiments.evaluation import results
from experiments.stages import forecast as forecast_stage
from experiments.stages import forecasting
from stream_jax.checkpoint import load_forecaster
from stream_jax.gnn import pu_gat_plus
from tests.small_city import write_small_city

METHODS = ("persistence", "pu_gat_plus")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data")
    args = options.parse(["--preset", "smoke", "--methods", *METHODS])
    quiet = Console(quiet=True)
    rows_file = forecast_stage.forecast(args, out, quiet)
    return out, args, quiet, rows_file


def test_every_method_and_seed_has_the_metrics_of_the_table(run):
    rows = results.read_rows(run[3])
    for method, seeds in (("persistence", {0}), ("pu_gat_plus", {0, 1})):
        for metric in forecast_stage.SHOWN:
            found = [row for row in rows if (row["method"], row["metric"], row["fold"]) == (method, metric, "all")]
            assert {row["seed"] for row in found} == seeds
            assert all(math.isfinite(row["value"]) for row in found)


def test_rows_say_that_the_data_are_synthetic_and_which_data_they_are(run):
    manifest = loader.load(run[0] / "data").manifest
    for row in results.read_rows(run[3]):
        assert row["data"] == "synthetic" and row["data_hash"] == manifest["content_hash"]


def test_figures_are_drawn(run):
    for name in ("calibration", "coverage_over_time", "width_map", "examples", "gamma"):
        assert (run[0] / "forecast" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_reference_is_compared_in_every_score_with_an_interval_around_the_difference(run):
    rows = {(row["method"], row["metric"], row["seed"]): row["value"] for row in results.read_rows(run[3])}
    for score in ("nrmse", "mae", "winkler", "crps"):
        name = f"{score}_persistence_minus_ours"
        lower, estimate, upper = (rows["comparison", f"{name}_{end}", 0] for end in ("lower", "estimate", "upper"))
        assert lower <= estimate <= upper
        if score in ("mae", "crps"):  # means over the same labels, so the difference of means over seeds
            ours = np.mean([rows["pu_gat_plus", score, seed] for seed in (0, 1)])
            np.testing.assert_allclose(estimate, rows["persistence", score, 0] - ours, rtol=1e-3, atol=1e-4)


def test_coverage_of_every_horizon_has_an_interval(run):
    rows = {row["metric"]: row["value"] for row in results.read_rows(run[3]) if row["method"] == "persistence"}
    for h in range(1, 5):
        assert rows[f"coverage_h{h}_lower"] <= rows[f"coverage_h{h}"] <= rows[f"coverage_h{h}_upper"]


def test_learned_gammas_are_positive_and_their_layer_mean_is_the_mean_of_the_heads(run):
    rows = [row for row in results.read_rows(run[3]) if row["seed"] == 1 and row["metric"].startswith("gamma")]
    found = {row["metric"]: row["value"] for row in rows}
    heads = [value for name, value in found.items() if name.startswith("gamma/") and "/layer_2/" in name]
    assert len(heads) == 4 and min(heads) > 0  # two streams, two heads
    np.testing.assert_allclose(found["gamma_mean/layer_2"], np.mean(heads), rtol=1e-6)
    assert found["gamma_negative_share/layer_2"] == 0.0


def test_a_second_run_fits_nothing_and_writes_the_same_rows(run, monkeypatch):
    out, args, quiet, rows_file = run
    before = rows_file.read_text()
    monkeypatch.setattr(forecasting, "fit_fold", lambda *_: pytest.fail("a finished fold was fitted again"))
    forecast_stage.forecast(args, out, quiet)
    assert rows_file.read_text() == before


def test_the_checkpoint_predicts_what_the_stage_predicted(run):
    dataset = loader.load(run[0] / "data")
    folder = run[0] / "forecast" / "checkpoint" / "pu_gat_plus-fold0"
    loaded = load_forecaster(folder, dataset.manifest["content_hash"])
    data = jax.tree.map(jnp.asarray, dataset.forecast_data())
    forecast = pu_gat_plus.predict(loaded.params, data, jnp.asarray(dataset.origins("test")), loaded.config)
    (saved,) = Path(run[0] / "forecast").glob("pu_gat_plus-fold0-*.npz")
    # The same numbers; the stage forecast other origins in the same call, which may change the order of sums.
    np.testing.assert_allclose(forecast.mean, np.load(saved)["forecast_mean"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(forecast.sigma, np.load(saved)["forecast_sigma"], rtol=1e-4)


def test_a_checkpoint_of_other_data_is_refused(run):
    folder = run[0] / "forecast" / "checkpoint" / "pu_gat_plus-fold0"
    with pytest.raises(ValueError, match="was trained on data"):
        load_forecaster(folder, "0" * 64)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match="no forecaster checkpoint"):
        load_forecaster(tmp_path)


def test_rows_of_the_same_run_replace_each_other_and_others_stay(tmp_path):
    path = tmp_path / "rows.jsonl"
    common = {"dataset": "d", "preset": "smoke", "data_hash": "h", "stage": "forecast"}
    results.write_rows(path, [common | {"method": "a", "value": 1.0}, common | {"method": "b", "value": math.inf}])
    results.write_rows(path, [common | {"method": "a", "value": 2.0}])
    assert {row["method"]: row["value"] for row in results.read_rows(path)} == {"a": 2.0, "b": "inf"}
