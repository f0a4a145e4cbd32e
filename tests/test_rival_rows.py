"""The rivals in the forecast stage: named, fitted, calibrated and written as every method is."""

import math

import pytest
from rich.console import Console

from data import loader
from experiments import configs, forecast_stage, forecasting, options, results
from experiments.baselines.forecasting.stid import StidConfig
from tests.small_city import write_small_city


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data")
    args = options.parser().parse_args(["--preset", "smoke", "--methods", "stid"])
    return results.read_rows(forecast_stage.forecast(args, out, Console(quiet=True)))


def test_a_rival_has_the_metrics_of_the_table_for_every_seed(rows):
    for metric in forecast_stage.SHOWN:
        found = [row for row in rows if (row["metric"], row["fold"]) == (metric, "all")]
        assert {row["seed"] for row in found} == {0, 1} and all(math.isfinite(row["value"]) for row in found)


def test_a_rival_says_how_large_it_is_and_how_long_an_epoch_takes(rows):
    found = {row["metric"]: row["value"] for row in rows}
    # 9 cells, 96 steps a day, 12 steps of 3 features and the time of day, 2 x 4 outputs:
    # identities 32 (9 + 96 + 7) = 3,584; window 48 x 32 + 32 = 1,568; blocks 99,072; output 128 x 8 + 8 = 1,032.
    assert found["parameters"] == 3_584 + 1_568 + 99_072 + 1_032
    assert 0.0 < found["seconds_per_epoch"] < found["fit_seconds"]


def test_rivals_run_only_if_named():
    assert not set(forecasting.RIVALS) & set(forecasting.DEFAULT_METHODS)
    assert set(forecasting.RIVALS) <= set(forecasting.METHODS)
    assert all(name in options.METHODS_HELP for name in forecasting.RIVALS)


def test_every_rival_is_a_front_door():
    for module, config in forecasting.RIVALS.values():
        assert callable(module.fit) and callable(module.fit_with_history) and callable(module.predict)
        assert (config.history, config.horizon) == (12, 4)
    assert forecasting.RIVALS["stid"][1] == StidConfig()


def test_the_joint_sets_of_staci_are_judged_as_sets(tmp_path):
    write_small_city(tmp_path / "data")
    args = options.parser().parse_args(["--preset", "smoke", "--methods", "staci", "--seeds", "1"])
    rows = results.read_rows(forecast_stage.forecast(args, tmp_path, Console(quiet=True)))
    (coverage,) = (row["value"] for row in rows if row["metric"] == "joint_coverage")
    (volume,) = (row["value"] for row in rows if row["metric"] == "joint_log_volume_per_cell")
    assert math.isfinite(volume)
    # All nine cells at once, 90 % asked for: marginal intervals would hold them all 0.9^9 = 39 % of the time if cells
    # were independent. Adaptive levels bound the misses of T settled forecasts by (0.9 + 4 g) / (g T) above the target.
    cfg, steps = configs.PRESETS["smoke"].conformal, len(loader.load(tmp_path / "data").origins("test"))
    assert coverage >= 0.9 - (0.9 + 4 * cfg.step_size) / (cfg.step_size * steps) - 4 / steps
    assert coverage > 0.5
