"""The rivals in the forecast stage: named, fitted, calibrated and written as every method is."""

import math

import pytest
from rich.console import Console

from data import loader
from experiments import presets as configs
from experiments.cli import options
from experiments.evaluation import results
from experiments.methods.forecasting.stid import StidConfig
from experiments.stages import forecast as forecast_stage
from experiments.stages import forecasting
from tests.small_city import write_small_city


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data")
    args = options.parse(["--preset", "smoke", "--methods", "stid"])
    return results.read_rows(forecast_stage.forecast(args, out, Console(quiet=True)))


@pytest.mark.slow
def test_a_rival_has_the_metrics_of_the_table_for_every_seed(rows):
    for metric in forecast_stage.SHOWN:
        found = [row for row in rows if (row["metric"], row["fold"]) == (metric, "all")]
        assert {row["seed"] for row in found} == {0, 1} and all(math.isfinite(row["value"]) for row in found)


@pytest.mark.slow
def test_a_rival_says_how_large_it_is_and_how_long_an_epoch_takes(rows):
    found = {row["metric"]: row["value"] for row in rows}
    # 9 cells, 96 steps a day, 12 steps of 3 features and the time of day, 2 x 4 outputs, no weekdays since there are
    # fewer than seven: identities 32 (9 + 96) = 3,360; window 48 x 32 + 32 = 1,568; six layers 96 x 96 + 96, together
    # 55,872; output 96 x 8 + 8 = 776.
    assert found["parameters"] == 3_360 + 1_568 + 55_872 + 776
    assert 0.0 < found["seconds_per_epoch"] < found["fit_seconds"]


@pytest.mark.parametrize(("windows", "epochs"), [(100, 60), (259, 38), (980, 10), (2900, 8), (10, 60)])
def test_a_rival_trains_for_so_many_steps_within_a_limit_of_epochs_and_never_fewer_than_ours(windows, epochs):
    # 600 steps of 16 windows: 600 x 16 / 259 = 37.1 passes, at most 60 and at least the 8 of PU-GAT+.
    cfg = configs.PRESETS["default"]
    assert forecasting.training_of("stid", cfg, windows).epochs == epochs
    assert forecasting.training_of("pu_gat_plus:mse", cfg, windows) == cfg.training


def test_rivals_run_only_if_named():
    assert not set(forecasting.RIVALS) & set(forecasting.DEFAULT_METHODS)
    assert set(forecasting.RIVALS) <= set(forecasting.METHODS)
    assert all(name.split(":")[0] in options.METHODS_HELP for name in forecasting.RIVALS)


def test_every_rival_is_a_front_door():
    for module, config in forecasting.RIVALS.values():
        assert callable(module.fit) and callable(module.fit_with_history) and callable(module.predict)
        assert (config.history, config.horizon) == (12, 4)
    assert forecasting.RIVALS["stid"][1] == StidConfig()


@pytest.mark.slow
def test_the_joint_sets_of_staci_are_judged_as_sets(tmp_path):
    write_small_city(tmp_path / "data")
    args = options.parse(["--preset", "smoke", "--methods", "staci", "--seeds", "1"])
    rows = results.read_rows(forecast_stage.forecast(args, tmp_path, Console(quiet=True)))
    (coverage,) = (row["value"] for row in rows if row["metric"] == "joint_coverage")
    (volume,) = (row["value"] for row in rows if row["metric"] == "joint_log_volume_per_cell")
    assert math.isfinite(volume)
    # All nine cells at once, 90 % asked for: marginal intervals would hold them all 0.9^9 = 39 % of the time if cells
    # were independent. Adaptive levels bound the misses of T settled forecasts by (0.9 + 4 g) / (g T) above the target.
    cfg, steps = configs.PRESETS["smoke"].conformal, len(loader.load(tmp_path / "data").origins("test"))
    assert coverage >= 0.9 - (0.9 + 4 * cfg.step_size) / (cfg.step_size * steps) - 4 / steps
    assert coverage > 0.5


@pytest.mark.slow
def test_staci_takes_over_the_forecaster_that_agcrn_trained(tmp_path):
    write_small_city(tmp_path / "data")
    args = options.parse(["--preset", "smoke", "--methods", "agcrn", "staci", "--seeds", "1"])
    rows = results.read_rows(forecast_stage.forecast(args, tmp_path, Console(quiet=True)))
    trained = {row["method"] for row in rows if row["metric"] == "seconds_per_epoch"}
    assert trained == {"agcrn"}
    scores = [
        [row["value"] for row in rows if (row["method"], row["metric"], row["fold"]) == (method, "nrmse", "all")]
        for method in ("agcrn", "staci")
    ]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_an_ensemble_of_ours_is_five_times_as_large_and_trained_as_ours(tmp_path):
    write_small_city(tmp_path / "data")
    args = options.parse(["--preset", "smoke", "--methods", "pu_gat_plus", "pu_gat_ensemble", "--seeds", "2"])
    rows = results.read_rows(forecast_stage.forecast(args, tmp_path, Console(quiet=True)))
    size = {row["method"]: row["value"] for row in rows if row["metric"] == "parameters"}
    assert size["pu_gat_ensemble"] == 5 * size["pu_gat_plus"]
    seeds = {
        row["seed"]: row["value"] for row in rows if row["method"] == "pu_gat_ensemble" and row["metric"] == "crps"
    }
    assert set(seeds) == {0, 1} and seeds[0] != seeds[1]
