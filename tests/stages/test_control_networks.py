"""The control stage on other networks than the preset's grid: where they lie in the city, and their own rows."""

import numpy as np
import pytest

from data import loader
from experiments.cli import options
from experiments.cli.networks import control_folder, network_name
from experiments.evaluation import curves, results
from experiments.stages import agent_stage, report
from experiments.stages import control as control_stage
from experiments.stages.agent_road import CityDays
from experiments.tables import control_tables
from sim import keeping
from sim.city_road import areas_around, city_road, is_at_real_place, vehicles_per_hour
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.errors import RoadError
from sim.network import read_network
from stream_jax.types import CityView
from tests.small_city import write_small_city
from tests.small_networks import main_street

STEPS = 1200


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data", num_steps=STEPS, side=4)
    return out


def chosen(*argv, controllers=("default_plan",)):
    words = ["--preset", "smoke", "--episodes", "1", "--workers", "1", "--seeds", "1", *argv]
    return options.parse([*words, "--controllers", *controllers])


def quiet_city(monkeypatch, signals):
    """A city that always says the same to this many signals; what it says is not what is tested here."""
    flat = np.ones((STEPS, signals, 4), np.float32)
    view = CityView(flat, 0.1 * flat, flat[..., 0], 0.0 * flat[..., 0])
    days = CityDays(view, np.zeros((STEPS, 4), np.float32), 900)
    monkeypatch.setattr(agent_stage.system, "upstream_system", lambda *_: None)
    monkeypatch.setattr(agent_stage.system, "city_days", lambda *_: days)
    monkeypatch.setattr(agent_stage, "keep_whole", lambda *_: None)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ([], None),
        (["--grid", "2"], None),
        (["--grid", "6"], "grid-6x6"),
        (["--demand-factor", "0.5"], "grid-2x2-x0.5"),
        (["--network", "towns/old town.net.xml"], "old town"),
        (["--network", "town.sumocfg", "--demand-factor", "2"], "town-x2"),
    ],
)
def test_only_what_differs_from_the_preset_has_a_name_and_a_folder(argv, name, tmp_path):
    args = chosen(*argv)
    assert network_name(args) == name
    assert control_folder(tmp_path, name).name == (f"control-{name}" if name else "control")


def test_demand_grows_with_intersections_and_the_factor():
    assert vehicles_per_hour(DEMAND_LEVELS["heavy"], 16) == 4200
    assert vehicles_per_hour(DEMAND_LEVELS["heavy"], 4, factor=0.5) == 525


def test_signals_with_a_projection_stand_where_they_are(run, tmp_path):
    # The city's squares of 500 m begin at 10 E, 50 N; the signals stand at 50.010 N, 10.010 and 10.014 E.
    network = read_network(main_street(tmp_path, is_geographic=True))
    np.testing.assert_allclose(network.lonlat, [[10.010, 50.010], [10.014, 50.010]], atol=1e-6)
    geometry = loader.load(run / "data").geometry
    found = areas_around(network, geometry, np.ones(16))
    assert is_at_real_place(network, geometry)
    np.testing.assert_allclose(found.box, [10.008, 50.010 - 0.0012855, 10.016, 50.010 + 0.0012855], atol=1e-5)
    west, east = (geometry["lonlat"].T @ row / row.sum() for row in found.weights)
    assert west[0] < 10.012 < east[0]
    np.testing.assert_allclose(west[1], east[1])


def test_signals_without_a_projection_or_elsewhere_are_laid_over_the_core(run, tmp_path):
    plain = read_network(main_street(tmp_path))
    geometry = loader.load(run / "data").geometry
    far = plain._replace(lonlat=np.array([[2.0, 48.0], [2.1, 48.1]]))
    first, second = (areas_around(network, geometry, np.ones(16)) for network in (plain, far))
    assert plain.lonlat is None and not is_at_real_place(far, geometry)
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_allclose(first.weights.sum(axis=1), first.weights.sum() / 2)  # two signals, two halves


