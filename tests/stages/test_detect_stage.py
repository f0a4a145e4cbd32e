"""The detect stage end to end on a small recording, on top of a forecast stage run with the smallest networks."""

import dataclasses
import math
import shutil

import chex
import jax
import numpy as np
import pytest
from rich.console import Console

from data import loader
from data.errors import DataError
from experiments import presets as configs
from experiments.cli import options
from experiments.evaluation import decisions, results
from experiments.stages import detect as detect_stage
from experiments.stages import detection, detectors, system
from experiments.stages import forecast as forecast_stage
from experiments.tables import ours
from stream_jax.flows import crfn_by, preparation
from stream_jax.gnn import pu_gat_plus
from tests.small_city import write_small_city

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    write_small_city(out / "data")
    args = options.parse(["--preset", "smoke", "--seeds", "1", "--methods", "pu_gat_plus"])
    forecast_stage.forecast(args, out, QUIET)
    return out, args, detect_stage.detect(args, out, QUIET)


RIVALS = [
    "pca",
    "isolation_forest:counts",
    "usad",
    "student_t_fitted",
    "flow_all_leads",
    "flow_clipped",
    "flow_quantile",
]


@pytest.fixture(scope="module")
def compared(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    shutil.copytree(run[0], out, dirs_exist_ok=True)
    args = options.parse(["--preset", "smoke", "--seeds", "1", "--detectors", *RIVALS])
    return out, args, detect_stage.detect(args, out, QUIET)


@pytest.mark.slow
def test_rivals_are_set_beside_us_and_our_own_rows_stay_as_they_were(run, compared):
    rows = results.read_rows(compared[2])
    assert [row for row in rows if row["method"] == "crfn_by"] == results.read_rows(run[2])
    expected = {
        *RIVALS,
        *(f"{name}+conformal_by" for name in RIVALS),
        *(f"{name}+by" for name in ("student_t_fitted", "flow_all_leads", "flow_clipped", "flow_quantile")),
    }
    assert {row["method"] for row in rows} == expected | {"crfn_by"}


@pytest.mark.slow
def test_every_rival_has_the_same_metrics_as_we_have(compared):
    rows = [row for row in results.read_rows(compared[2]) if row["scenario"] == "injected"]
    quality = {"fdr_step", "fdr_given_rejection", "fdr_pooled", "precision", "recall", "f1"}
    for name in RIVALS:
        mine = [row for row in rows if row["method"] == name]
        assert {row["metric"] for row in mine} == quality | {"average_precision", "vus_pr", "f1_minus_ours"}
        levels = {row["level"] for row in mine if row["metric"] == "recall"}
        assert levels == ({None} if name.split(":")[0] in ours.OWN_THRESHOLD else set(decisions.LEVELS))
        for row in mine:
            least = -1.0 if row["metric"] == "f1_minus_ours" else 0.0
            assert row["value"] == "nan" or least <= row["value"] <= 1.0
    for ranking in ("weighted", "score", "residual"):
        assert {row["metric"] for row in rows if row["arm"] == ranking} == {"average_precision", "vus_pr"}


@pytest.mark.slow
def test_rivals_are_scored_exactly_where_we_are(run, compared):
    dataset, cfg = loader.load(compared[0] / "data"), configs.experiment_config(compared[1])
    fold = dataset.num_folds - 1
    place = detection.place_of(dataset, fold, 0, cfg, compared[0], QUIET)
    with pytest.MonkeyPatch.context() as patch:  # all of them are on disk
        patch.setattr(detection, "read_upstream", lambda _: pytest.fail("a finished fold was read again"))
        scored = detect_stage.score_fold(place, ["clean", "injected"])
        found = detectors.score_fold(RIVALS, place, scored)
    for name in RIVALS:
        for scenario, one in scored.items():
            np.testing.assert_array_equal(np.isnan(found[name][scenario].test), np.isnan(one.test))
            np.testing.assert_array_equal(np.isnan(found[name][scenario].calibration), np.isnan(one.calibration))


@pytest.mark.slow
def test_the_flow_by_its_own_law_is_our_flow_alone_at_single_steps(run, compared):
    dataset, cfg = loader.load(run[0] / "data"), configs.experiment_config(run[1])
    fold = dataset.num_folds - 1
    place = detection.place_of(dataset, fold, 0, cfg, run[0], QUIET)
    upstream, flow = detection.read_upstream(place), detection.load_finished(place).params
    alone_cfg = dataclasses.replace(cfg, flow=cfg.flow.alone())
    found = detection.score(place, upstream, flow, "clean")
    alone = detection.score(place._replace(cfg=alone_cfg), upstream, flow, "clean")
    np.testing.assert_array_equal(found.flow_test, alone.test)
    np.testing.assert_array_equal(found.flow_calibration, alone.calibration)
    np.testing.assert_array_equal(alone.weight, 1.0)
    assert not np.allclose(found.test, alone.test, equal_nan=True) and found.weight.max() > 1.5
    rows = results.read_rows(compared[2])

    def value(metric: str, **wanted: object) -> float:
        (row,) = [row for row in rows if (wanted | {"metric": metric, "scenario": "injected"}).items() <= row.items()]
        return row["value"]

    recall = [value("recall", method="flow_quantile", level=level) for level in decisions.LEVELS]
    assert recall == sorted(recall)  # a larger tail probability rejects more


def test_thresholds_know_no_level_in_the_paper_tables_either():
    assert set(ours.OWN_THRESHOLD) == set(detectors.WITH_THRESHOLD)
    assert ours.query("anomaly", "USAD", "F1", "tdrive").where["level"] is None
    assert ours.query("anomaly", "pca:counts", "F1", "tdrive").where["level"] is None
    assert ours.query("anomaly", "Flow (no conf.)", "F1", "tdrive").where["level"] == 0.05


def test_an_unknown_detector_is_refused_and_none_is_the_default():
    assert detectors.check_detectors(None) == []
    with pytest.raises(ValueError, match="no detector forest; there are isolation_forest"):
        detectors.check_detectors(["forest"])


@pytest.mark.slow
def test_every_arm_and_level_has_both_false_discovery_rates(run):
    rows = results.read_rows(run[2])
    for arm in decisions.ARMS:
        for level in decisions.LEVELS:
            for metric in ("fdr_step", "fdr_pooled", "recall"):
                wanted = {"scenario": "injected", "arm": arm, "level": level, "metric": metric}
                (row,) = [row for row in rows if wanted.items() <= row.items()]
                assert 0.0 <= row["value"] <= 1.0 and row["data"] == "synthetic"


@pytest.mark.slow
def test_by_never_finds_more_than_bh_with_the_same_p_values(run):
    rows = results.read_rows(run[2])
    recall = {
        (r["arm"], r["level"]): r["value"] for r in rows if r["scenario"] == "injected" and r["metric"] == "recall"
    }
    for level in decisions.LEVELS:
        assert recall["full+by", level] <= recall["full+bh", level]


@pytest.mark.slow
def test_null_uniformity_is_reported_with_its_test(run):
    rows = [row for row in results.read_rows(run[2]) if row["metric"] == "null_rate"]
    assert {row["level"] for row in rows} == {0.001, 0.01, 0.05, 0.1}
    assert {row["arm"] for row in rows} == {"full", "gaussian", "student_t"}
    assert all(0.0 <= row["binomial_p"] <= 1.0 and math.isfinite(row["upper"]) for row in rows)


@pytest.mark.slow
def test_null_p_values_are_tested_by_blocks_and_outages_counted(run):
    found = {row["metric"]: row["value"] for row in results.read_rows(run[2]) if row["scenario"] == "clean"}
    assert 0.0 < found["null_block_excess_p"] <= 1.0 and 0.0 < found["null_block_uniform_p"] <= 1.0
    assert found["outage_steps"] >= 0 and found["calibration_outage_steps"] >= 0


@pytest.mark.slow
def test_the_train_part_speaks_through_the_anchor_and_later_parts_through_the_network(run):
    out, args, _ = run
    dataset, cfg = loader.load(out / "data"), configs.experiment_config(args)
    fold = dataset.num_folds - 1
    place = detection.place_of(dataset, fold, 0, cfg, out, QUIET)
    louder = jax.tree.map(lambda leaf: 1.5 * leaf, place.upstream.params)._replace(scaler=place.upstream.params.scaler)
    places = (place, place._replace(upstream=place.upstream._replace(params=louder)))
    leads = cfg.flow.leads
    seen = [np.asarray(detection.fitting_of(one, detection.read_upstream(one), leads).rows.z) for one in places]
    start = preparation.warm_up(detection.parts_of(dataset, fold))
    num_train = dataset.part("train", fold)[1] - start
    np.testing.assert_allclose(seen[0][: num_train - 4], seen[1][: num_train - 4], rtol=1e-4, atol=1e-5)
    assert not np.allclose(seen[0][num_train + 4 :], seen[1][num_train + 4 :])


def test_ranks_among_themselves_are_the_shares_at_least_as_large():
    # Each 3 has itself, the other 3 and the 5 at least as large: 3 of 4.
    found = decisions.own_ranks(np.array([[3.0, 1.0], [5.0, np.nan], [3.0, np.nan]]))
    np.testing.assert_array_equal(found, [[0.75, 1.0], [0.25, np.nan], [0.75, np.nan]])


@pytest.mark.slow
def test_figures_are_drawn(run):
    for name in ("fdr_and_power", "null_p_values", "recall_by_kind", "detections"):
        assert (run[0] / "detect" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_second_run_trains_no_flow_and_writes_the_same_rows(run, monkeypatch):
    out, args, rows_file = run
    before = rows_file.read_text()
    monkeypatch.setattr(detection.crfn_by, "fit", lambda *_: pytest.fail("a finished fold was trained again"))
    monkeypatch.setattr(detection.pu_gat_plus, "predict", lambda *_: pytest.fail("the recording was forecast again"))
    detect_stage.detect(args, out, QUIET)
    assert rows_file.read_text() == before


def upstream_of(out, args):
    """The city's side of a controller of two signals, as stage control puts it together."""
    dataset, cfg = loader.load(out / "data"), configs.experiment_config(args)
    weights, adjacency = np.eye(2, 9, dtype=np.float32), np.eye(2, dtype=np.float32)
    return system.upstream_system(dataset, out, 0, cfg, weights, adjacency, QUIET)


@pytest.mark.slow
def test_stage_control_reads_the_flow_and_the_forecasts_and_makes_neither(run, monkeypatch):
    out, args, _ = run
    for module, name in ((crfn_by, "fit"), (crfn_by, "judge"), (pu_gat_plus, "fit_with_history")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("something was trained or scored again"))
    monkeypatch.setattr(pu_gat_plus, "predict", lambda *_: pytest.fail("the recording was forecast again"))
    found = upstream_of(out, args)
    dataset, cfg = loader.load(out / "data"), configs.experiment_config(args)
    place = detection.place_of(dataset, dataset.num_folds - 1, 0, cfg, out, QUIET)
    kept = detection.load_finished(place)
    chex.assert_trees_all_equal(found.params.flow, kept.params)
    scored = detect_stage.score_fold(place, ["clean"])["clean"]
    np.testing.assert_array_equal(
        found.params.calibration.scores, np.sort(scored.calibration[~np.isnan(scored.calibration)])
    )


@pytest.mark.slow
def test_stage_control_without_stage_detect_says_what_to_run(run, tmp_path):
    out, args, _ = run
    for folder in ("data", "forecast"):
        shutil.copytree(out / folder, tmp_path / folder)
    with pytest.raises(DataError, match="run the detect stage first"):
        upstream_of(tmp_path, args)


def test_detecting_without_a_forecaster_says_what_to_run(tmp_path):
    write_small_city(tmp_path / "data")
    args = options.parse(["--preset", "smoke"])
    with pytest.raises(ValueError, match="run the forecast stage first"):
        detect_stage.detect(args, tmp_path, QUIET)
