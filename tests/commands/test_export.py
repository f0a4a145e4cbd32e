"""`stream-jax export`: times, names, units and places of a run worked by hand, and files that other programs open."""

import json
import re
import warnings
from pathlib import Path

import geopandas
import numpy as np
import pandas as pd
import pytest

from data import loader
from data.errors import DataError
from data.spark_etl import shards
from experiments import export
from experiments.cli import main
from experiments.cli.options import RunOptions
from experiments.report import forecast_figures
from experiments.run import main as run_command
from experiments.stages import control as control_stage
from sim.city_road import episode_folder, vehicles_per_hour
from sim.demand import DEMAND_LEVELS
from sim.network import GridConfig, build_grid
from tests.small_city import FIRST_S, write_small_city
from tests.stages.test_report import write_scores

FIRST_STEP = 8  # two hours after the recording's first step


def write_outcome(out: Path, dataset: loader.TrafficDataset, fold: int) -> None:
    """Of origin w, lead h and cell n the mean is 100 w + 10 h + n, one vehicle to each side, twice it for seed 1."""
    w, h, n = np.indices((len(dataset.origins("test", fold)), 4, 9))
    mean = np.stack([100.0 * w + 10 * h + n, 200.0 * w + 20 * h + 2 * n])
    upper = mean + 1
    upper[0, 0, 0, 0] = np.inf
    arrays = {"forecast_mean": mean, "forecast_sigma": 0 * mean + 0.5, "interval_lower": mean - 1}
    arrays |= {"interval_upper": upper, "cluster": np.zeros((2, 9), np.int32), "target": mean[0] + 3}
    arrays |= {"mask": n > 0, "slot": np.zeros(mean.shape[1:3], np.int32)}  # cell 0 is never observed
    (out / "forecast").mkdir()
    shards.write_arrays(out / "forecast" / f"pu_gat_plus-fold{fold}-0123456789.npz", **arrays)


def write_episode(out: Path) -> None:
    """Three minutes on a 2 x 2 grid: signal i has i + 1 halting vehicles, phase p is green 5 p seconds a minute."""
    build_grid(GridConfig(size=2), out / "control")
    folder = episode_folder(out / "control", vehicles_per_hour(DEMAND_LEVELS["heavy"], 4), "fixed_time-0123456789")
    queue = np.tile((np.arange(4.0)[:, None] + 1) / 8, (4, 1, 8))
    ones, green = np.ones((4, 4)), np.tile(5.0 * np.arange(8), (3, 4, 1))
    arrays = {"queue": queue, "wait": 7 * ones, "served": 2 * ones, "arrived": 3 * ones, "green": green}
    shards.write_arrays(folder / "001-aa.npz", first_step=np.array(FIRST_STEP), **arrays)
    shards.write_arrays(folder / "000-bb.npz", queue=queue)  # of an earlier version


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "a [bold] run"
    write_small_city(out / "data")
    dataset = loader.load(out / "data")
    fold = dataset.num_folds - 1
    write_outcome(out, dataset, fold)
    write_scores(out, dataset, fold)
    write_episode(out)
    return out


def exported(run: Path, to: Path, *words: str) -> Path:
    assert main.start("export", [str(run), "--out", str(to), *words]) == 0
    return to


def iso(second: int) -> str:
    return pd.Timestamp(second, unit="s", tz="UTC").strftime("%Y-%m-%dT%H:%M:%SZ")


def test_forecasts_have_the_times_horizons_and_units_worked_by_hand(run, tmp_path):
    table = pd.read_csv(exported(run, tmp_path, "--to", "csv") / "forecasts.csv")
    dataset = loader.load(run / "data")
    origin = int(dataset.origins("test", dataset.num_folds - 1)[0])
    assert len(table) == len(dataset.origins("test", dataset.num_folds - 1)) * 4 * 9
    # The history ends with step `origin`, so the forecast is issued when that step is over. Its third lead is the step
    # that begins two steps of 15 minutes later and ends 45 minutes after the issue. Cell 5 has the mean 20 + 5.
    row = table.iloc[2 * 9 + 5]
    assert row["issued"] == iso(FIRST_S + 900 * (origin + 1))
    assert row["time"] == iso(FIRST_S + 900 * (origin + 3)) and row["horizon_min"] == 45
    assert (row["mean"], row["lower"], row["upper"], row["sigma"], row["observed"]) == (25, 24, 26, 0.5, 28)
    assert (row["unit"], row["method"], row["seed"]) == ("vehicles per step", "pu_gat_plus", 0)
    assert str(row["name"]) == dataset.names[5]
    np.testing.assert_allclose([row["lon"], row["lat"]], dataset.geometry["lonlat"][5], atol=1e-7)
    assert table["upper"][0] == np.inf and table["observed"][0] != table["observed"][0]
    other = pd.read_csv(exported(run, tmp_path / "b", "--to", "csv", "--seed", "1") / "forecasts.csv")
    assert other["mean"][2 * 9 + 5] == 50


