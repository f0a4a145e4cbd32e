"""The paper's tables as constants: complete, spot-checked against print, and the impossible cells marked as such."""

import math

import pytest

from experiments.tables import paper
from experiments.tables.paper import doubts, value


def test_all_eighteen_tables_are_there_with_one_cell_for_each_column():
    assert len(paper.TABLES) == 18
    assert len({table.label for table in paper.TABLES.values()}) == 18
    for table in paper.TABLES.values():
        assert all(len(cells) == len(table.columns) - 1 for cells in table.rows.values()), table.label


@pytest.mark.parametrize(
    ("table", "row", "column", "printed"),
    [
        ("forecasting", "PU-GAT+", "NRMSE", 0.254),
        ("forecasting", "STGCN + CP", "MAE", 1842),
        ("cross_dataset", "RIPCN", "Manhattan", 1.64),
        ("anomaly", "CRFN-BY", "event FDR", 0.038),
        ("rl", "Fixed Timing", "reward", -45.2),
        ("latency", "BY thresholding", "ms", 0.3),
        ("ablation", "w/o Lyapunov", "safety", 0.714),
        ("covariance", "Learned", "reward", 15.4),
        ("eps_floor", "0.2", "model error", 0.068),
        ("aci", "0.2", "coverage", 0.878),
        ("clusters", "30", "smallest cluster", 9),
        ("trimming", "0.1", "recall", 0.61),
        ("gamma", "3", "unconstrained", -0.23),
        ("delta", "learned", "NRMSE", 0.254),
        ("p_values", "Parametric Student-t", "FDR", 0.061),
        ("lyapunov", "Soft, 1", "safety", 0.912),
        ("dependence", "20 x 4", "FDR of BH", 0.093),
        ("datasets", "Porto, STREAM-RL", "recall", 0.71),
        ("events", "Overall", "Porto count", 156),
    ],
)
def test_a_number_of_each_table_is_as_printed(table, row, column, printed):
    assert value(table, row, column) == printed


def test_numbers_that_two_tables_share_agree():
    for row, column in (("T-Drive, STREAM-RL", "NRMSE"), ("T-Drive, STREAM-RL", "coverage")):
        assert value("datasets", row, column) == value("forecasting", "PU-GAT+", column)
    for city in ("T-Drive", "GeoLife", "Porto", "Manhattan"):
        assert value("datasets", f"{city}, STREAM-RL", "efficiency") == value("cross_dataset", "PU-GAT+", city)
    assert value("ablation", "w/o Lyapunov", "reward") == value("lyapunov", "No Lyapunov", "reward")
    assert value("p_values", "Conformalized", "FDR") == value("anomaly", "CRFN-BY", "FDR")


def test_by_cannot_find_more_events_than_bh_and_the_cells_say_so():
    by, bh = (value("anomaly", row, "event recall") for row in ("CRFN-BY", "CRFN + BH"))
    assert by > bh
    assert doubts("anomaly", "CRFN-BY", "event recall") and not doubts("anomaly", "USAD", "event recall")


def test_trimming_cannot_lower_recall_and_the_cells_say_so():
    recall = [value("trimming", row, "recall") for row in paper.TABLES["trimming"].rows]
    assert recall == sorted(recall, reverse=True)
    assert all(doubts("trimming", row, "recall") for row in paper.TABLES["trimming"].rows)


def test_violations_are_one_minus_safety_and_the_cells_say_so():
    for row in paper.TABLES["rl"].rows:
        # 0.05 stands beside 95.2 %: printed with two digits, so equal to within half a digit of the last place.
        assert math.isclose(value("rl", row, "violations per episode"), 1 - value("rl", row, "safety"), abs_tol=0.005)
        assert doubts("rl", row, "violations per episode")


def test_mae_is_one_multiple_of_nrmse_in_every_row_and_the_cells_say_so():
    ratios = [
        value("forecasting", row, "MAE") / value("forecasting", row, "NRMSE")
        for row in paper.TABLES["forecasting"].rows
    ]
    assert max(ratios) / min(ratios) < 1.007
    assert doubts("forecasting", "PU-GAT+", "MAE")


def test_intervals_are_too_narrow_for_their_errors_and_the_cells_say_so():
    # A Gaussian with the RMSE as its deviation needs 2 * 1.645 of them to cover 90 %, more to cover 91.4 %.
    assert value("forecasting", "PU-GAT+", "RIW") < 3.29 * value("forecasting", "PU-GAT+", "NRMSE") * 0.6
    assert doubts("forecasting", "PU-GAT+", "RIW")


def test_cluster_sizes_are_equal_parts_and_the_cells_say_so():
    for row in paper.TABLES["clusters"].rows:
        assert value("clusters", row, "smallest cluster") == 293 // int(row)
        assert doubts("clusters", row, "smallest cluster")


@pytest.mark.parametrize(
    ("table", "row", "column"),
    [
        ("ablation", "w/o heteroscedastic NLL", "coverage"),
        ("ablation", "w/o trimmed calibration", "NRMSE"),
        ("aci", "0.2", "coverage"),
        ("eps_floor", "0.1", "safety"),
        ("eps_floor", "0.1", "eps*"),
        ("dependence", "5 x 1", "FDR of BH"),
        ("events", "Overall", "Manhattan recall"),
    ],
)
def test_every_other_impossible_cell_is_marked(table, row, column):
    assert doubts(table, row, column)


def test_manhattan_recall_by_kind_sums_to_more_than_the_overall_recall():
    kinds = [row for row in paper.TABLES["events"].rows if row != "Overall"]
    found = sum(round(value("events", k, "Manhattan count") * value("events", k, "Manhattan recall")) for k in kinds)
    assert found == 61 and round(found / 89, 2) != value("events", "Overall", "Manhattan recall")
