"""Claims about trained systems on disk: they come back to the bit, and what is not whole or not ours is refused."""

import dataclasses
import json
import shutil

import chex
import jax
import numpy as np
import pytest

from stream_jax import checkpoint
from stream_jax.checkpoint import DetectorCheckpoint, ForecasterCheckpoint, System
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.gnn.attention import AttentionConfig
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.pipeline import SystemConfig
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.aggregation import AggregationConfig
from stream_jax.rl.lyapunov import LyapunovConfig
from stream_jax.task import Limits
from tests.live_city import SYSTEM, random_system

HASH = "a" * 64


@pytest.fixture(scope="module")
def system() -> System:
    params, conformal = random_system()
    return System(params, conformal, SYSTEM, HASH)


@pytest.fixture(scope="module")
def saved(system, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "system"
    checkpoint.save(folder, system)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved, tmp_path / "system")


def change_meta(folder, **changes):
    path = folder / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_system_comes_back_to_the_bit(system, saved):
    loaded = checkpoint.load(saved, HASH, SYSTEM)
    # Without the experts of DtACI one array has no entries; it has to come back as well.
    assert system.conformal.expert_level.size == 0
    assert jax.tree.structure(loaded.params) == jax.tree.structure(system.params)
    chex.assert_trees_all_equal(loaded[:2], system[:2])
    chex.assert_trees_all_equal_dtypes(loaded[:2], system[:2])
    assert loaded.config == SYSTEM and loaded.data_hash == HASH


def test_a_checkpoint_does_not_tell_where_it_was_written(saved):
    here = str(saved.parent).encode()
    assert not [path for path in saved.rglob("*") if path.is_file() and here in path.read_bytes()]


def test_a_forecaster_comes_back_to_the_bit_and_replaces_an_older_one(system, tmp_path):
    folder = tmp_path / "forecaster"
    kept = ForecasterCheckpoint(system.params.forecaster, system.conformal, SYSTEM.forecaster, HASH)
    older = jax.tree.map(lambda leaf: leaf + leaf, kept.params)
    checkpoint.save_forecaster(folder, kept._replace(params=older))
    checkpoint.save_forecaster(folder, kept)
    loaded = checkpoint.load_forecaster(folder, HASH)
    chex.assert_trees_all_equal(loaded[:2], kept[:2])
    assert loaded.config == SYSTEM.forecaster
    assert [path.name for path in tmp_path.iterdir()] == ["forecaster"]  # no draft is left behind


def test_a_detector_comes_back_to_the_bit_and_is_no_forecaster(system, tmp_path):
    folder, params = tmp_path / "detector", system.params
    kept = DetectorCheckpoint(params.flow, params.factor, params.calibration, SYSTEM.flow, HASH)
    checkpoint.save_detector(folder, kept)
    loaded = checkpoint.load_detector(folder, HASH)
    chex.assert_trees_all_equal(loaded[:3], kept[:3])
    assert loaded.config == SYSTEM.flow and loaded.data_hash == HASH
    with pytest.raises(ValueError, match="it is a detector"):
        checkpoint.load_forecaster(folder)
    with pytest.raises(ValueError, match="run the detect stage first"):
        checkpoint.load_detector(tmp_path / "none")


def test_a_folder_of_something_else_is_not_overwritten(system, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="no checkpoint"):
        checkpoint.save(tmp_path, system)
    assert (tmp_path / "thesis.txt").exists()


def test_the_folder_says_what_it_is_and_what_made_it(saved):
    meta = json.loads((saved / "checkpoint.json").read_text())
    assert (meta["format"], meta["kind"], meta["data_hash"]) == (checkpoint.FORMAT, "system", HASH)
    assert meta["versions"]["jax"] == jax.__version__
    assert set(meta["versions"]) == {"jax", "flax", "stream_jax"}


@pytest.mark.parametrize("what", ["json", "arrays"])
def test_a_truncated_file_is_noticed(copied, what):
    files = [copied / "checkpoint.json"] if what == "json" else (copied / "arrays").rglob("*")
    largest = max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.load(copied)


def test_arrays_that_are_not_those_written_are_refused(copied):
    change_meta(copied, digest="0" * 64)
    with pytest.raises(ValueError, match="not those that were written"):
        checkpoint.load(copied)


def test_a_missing_system_is_named(tmp_path):
    with pytest.raises(ValueError, match="There is no system checkpoint"):
        checkpoint.load(tmp_path)


def test_another_format_and_another_kind_are_refused(copied):
    change_meta(copied, format=1)
    with pytest.raises(ValueError, match="system of format 1, not a system of format 2"):
        checkpoint.load(copied)
    with pytest.raises(ValueError, match="not a forecaster"):
        checkpoint.load_forecaster(copied)


def test_a_system_of_other_data_is_refused(saved):
    with pytest.raises(ValueError, match="was trained on data aaaaaaaaaaaa, not on bbbbbbbbbbbb"):
        checkpoint.load(saved, "b" * 64)


def test_a_system_of_another_config_is_refused_and_the_difference_named(saved):
    context = dataclasses.replace(SYSTEM.flow.context, lags=9)
    other = dataclasses.replace(SYSTEM, flow=dataclasses.replace(SYSTEM.flow, context=context))
    with pytest.raises(ValueError, match=r"flow\.context\.lags is 2, not 9"):
        checkpoint.load(saved, HASH, other)


def test_a_config_with_a_field_that_nobody_knows_is_refused(copied):
    config = json.loads((copied / "checkpoint.json").read_text())["config"]
    change_meta(copied, config=config | {"surprise": 1})
    with pytest.raises(ValueError, match="SystemConfig has other fields"):
        checkpoint.load(copied)


CONFIGS = (
    SystemConfig(),
    SYSTEM,
    ForecasterConfig(targets=(0, 2), attention=AttentionConfig(mode="none", self_bias=0.5), trend="seasonal"),
    ConformalConfig(method="dtaci", target=0.2),
    AggregationConfig(length=3.0),
    AgentConfig(lyapunov=LyapunovConfig(hidden=(8, 4))),
    AgentConfig(judged_by=Limits(queue=7.0)),
)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_configs_survive_json(config):
    plain = json.loads(json.dumps(dataclasses.asdict(config)))
    back = checkpoint.config_from_plain(type(config), plain)
    assert back == config and hash(back) == hash(config)


WRONG = ({"layers": "three"}, {"layers": 2.5}, {"trend": "sideways"}, {"dual_stream": 1}, {"targets": 0})


@pytest.mark.parametrize("change", WRONG, ids=lambda change: next(iter(change)))
def test_values_of_the_wrong_type_are_refused(change):
    plain = json.loads(json.dumps(dataclasses.asdict(ForecasterConfig()))) | change
    with pytest.raises((ValueError, TypeError)):
        checkpoint.config_from_plain(ForecasterConfig, plain)


def test_a_whole_number_may_stand_for_a_float_but_not_a_flag():
    plain = dataclasses.asdict(ConformalConfig()) | {"step_size": 1}
    assert checkpoint.config_from_plain(ConformalConfig, plain).step_size == np.float64(1.0)
    with pytest.raises(ValueError, match="is no"):
        checkpoint.config_from_plain(ConformalConfig, plain | {"step_size": True})
