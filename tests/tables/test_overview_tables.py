"""The overviews name the best of each recording; only what keeps its false-discovery rate can be the best detector."""

from experiments.evaluation import results
from experiments.tables import overview_tables

COMMON = {"dataset": "tdrive", "data": "real", "data_hash": "a", "preset": "default", "device": "cpu", "seed": 0}


def cells(page, method):
    return [line.split(" | ")[1:] for line in page.splitlines() if line.startswith(f"| {method} |")]


def test_forecasters_stand_beside_each_other_by_recording_with_the_best_in_bold_and_a_star_where_they_differ(tmp_path):
    for name, (mine, theirs) in {"tdrive": (0.3, 0.4), "porto-twin": (0.5, 0.45)}.items():
        data = {"data": "synthetic" if "twin" in name else "real"}
        rows = [
            COMMON | data | {"stage": "forecast", "fold": "all", "method": method, "metric": metric, "value": value}
            for method, value in (("pu_gat_plus", mine), ("stid", theirs))
            for metric in ("nrmse", "crps")
        ]
        compared = COMMON | data | {"stage": "forecast", "fold": "all", "method": "comparison"}
        lower = 0.05 if name == "tdrive" else -0.1  # above zero: worse than ours beyond doubt
        rows += [
            compared | {"metric": f"nrmse_stid_minus_ours_{end}", "value": value}
            for end, value in (("lower", lower), ("upper", 0.15))
        ]
        results.write_rows(tmp_path / name / "forecast.jsonl", rows)
    page = overview_tables.render(tmp_path)
    assert page.index("tdrive (real)") < page.index("porto-twin (synthetic)")
    assert cells(page, "stid")[0] == ["0.400*", "**0.450** |"]
    assert cells(page, "pu_gat_plus")[0] == ["**0.300**", "0.500 |"]


def test_the_best_detector_keeps_its_false_discovery_rate(tmp_path):
    arms = {"full+by": (0.5, 0.01), "paper_trim+by": (0.9, 0.4), "pca": (0.4, 0.03)}
    rows = [
        COMMON
        | {"stage": "detect", "method": arm, "scenario": "injected", "arm": arm, "metric": metric, "value": value}
        | {"level": None if arm == "pca" else 0.05}
        for arm, values in arms.items()
        for metric, value in zip(("f1", "fdr_step"), values, strict=True)
    ]
    rows += [rows[-1] | {"metric": "f1_minus_ours", "value": -0.1, "lower": -0.2, "upper": -0.05}]
    rows += [rows[0] | {"level": 0.2, "value": 0.99}]  # of another level
    results.write_rows(tmp_path / "tdrive" / "detect.jsonl", rows)
    page = overview_tables.render(tmp_path)
    assert cells(page, "full+by") == [["**0.500** (0.010) |"]]
    assert cells(page, "paper_trim+by") == [["0.900? (0.400) |"]]
    assert cells(page, "pca") == [["0.400* (0.030) |"]]


def test_without_rows_there_is_nothing_to_show(tmp_path):
    assert overview_tables.render(tmp_path) == ""