def test_detections_say_when_where_and_how_surely(run, tmp_path):
    table = pd.read_csv(exported(run, tmp_path, "--to", "csv", "--stage", "detect") / "detections.csv")
    dataset = loader.load(run / "data")
    first = int(dataset.origins("test", dataset.num_folds - 1)[0]) + 1
    assert not (tmp_path / "forecasts.csv").exists()
    assert table["time"][4] == iso(FIRST_S + 900 * first)
    # Cell 4 lies beyond all 500 * 9 scores: p = 1 / 4501 is below BY's first cutoff 0.05 / (9 * 2.829) = 0.00196.
    assert table["p"][4] == pytest.approx(1 / 4501) and table["score"][4] == 100
    assert set(table.loc[table["rejected"], "name"].astype(str)) == {dataset.names[4]}


def test_drives_and_plans_have_clock_signal_phase_and_seconds(run, tmp_path):
    folder = exported(run, tmp_path, "--to", "parquet", "--stage", "control")
    plans, drives = pd.read_parquet(folder / "plans.parquet"), pd.read_parquet(folder / "drives.parquet")
    begin = pd.Timestamp(FIRST_S + 900 * FIRST_STEP, unit="s", tz="UTC")
    assert plans["time"].unique().tolist() == [begin + pd.Timedelta(minutes=k) for k in range(3)]
    # Four signals with eight phases over three minutes; phase 3 has the index 2, so 10 s.
    assert len(plans) == 3 * 4 * 8 and set(plans.loc[plans["phase"] == 3, "green_s"]) == {10.0}
    assert set(plans["controller"]) == {"fixed_time"} and set(plans["level"]) == {"heavy"}
    assert drives["signal"].tolist()[:4] == ["A0", "B0", "A1", "B1"] and set(drives["episode"]) == {1}
    assert drives["queue"].tolist() == [1, 2, 3, 4] * 3
    assert drives[["wait_s", "served", "arrived"]].drop_duplicates().to_numpy().tolist() == [[7, 2, 3]]
    assert len(pd.read_parquet(folder / "signals.parquet")) == 4


def test_what_the_control_stage_drove_is_exported_with_the_greens_that_were_shown(tmp_path, console, monkeypatch):
    monkeypatch.setattr(control_stage, "workers_of", lambda args: 0)
    write_small_city(tmp_path / "data", num_steps=1200, side=4)
    names = ["default_plan", "lookahead", "sumo_nema"]
    asked = RunOptions(preset="smoke", levels=["heavy"], episodes=1, workers=1, controllers=names)
    control_stage.control(asked, tmp_path, console)
    plans = pd.read_parquet(exported(tmp_path, tmp_path / "export", "--stage", "control") / "plans.parquet")
    assert set(plans["controller"]) == set(names)
    minutes = plans.groupby(["controller", "time", "signal"])["green_s"].sum()
    # Two rings show a phase each, except while they clear: never more than 120 s, and greens last longer than yellows.
    assert (minutes <= 120).all() and (minutes >= 60).all()
    assert plans.groupby("controller")["time"].nunique().nunique() == 1
    begin, end = plans["time"].min(), plans["time"].max()
    assert pd.Timestamp(FIRST_S, unit="s", tz="UTC") <= begin < end < begin + pd.Timedelta(hours=1)


def test_csv_and_parquet_hold_the_same(run, tmp_path):
    exported(run, tmp_path, "--to", "csv")
    exported(run, tmp_path, "--to", "parquet")
    names = sorted(path.stem for path in tmp_path.glob("*.csv"))
    assert names == ["cells", "detections", "drives", "forecasts", "plans", "signals"]
    for name in names:
        exact = pd.read_parquet(tmp_path / f"{name}.parquet")
        times = [column for column in exact if hasattr(exact[column].dtype, "tz")]
        words = {column: str for column in ("name", "signal") if column in exact}
        read = pd.read_csv(tmp_path / f"{name}.csv", parse_dates=times, dtype=words)
        pd.testing.assert_frame_equal(read, exact, check_dtype=False)


