"""The control stage end to end on a small city: rows say what ran, and a second run only reads."""

import numpy as np
import pytest

from data import loader
from data.errors import DataError
from experiments.cli.options import RunOptions
from experiments.evaluation import results
from experiments.methods.control import lookahead
from experiments.methods.control.controllers import NAMES, check_controllers, make_method
from experiments.stages import control as control_stage
from experiments.tables.control_tables import HINDSIGHT
from sim.city_road import busy_starts, city_road, draw_scenarios
from sim.demand import BUSY_HOURS, DemandConfig
from sim.network import GridConfig
from tests.small_city import write_small_city


def options(**changes) -> RunOptions:
    chosen = {"preset": "smoke", "levels": ["heavy"], "episodes": 1, "workers": 1}
    return RunOptions(**(chosen | {"controllers": ["fixed_time", "default_plan"]} | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data", num_steps=1200, side=4)
    return out


def test_rows_of_every_controller_and_metric_and_nothing_runs_twice(run, console):
    file = control_stage.control(options(), run, console)
    rows = results.read_rows(file)
    assert {row["method"] for row in rows} == {"fixed_time", "default_plan", HINDSIGHT}
    of = {(row["method"], row["metric"]): row["value"] for row in rows}
    least = min(of[name, "violating_steps"] for name in ("fixed_time", "default_plan"))
    assert of[HINDSIGHT, "violating_steps"] <= least
    assert {(row["stage"], row["level"], row["data"]) for row in rows} == {("control", "heavy", "synthetic")}
    metrics = {row["metric"] for row in rows}
    assert {"safety", "reward", "violating_steps", "travel_time", "longest_wait", "mean_queue", "teleports"} <= metrics
    safety = [row for row in rows if row["metric"] == "safety"]
    assert all(0 <= row["lower"] <= row["value"] <= row["upper"] <= 1 for row in safety)
    saved = sorted((run / "control").glob("episodes/*/*/*.npz"))
    times = [path.stat().st_mtime_ns for path in saved]
    assert len(saved) == 2
    control_stage.control(options(), run, console)
    assert [path.stat().st_mtime_ns for path in saved] == times
    assert results.read_rows(file) == rows
    assert (run / "control" / "safety.png").exists()


def test_the_lookahead_controller_is_paired_with_the_default_plan_hour_by_hour(run, console):
    file = control_stage.control(options(controllers=["default_plan", "lookahead"], episodes=2), run, console)
    of = {row["metric"]: row for row in results.read_rows(file) if row["method"] == "lookahead"}
    assert of["travel_time_minus_default"]["hours"] == 2
    assert of["travel_time"]["value"] > 0
    saved = next((run / "control").glob("episodes/*/lookahead-*/000-*.npz"))
    assert saved.parent.name == f"lookahead-{lookahead.version()}"


def test_another_level_keeps_the_rows_of_the_first(tmp_path):
    level = lambda name: [  # noqa: E731
        {"dataset": "d", "preset": "p", "data_hash": "h", "stage": "control", "method": "m", "level": name}
    ]
    heavy, moderate = (control_stage.DEMAND_LEVELS[name] for name in ("heavy", "moderate"))
    file = tmp_path / "rows.jsonl"
    control_stage.write(file, level("heavy"), heavy)
    control_stage.write(file, level("moderate"), moderate)
    control_stage.write(file, level("heavy"), heavy)
    assert sorted(row["level"] for row in results.read_rows(file)) == ["heavy", "moderate"]


def test_every_named_controller_can_be_made(run):
    dataset = loader.load(run / "data")
    road = city_road(dataset, GridConfig(size=2), DemandConfig(duration_s=300), run / "control")
    for name in check_controllers(None):
        assert make_method(name, road, 500.0, run / "made").name == name
    assert len(NAMES) == 14


def test_all_stands_for_every_controller_and_level():
    plain, learned = control_stage.chosen_controllers(["all"])
    assert set(plain) == set(NAMES) and learned == ["lycon_wrl_plus"]
    assert control_stage.chosen_controllers(["webster"]) == (["webster"], [])
    assert control_stage.chosen_levels(["all"]) == ["moderate", "heavy", "overload"]


def test_an_unknown_controller_is_named(console, run):
    with pytest.raises(DataError, match="No controller is called lqr"):
        control_stage.control(options(controllers=["lqr"]), run, console)


def test_episodes_take_place_in_busy_hours(run):
    dataset = loader.load(run / "data")
    road = city_road(dataset, GridConfig(size=2), DemandConfig(duration_s=300), run / "control")
    mean, (low, high) = road.flow.sum(axis=1).mean(), BUSY_HOURS
    flows = [one.flow.sum() / mean for one in draw_scenarios(road, "test", 300.0, range(4), run / "made")]
    assert low <= min(flows) and max(flows) <= high
    crowded = road._replace(flow=np.ones_like(road.flow))
    crowded.flow[road.starts["test"]] = 9.0  # no hour of the part is inside: the nearest is taken
    crowded.flow[road.starts["test"][3]] = 8.0
    assert busy_starts(crowded, "test").tolist() == [road.starts["test"][3]]
    none = road._replace(starts={"test": np.array([], int)})
    with pytest.raises(DataError, match="long enough"):
        draw_scenarios(none, "test", 300.0, range(1), run / "made")


def test_the_busiest_half_of_the_hours_has_the_most_flow(run):
    dataset = loader.load(run / "data")
    road = city_road(dataset, GridConfig(size=2), DemandConfig(duration_s=300), run / "control")
    everywhere, half = busy_starts(road, "val"), busy_starts(road, "val", 0.5)
    rest = np.setdiff1d(everywhere, half)
    assert abs(len(half) - len(rest)) <= 1 < len(half)
    flow = road.flow.sum(axis=1)
    assert flow[half].min() >= flow[rest].max()
    drawn = draw_scenarios(road, "val", 300.0, range(8), run / "made", busiest=0.5)
    assert {one.first_step for one in drawn} <= set(half.tolist())


def test_the_same_seed_is_the_same_hour_at_every_level(run):
    dataset = loader.load(run / "data")
    road = city_road(dataset, GridConfig(size=2), DemandConfig(duration_s=300), run / "control")
    low, high = (draw_scenarios(road, "test", rate, range(3), run / "made") for rate in (300.0, 600.0))
    assert [one.first_step for one in low] == [one.first_step for one in high]
    start, stop = dataset.part("test", dataset.num_folds - 1)
    assert all(start < one.first_step < stop for one in low)