@pytest.mark.slow
def test_a_grid_of_another_size_is_driven_and_learned_beside_the_presets(run, console, monkeypatch):
    quiet_city(monkeypatch, 9)
    before = results.read_rows(control_stage.control(chosen(), run, console))
    args = chosen("--grid", "3", controllers=("default_plan", "lycon_wrl_plus"))
    rows = results.read_rows(control_stage.control(args, run, console))
    assert [row for row in rows if "network" not in row] == before
    mine = [row for row in rows if row.get("network") == "grid-3x3"]
    assert len(mine) + len(before) == len(rows)
    of = {row["metric"] for row in mine if row["method"] == "lycon_wrl_plus"}
    assert {"safety", "reward", "reward_minus_default", "certificate_verdict", "sumo_steps"} <= of
    learned = curves.learning(run / "results" / "small" / "control.jsonl", "grid-3x3")
    assert "curve" not in of and {point["method"] for point in learned} == {"lycon_wrl_plus"}
    judged = [row for row in mine if row["metric"] == "decrease_under_ours"]
    assert {row["method"] for row in judged} == {"default_plan", "lycon_wrl_plus"}
    assert all(0 <= row["value"] <= 1 for row in judged)
    promised = {row["metric"]: row["value"] for row in mine if row["metric"].startswith("certificate_")}
    assert {f"certificate_{name}" for name in control_tables.CERTIFICATE} <= set(promised)
    assert promised["certificate_lipschitz"] > 0 and promised["certificate_world_jacobian"] >= 1.0
    folder = control_folder(run, "grid-3x3")
    assert {path.name[:8] for path in folder.glob("*.net.xml")} == {"grid-3x3"}
    assert (folder / "safety.png").exists() and (folder / "learning.png").exists()
    assert (folder / "learning_curves.png").exists()
    page = report.report(chosen("--grid", "3"), run, console)
    assert page.name == "report-grid-3x3.html" and "synthetic data) on grid-3x3" in page.read_text()
    assert "grid-3x3" not in report.report(chosen(), run, console).read_text()


def test_a_users_network_with_a_signal_that_is_not_nema_is_driven_and_never_mixed_with_another(run, console, tmp_path):
    net = main_street(tmp_path)
    assert read_network(net).is_nema.tolist() == [True, False]
    args = chosen("--network", str(net), "--demand-factor", "2", controllers=("default_plan", "max_pressure"))
    rows = results.read_rows(control_stage.control(args, run, console))
    mine = [row for row in rows if row.get("network") == "street-x2" and row["metric"] == "safety"]
    driven = 2 * DEMAND_LEVELS["heavy"].vehicles_per_hour * 2 / 16  # twice as many as two of sixteen signals get
    names = (*args.controllers, control_tables.HINDSIGHT)
    assert {(row["method"], row["vehicles_per_hour"]) for row in mine} == {(name, driven) for name in names}
    said = " ".join(console.file.getvalue().split())
    assert "2 signals of street-" in said and "laid over the busy core of the city, 1 of them with the greens" in said
    net.write_text(net.read_text() + "<!-- changed -->")
    with pytest.raises(RoadError, match="holds another network called street"):
        control_stage.control(args, run, console)


@pytest.mark.slow
def test_a_rival_learns_on_a_users_network_of_which_one_signal_is_not_nema(run, console, tmp_path, monkeypatch):
    quiet_city(monkeypatch, 2)
    net = main_street(tmp_path).rename(tmp_path / "corner.net.xml")
    args = chosen("--network", str(net), controllers=("default_plan", "ppo"))
    rows = results.read_rows(control_stage.control(args, run, console))
    of = {row["metric"]: row for row in rows if row.get("network") == "corner" and row["method"] == "ppo"}
    assert {"safety", "reward_minus_default", "sumo_steps", "kept_iteration"} <= set(of)
    assert of["kept_iteration"]["value"] in (0, 1, 2)


def test_a_checkpoint_remembers_a_users_network_and_its_demand(run, tmp_path):
    net, folder = main_street(tmp_path / "net"), tmp_path / "checkpoint"
    folder.mkdir()
    keeping.keep_surroundings(folder, run / "data", net, 0.5)
    road, factor = keeping.kept_road(folder, 2, loader.load(folder / "data"), DemandConfig(), tmp_path)
    assert road.network.ids == ("A", "B") and factor == 0.5
    again = city_road(loader.load(run / "data"), read_network(net), DemandConfig(), tmp_path)
    np.testing.assert_array_equal(road.weights, again.weights)
