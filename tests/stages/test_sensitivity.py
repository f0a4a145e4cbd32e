"""The sensitivity tables on a small recording: every setting measured from saved artefacts, and the laws they obey."""

import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from data import loader
from data.errors import DataError
from experiments.cli import options
from experiments.evaluation import results
from experiments.methods.forecasting import persistence
from experiments.presets import PRESETS
from experiments.stages import detection, forecasting, sensitivity, sensitivity_detect
from experiments.stages import forecast as forecast_stage
from experiments.tables import paper
from stream_jax.types import Forecast, Interval
from tests.small_city import write_small_city

QUIET = Console(quiet=True)
load_trained = sensitivity.load_trained


class FakeScored(NamedTuple):
    calibration: np.ndarray
    test: np.ndarray
    weight: np.ndarray


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A forecast stage of the simplest reference, which compiles fast; tables do not care who forecast."""
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data")
    argv = ["--preset", "smoke", "--methods", "persistence"]
    forecast_stage.forecast(options.parse(argv), out, QUIET)
    return out, argv


@pytest.fixture(autouse=True)
def reference_instead_of_network(monkeypatch):
    def trained(dataset, cfg, out) -> list[sensitivity.Trained]:
        config = persistence.PersistenceConfig()
        data = jax.tree.map(jnp.asarray, dataset.forecast_data())
        params = persistence.fit(jax.random.key(0), data, config)
        alone = lambda origins: jax.tree.map(lambda x: x[None], persistence.predict(params, data, origins, config))  # noqa: E731
        return [sensitivity.Trained(0, data, alone)]

    monkeypatch.setattr(sensitivity, "load_trained", trained)


def measured(run, name: str, settings: tuple[str, ...], monkeypatch) -> dict[tuple[str, str], float]:
    """The table's rows, measured for some of its settings."""
    out, argv = run
    short = paper.TABLES[name]._replace(rows={key: paper.TABLES[name].rows[key] for key in settings})
    monkeypatch.setitem(paper.TABLES, name, short)
    args = options.parse([*argv, "--table", name])
    rows = results.read_rows(sensitivity.table(args, out, QUIET))
    return {(row["setting"], row["metric"]): row["value"] for row in rows if row["method"] == name}


@pytest.mark.slow
def test_step_sizes_are_measured_on_the_saved_forecasts(run, monkeypatch):
    monkeypatch.setattr(forecasting, "fit_fold", lambda *_: pytest.fail("nothing needs to be fitted again"))
    found = measured(run, "aci", ("0.05", "0.2"), monkeypatch)
    # A larger step moves the level, and with it the width, more at every step.
    assert found["0.2", "oscillation"] > found["0.05", "oscillation"] > 0.0 and found["0.05", "RIW"] > 0.0
    rows = results.read_rows(run[0] / "results" / "small" / "forecast.jsonl")
    (stage,) = [row["value"] for row in rows if (row["metric"], row["fold"]) == ("coverage", "all")]
    assert found["0.05", "coverage"] == pytest.approx(stage, abs=1e-6)  # the step size that the stage used


@pytest.mark.slow
def test_the_smallest_cluster_has_the_size_below_which_clusters_merge(run, monkeypatch):
    found = measured(run, "clusters", ("5",), monkeypatch)
    assert 5 <= found["5", "smallest cluster"] <= 9  # nine cells; clusters below five are merged


@pytest.mark.slow
def test_without_a_trained_forecaster_one_sentence_says_what_to_run(run):
    with pytest.raises(DataError, match="run the forecast stage first"):
        load_trained(loader.load(run[0] / "data"), PRESETS["smoke"], run[0])


def outcome(width: list[float]) -> forecasting.Outcome:
    upper = np.array(width).reshape(1, -1, 1, 1)
    zero = np.zeros_like(upper)
    cluster = np.array([[0, 0, 1]])
    return forecasting.Outcome(Forecast(zero, zero), Interval(zero, upper), cluster, zero[0], zero[0], zero[0])


