"""Controllers over a user's own trips: rows of their own, nothing driven twice, and what needs a city is refused."""

import numpy as np
import pytest

from experiments.cli import networks, options, running
from experiments.evaluation import results
from experiments.stages import own_routes
from experiments.tables.control_tables import HINDSIGHT
from tests.sim.test_own_trips import trips_file
from tests.small_networks import main_street


@pytest.fixture(autouse=True)
def roads_in_this_process(monkeypatch):
    monkeypatch.setattr(own_routes, "workers_of", lambda args: 0)


def chosen(*words):
    return options.parse(["--preset", "smoke", "--episodes", "2", *map(str, words)])


@pytest.fixture
def street(tmp_path):
    """Three in four drive along the street, one crosses it."""
    trips = trips_file(tmp_path, range(0, 1800, 3))
    crossing = 'from="north-A" to="A-south"'
    lines = trips.read_text().replace("<trip", "\n<trip").split("\n")
    for place in range(1, len(lines), 4):
        lines[place] = lines[place].replace('from="west-A" to="B-east"', crossing)
    trips.write_text("".join(lines))
    return main_street(tmp_path), trips


def test_controllers_are_compared_on_windows_of_the_trips(street, tmp_path, console):
    words = ("--network", street[0], "--routes", street[1], "--controllers", "default_plan", "fixed_time")
    args, out = chosen(*words), tmp_path / "run"
    file = own_routes.control(args, out, console)
    rows = results.read_rows(file)
    assert file == out / "results" / "routes" / "control.jsonl"
    assert {row["method"] for row in rows} == {"default_plan", "fixed_time", HINDSIGHT}
    facts = {(row["dataset"], row["data"], row["network"], row["level"]) for row in rows}
    assert facts == {("routes", "own", "street-my", "heavy")}
    of = {(row["method"], row["metric"]): row for row in rows}
    assert of["fixed_time", "travel_time"]["episodes"] == of["fixed_time", "travel_time_minus_default"]["hours"] == 2
    assert of["fixed_time", "travel_time"]["value"] != of["default_plan", "travel_time"]["value"]
    assert 30 < of["default_plan", "travel_time"]["value"] < 300 and "vehicles_per_hour" not in rows[0]
    saved = sorted((out / "control-street-my").glob("episodes/*/*.npz"))
    times = [path.stat().st_mtime_ns for path in saved]
    assert len(saved) == 4 and (out / "control-street-my" / "safety.png").exists()
    own_routes.control(args, out, console)
    assert [path.stat().st_mtime_ns for path in saved] == times and results.read_rows(file) == rows


def test_more_demand_is_more_vehicles_and_other_rows(street, tmp_path, console):
    words = ("--network", street[0], "--routes", street[1], "--controllers", "default_plan", "--demand-factor")
    for factor in (0.25, 3):
        own_routes.control(chosen(*words, factor), tmp_path / "run", console)
    rows = results.read_rows(tmp_path / "run" / "results" / "routes" / "control.jsonl")
    queue = {row["network"]: row["value"] for row in rows if row["metric"] == "mean_queue"}
    assert queue["street-my-x0.25"] < queue["street-my-x3"]


def test_the_preset_leaves_out_who_needs_a_city_and_says_so_when_asked(street):
    words = ("--network", street[0], "--routes", street[1])
    assert own_routes.own_controllers(chosen(*words)) == [
        "default_plan", "guarded_max_pressure", "fixed_time", "following_plan",
    ]  # fmt: skip
    assert len(own_routes.own_controllers(chosen(*words, "--controllers", "all"))) == 13
    for name in ("lycon_wrl_plus", "webster"):
        with pytest.raises(ValueError, match=f"no city .* {name} would need"):
            own_routes.own_controllers(chosen(*words, "--controllers", "default_plan", name))
    with pytest.raises(ValueError, match="listen to a city"):
        own_routes.own_controllers(chosen(*words, "--trained", "somewhere"))


def test_every_controller_that_is_offered_drives(street, tmp_path, console):
    words = ("--network", street[0], "--routes", street[1], "--episodes", "1", "--controllers", "all")
    rows = results.read_rows(own_routes.control(chosen(*words), tmp_path / "run", console))
    assert len({row["method"] for row in rows} - {HINDSIGHT}) == 13
    assert all(np.isfinite(float(row["value"])) for row in rows if row["metric"] == "travel_time")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--routes", "my.rou.xml"], "needs the --network"),
        (["--routes", "my.sumocfg", "--stage", "detect", "control"], "runs the stage control alone"),
        (["--routes", "my.sumocfg", "--from", "forecast"], "runs the stage control alone"),
        (["--routes", "my.sumocfg", "--table", "rl"], "runs the stage control alone"),
        (["--routes", "my.sumocfg", "--grid", "3"], "--grid generates a network"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(words, said):
    with pytest.raises(ValueError, match=said):
        options.stages(chosen(*words))


def test_a_configuration_alone_names_network_trips_and_folder():
    args = chosen("--routes", "towns/my.sumocfg")
    assert options.stages(args) == ["control"]
    assert networks.network_name(args) == "my-trips"


def test_the_command_runs_it_without_a_recording(street, tmp_path, console):
    args = chosen("--network", street[0], "--routes", street[1], "--controllers", "default_plan")
    running.run(args, ["--routes", "my.rou.xml"], tmp_path / "run", console)
    assert (tmp_path / "run" / "results" / "routes" / "control.jsonl").exists()