def test_maps_open_in_geopandas_with_polygons_and_points_in_degrees(run, tmp_path):
    exported(run, tmp_path, "--to", "geojson")
    dataset = loader.load(run / "data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps = {path.stem: geopandas.read_file(path) for path in tmp_path.glob("*.geojson")}
    assert maps.keys() == {"cells", "signals", "alarms", "last_forecasts"}
    assert all(one.crs.to_epsg() == 4326 for one in maps.values())
    cells = maps["cells"]
    assert set(cells.geom_type) == {"Polygon"} and cells["name"].astype(str).tolist() == dataset.names
    assert all(ring.is_ccw for ring in cells.exterior)
    # A square of 1000 m; the projection of UTM zone 32 is true to 0.1 % there.
    np.testing.assert_allclose(cells.to_crs(32632).area, 1e6, rtol=5e-3)
    centres = geopandas.GeoSeries.from_xy(cells["lon"], cells["lat"], crs=cells.crs)
    assert cells.contains(centres).all()
    assert set(maps["signals"].geom_type) == {"Point"} and len(maps["signals"]) == 4
    assert len(maps["last_forecasts"]) == 4 * 9 and set(maps["last_forecasts"]["horizon_min"]) == {15, 30, 45, 60}
    assert set(maps["alarms"]["name"].astype(str)) == {dataset.names[4]}


ODD = ["A.1/km 3.5", 'the "old" bridge', "back`tick", "semi;colon", "comma, here", "Ä" * 300, "</script>", "$x$", "i"]


def test_names_survive_in_tables_maps_figures_and_the_page(tmp_path):
    write_small_city(tmp_path / "data", names=ODD)
    dataset = loader.load(tmp_path / "data", verify=True)
    write_outcome(tmp_path, dataset, dataset.num_folds - 1)
    for to in ("csv", "parquet", "geojson"):
        exported(tmp_path, tmp_path / "export", "--to", to)
    for found in (
        pd.read_csv(tmp_path / "export" / "cells.csv"),
        pd.read_csv(tmp_path / "export" / "forecasts.csv")[:9],
        pd.read_parquet(tmp_path / "export" / "forecasts.parquet")[:9],
        geopandas.read_file(tmp_path / "export" / "cells.geojson"),
    ):
        assert found["name"].tolist() == ODD
    assert run_command(["--stage", "report", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    block = re.search(r'<script[^>]*id="run-data"[^>]*>(.*?)</script>', page, re.S)
    assert json.loads(block[1])["city"]["names"] == ODD
    assert forecast_figures.plain("$x$") == r"\$x\$" and len(forecast_figures.plain(ODD[5])) == 60


def test_sensors_are_points_and_those_without_a_place_have_none(run):
    dataset = loader.load(run / "data")
    geometry = dataset.geometry | {"outline": dataset.geometry["lonlat"], "outline_start": np.arange(10)}
    geometry |= {"name": np.array(["a,b", 'the "old" one', "A.1", "`d`", "e", "f", "g", "h", "i"])}
    sensors = loader.TrafficDataset(run, dataset.manifest, dataset.graph, geometry, dataset.maps)
    found = export.places.cells(sensors)["features"]
    assert [one["properties"]["name"] for one in found] == sensors.names
    assert {one["geometry"]["type"] for one in found} == {"Point"}
    nowhere = loader.TrafficDataset(run, dataset.manifest | {"box": None}, dataset.graph, geometry, dataset.maps)
    made = json.loads(json.dumps(export.places.cells(nowhere), allow_nan=False))
    assert {one["geometry"] for one in made["features"]} == {None}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seed", "7"], "has the seeds 0 to 1"),
        (["--seed", "-1"], "--seed -1 is negative"),
        (["--method", "stid", "--stage", "forecast"], "nothing of stid from stage forecast"),
    ],
)
def test_what_is_not_there_is_said(run, tmp_path, words, sentence):
    with pytest.raises(DataError, match=sentence):
        export.main([str(run), "--out", str(tmp_path), *words])


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(DataError, match="There is no dataset"):
        export.main([str(tmp_path)])