@pytest.mark.slow
def test_unrest_is_the_mean_step_over_the_mean_width_and_skips_infinite_intervals():
    # Steps 2 and 4 (the infinite one breaks the chain), widths 2, 4, 8, 4: (2 + 4) / 2 over 18 / 4.
    assert sensitivity.unrest([outcome([2, 4, np.inf, 8, 4])]) == pytest.approx([3 / 4.5])
    assert sensitivity.smallest_cluster([outcome([1.0])]) == [1]


@pytest.mark.slow
def test_a_ring_of_five_is_within_two_hops_of_itself():
    senders, receivers = np.arange(5), (np.arange(5) + 1) % 5
    one, two = (sensitivity_detect.within_hops(senders, receivers, hops) for hops in (1, 2))
    assert one.sum(axis=1).tolist() == [3] * 5 and two.all()


@pytest.mark.slow
def test_p_values_that_move_together_have_block_correlation_one_and_independent_ones_none():
    rng = np.random.default_rng(0)
    near = np.ones((6, 6), bool)
    shared = np.repeat(rng.uniform(size=(80, 1)), 6, axis=1)
    # 80 blocks of one step with six equal cells: every pair in a block is equal.
    assert sensitivity_detect.block_correlation([shared], near, 1) == pytest.approx(1.0)
    alone = rng.uniform(size=(80, 6))
    # 80 blocks of 15 pairs; the mean of 1200 products of standard normals has deviation 0.03: three of them.
    assert abs(sensitivity_detect.block_correlation([alone], near, 1)) < 0.09


@pytest.mark.slow
def test_trimming_more_only_adds_rejections():
    rng = np.random.default_rng(1)
    scored = FakeScored(rng.normal(size=(300, 8)), rng.normal(1.5, 1.5, size=(40, 8)), np.ones((40, 8)))
    sets = [sensitivity_detect.trimmed_rejections(scored, float(tau)) for tau in paper.TABLES["trimming"].rows]
    assert all((smaller <= larger).all() for smaller, larger in itertools.pairwise(sets))
    assert sets[0].sum() < sets[-1].sum()


def hand_made(seed: int) -> detection.Scored:
    """A fold of forty steps and nine cells, of which the first is anomalous at every second step."""
    rng = np.random.default_rng(seed)
    kind = np.zeros((40, 9), np.int8)
    kind[::2, 0] = 1
    test = np.abs(rng.normal(size=kind.shape)) + 8.0 * (kind > 0)
    calibration = np.abs(rng.normal(size=(500, 9)))
    no, yes = np.zeros(calibration.shape, bool), np.ones(test.shape, bool)
    ranked = {"calibration": calibration, "test": test, "flow_calibration": calibration, "flow_test": test}
    known = {
        "calibration_label": no,
        "kind": kind,
        "judged": yes,
        "weight": np.ones(test.shape),
        "mean": 0.0,
        "sd": 1.0,
    }
    when = {"time": np.arange(40), "outage": no[:40, 0], "calibration_outage": no[:, 0]}
    return detection.Scored(**ranked, **known, **when, first_residual=test)


@pytest.mark.slow
def test_tables_from_scores_have_every_setting_and_a_mean_that_no_block_moves(tmp_path, monkeypatch):
    dataset = loader.load(write_small_city(tmp_path / "data"))
    cfg = dataclasses.replace(PRESETS["smoke"], seeds=1)
    scored = {"clean": [hand_made(1)], "injected": [hand_made(2), hand_made(3)]}
    monkeypatch.setattr(sensitivity_detect, "saved_scores", lambda *_: scored)
    trimmed = sensitivity_detect.trimming(dataset, cfg, tmp_path, QUIET)
    recall = [row["value"] for row in trimmed if row["metric"] == "recall"]
    assert len(recall) == 5 and recall == sorted(recall) and recall[-1] == 1.0
    rows = sensitivity_detect.dependence(dataset, cfg, tmp_path, QUIET)
    assert {row["setting"] for row in rows} == set(paper.TABLES["dependence"].rows)
    for name in ("FDR of BH", "FDR of BY"):
        found = [row for row in rows if row["metric"] == name]
        assert len({row["value"] for row in found}) == 1 and all(row["upper"] >= row["value"] for row in found)
