"""Final controllers: read back to the bit, driven on networks they have not seen, and refused when they do not fit."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import DataError
from experiments import publish
from experiments.evaluation import results
from experiments.stages import agents, final_controllers, learners
from experiments.stages import control as control_stage
from experiments.stages.agents import OURS
from experiments.stages.final_controllers import Controller, file_of, read, write
from experiments.tables import control_tables
from sim.demand import DEMAND_LEVELS
from stream_jax.task import GREENS, PRICES
from tests.rl import toy_road
from tests.small_city import write_small_city
from tests.small_networks import main_street
from tests.stages.test_control_networks import STEPS, chosen, quiet_city

HEAVY = DEMAND_LEVELS["heavy"]
ORIGIN = {"network": "grid-2x2", "level": "heavy"}


def stored(path, config, weights):
    write(path, Controller(weights, config, [{"kind": "train", "iteration": 0}], ORIGIN))
    return path


@pytest.mark.parametrize("name", (OURS, "ppo", "la_mbda"))
def test_whatever_acts_comes_back_to_the_bit_also_for_a_road_of_another_size(name, tmp_path):
    cfg = agents.agent_config(name, "smoke", HEAVY)
    adjacency = toy_road.ADJACENCY
    kind = learners.kind_of(name)
    blank = kind.blank(adjacency, cfg)
    weights = kind.weights(jax.tree.map(lambda leaf: leaf + 1 if leaf.dtype == jnp.float32 else leaf, blank))
    path = stored(tmp_path / "one.npz", {}, weights)
    other = kind.blank(jnp.ones((9, 9)) / 9, cfg)
    found = read(path, kind.weights(other), {})
    chex.assert_trees_all_equal(found.weights, weights)
    assert found.origin == ORIGIN and found.curve == [{"kind": "train", "iteration": 0}]
    chex.assert_trees_all_equal(kind.weights(kind.with_weights(other, found.weights)), weights)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.unlink(), r"There is no .*one\.npz: name a folder"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "is damaged or no controller"),
        (lambda path: np.savez(path, w=np.zeros(2)), "is damaged or no controller"),
        (lambda path: np.savez(path, about=np.array([{}], dtype=object)), "is damaged or no controller"),
        (lambda path: stored(path, {"ppo": {"clip": 0.3}}, {"w": jnp.ones(2)}), r"\(ppo.clip is 0.3, not 0.2\)"),
        (lambda path: stored(path, {"ppo": {"clip": 0.2}}, {"w": jnp.ones(3)}), "weights of other sizes"),
        (lambda path: stored(path, {"ppo": {"clip": 0.2}}, {"v": jnp.ones(2)}), "weights of other sizes"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(damage, sentence, tmp_path):
    config, weights = {"ppo": {"clip": 0.2}}, {"w": jnp.ones(2)}
    path = stored(tmp_path / "one.npz", config, weights)
    chex.assert_trees_all_equal(read(path, weights, config).weights, weights)
    damage(path)
    with pytest.raises(DataError, match=sentence):
        read(path, weights, config)


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "one.npz"
    np.savez(path, about=np.frombuffer(b"{}", np.uint8), w=np.array([print], dtype=object))
    with pytest.raises(DataError, match="is damaged or no controller"):
        read(path, {"w": jnp.ones(2)}, {})


def test_a_folder_says_by_its_names_what_its_controllers_set(tmp_path):
    assert final_controllers.action_of(tmp_path, [OURS]) == GREENS
    file_of(tmp_path, OURS, 0).touch()
    assert final_controllers.action_of(tmp_path, [OURS, "ppo"]) == GREENS
    file_of(tmp_path, OURS, 0, PRICES).touch()
    assert final_controllers.action_of(tmp_path, [OURS, "ppo"]) == PRICES
    assert final_controllers.action_of(tmp_path, ["ppo"]) == GREENS


@pytest.mark.slow
def test_controllers_of_one_grid_drive_another_network_without_learning_and_are_published(
    console, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    write_small_city(run / "data", num_steps=STEPS, side=4)
    quiet_city(monkeypatch, 4)
    learned = control_stage.control(chosen(controllers=("default_plan", OURS, "ppo")), run, console)
    assert not any("trained_on" in row for row in results.read_rows(learned))
    folder = run / "control" / final_controllers.FOLDER
    assert {path.name for path in folder.iterdir()} == {f"{OURS}-prices-seed0.npz", "ppo-prices-seed0.npz"}
    about = json.loads(np.load(file_of(folder, "ppo", 0, PRICES))["about"].tobytes())
    assert about["origin"]["network"] == "grid-2x2" and about["origin"]["data"] == "synthetic"

    quiet_city(monkeypatch, 2)
    monkeypatch.setattr(learners, "train", None)
    argv = "--network", str(main_street(tmp_path)), "--trained", str(folder)
    args = chosen(*argv, controllers=("default_plan", OURS, "ppo"))
    rows = results.read_rows(control_stage.control(args, run, console))
    mine = [row for row in rows if row.get("network", "").startswith("street")]
    assert {row["method"] for row in mine if row.get("trained_on") == "grid-2x2"} == {OURS, "ppo"}
    assert {row.get("action") for row in mine if row["method"] in (OURS, "ppo")} == {"prices"}
    of = {row["metric"] for row in mine if row["method"] == OURS}
    assert {"safety", "decrease_under_ours", "sumo_steps", "kept_iteration"} <= of and "curve" not in of
    table = "\n".join(control_tables.control_tables(mine))
    assert f"Driven here as they learned elsewhere: {OURS} on grid-2x2, ppo on grid-2x2." in table

    publish.publish(run, tmp_path / "results")
    kept = tmp_path / "results" / "small" / final_controllers.FOLDER
    assert file_of(kept, OURS, 0, PRICES).read_bytes() == file_of(folder, OURS, 0, PRICES).read_bytes()
    with pytest.raises(DataError, match=r"There is no .*cpo-seed0\.npz"):
        control_stage.control(chosen(*argv, controllers=("cpo",)), run, console)
