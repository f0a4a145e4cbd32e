"""Tables hold what the rows hold: the README block, «paper | ours», and nothing where nothing was run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import figures
from experiments.evaluation import results
from experiments.tables import control_tables, headline, ours, paper, readme_tables
from experiments.tables import render as tables

ROOT = Path(__file__).parents[2]
COMMON = {"dataset": "tdrive", "data": "synthetic", "preset": "smoke", "device": "cpu", "data_hash": "h"}


def forecast_row(method: str, metric: str, value: float, seed: int = 0) -> dict:
    return COMMON | {
        "stage": "forecast",
        "fold": "all",
        "method": method,
        "seed": seed,
        "metric": metric,
        "value": value,
    }


def cells(text: str, row: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


PAGES = {
    "README.md": "headline",
    "docs/results/index.md": "overview",
    "docs/results/forecasting.md": "forecasting",
    "docs/results/detection.md": "detection",
    "docs/results/control.md": "control",
    "docs/results/speed.md": "speed",
    "docs/results/paper.md": "paper",
    "docs/concepts/road.md": "road",
    "docs/results/resco.md": "resco",
}  # every page with a generated block


@pytest.mark.parametrize(("page", "block"), PAGES.items())
def test_the_readme_shows_exactly_what_the_results_rows_say(page, block):
    shown = tables.shown((ROOT / page).read_text(), block)
    assert shown.strip() == tables.BLOCKS[block](ROOT / "results").strip(), (
        "run: python experiments/tables.py --write README.md docs/results/*.md"
    )


def test_every_block_has_its_page():
    assert set(PAGES.values()) == set(tables.BLOCKS)


def test_writing_renews_the_blocks_of_a_page_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n\n<!-- headline: start -->\n<!-- headline: end -->\nb\n")
    tables.write(page, tmp_path)
    once = page.read_text()
    assert once.startswith("a\n\n<!-- headline: start -->\n| |") and once.endswith("<!-- headline: end -->\nb\n")
    tables.write(page, tmp_path)
    assert page.read_text() == once


def test_the_headline_says_on_what_it_was_measured_and_leaves_open_what_was_not(tmp_path):
    rows = [forecast_row("pu_gat_plus", "nrmse_h4", value, seed) for seed, value in enumerate((0.3, 0.5))]
    results.write_rows(tmp_path / "tdrive" / "forecast.jsonl", rows)
    text = headline.render(ours.load(tmp_path))
    assert (
        "| NRMSE, one hour ahead | 0.254 | 0.400 ± 1.271 | tdrive, synthetic data; preset smoke, 2 seeds, cpu |" in text
    )
    assert "| safe episodes | 0.952 ± 0.021 |  | not run |" in text
    assert "| relative width of the intervals | 0.43 † |" in text


def test_the_headline_tells_episodes_from_the_hours_that_they_share(tmp_path):
    driven = {"dataset": "synthetic", "preset": "default", "data": "synthetic", "stage": "control", "level": "heavy"}
    row = driven | {"method": "lycon_wrl_plus", "metric": "safety", "value": 0.5, "lower": 0.375, "upper": 0.625}
    results.write_rows(tmp_path / headline.ROAD / "control.jsonl", [row | {"episodes": 180, "hours": 60}])
    text = headline.render(ours.load(tmp_path))
    assert "| 0.500 [0.375, 0.625] |" in text and "180 episodes of 60 test hours |" in text


def test_the_best_mean_is_bold_and_its_interval_is_over_seeds(tmp_path):
    rows = [
        forecast_row(method, metric, value, seed)
        for metric in (*readme_tables.FORECAST, "noise_floor")
        for method, seed, value in (("ref", 0, 0.5), ("ours", 0, 0.3), ("ours", 1, 0.5))
    ]
    results.write_rows(tmp_path / "tdrive" / "forecast.jsonl", rows)
    page = readme_tables.render(tmp_path)
    # Two values 0.2 apart: mean 0.4 with a standard error of 0.1, and Student's 97.5 % point of one degree is 12.71.
    assert "**0.400 ± 1.271**" in page and "| ref | 1 | 0.500 |" in page
    assert "synthetic data" in page


@pytest.mark.parametrize(("rival", "said"), [(0.5, "Runner-up by NRMSE: stid"), (0.3, "Ahead of pu_gat_plus by")])
def test_the_forecast_table_names_the_nearest_rival_also_when_it_leads(tmp_path, rival, said):
    scores = {"pu_gat_plus": 0.4, "pu_gat_plus:paper": 0.1, "stid": rival, "persistence": 0.9}
    rows = [
        forecast_row(method, metric, value)
        for metric in (*readme_tables.FORECAST, "noise_floor")
        for method, value in scores.items()
    ]
    rows += [
        forecast_row("comparison", f"nrmse_stid_minus_ours_{part}", value)
        for part, value in (("estimate", 0.1), ("lower", -0.02), ("upper", 0.3))
    ]
    sizes = {"parameters": 1234.0, "epochs": 12.0, "seconds_per_epoch": 5.67}
    rows += [forecast_row("stid", metric, value) for metric, value in sizes.items()]
    results.write_rows(tmp_path / "tdrive" / "forecast.jsonl", rows)
    page = readme_tables.render(tmp_path)
    assert said in page
    assert "| 1,234 | 12.0 | 5.7 | +0.100 [-0.020, +0.300] |" in page


@pytest.mark.parametrize("name", paper.TABLES)
def test_without_rows_every_cell_of_ours_is_empty_and_the_paper_is_complete(name):
    text = tables.paper_table(name, {})
    table = paper.TABLES[name]
    assert "ours: not run" in text
    for row, printed in table.rows.items():
        shown = cells(text, row)
        assert not any(shown[1::2])
        assert [bool(cell) for cell in shown[0::2]] == [cell is not None for cell in printed]


def test_a_row_of_ours_stands_beside_the_papers_number_with_its_spread(tmp_path):
    path = tmp_path / "tdrive" / "forecast.jsonl"
    results.write_rows(path, [forecast_row("pu_gat_plus", "nrmse_h4", value, k) for k, value in enumerate((0.3, 0.5))])
    results.write_rows(path, [forecast_row("persistence", "nrmse_h4", 0.7)])
    text = tables.paper_table("forecasting", ours.load(tmp_path))
    assert cells(text, "PU-GAT+")[:2] == ["0.254", "0.400 ± 1.271"]
    assert cells(text, "persistence")[:2] == ["", "0.700"]
    assert "tdrive, synthetic data, preset smoke" in text


def test_a_doubtful_number_carries_the_number_of_its_reason():
    text = tables.paper_table("anomaly", {})
    (mark,) = re.findall(r"0\.74 \[(\d)\]", text)
    assert f"[{mark}] BY rejects a subset" in text


def test_the_larger_preset_and_the_newer_data_are_shown(tmp_path):
    path = tmp_path / "tdrive" / "forecast.jsonl"
    row = forecast_row("pu_gat_plus", "nrmse_h4", 0.1)
    results.write_rows(path, [row | {"preset": "default", "value": 0.3}])
    results.write_rows(path, [row | {"preset": "default", "value": 0.2, "data_hash": "newer"}])
    results.write_rows(path, [row])
    assert [one["value"] for one in ours.load(tmp_path)["tdrive", "forecast"]] == [0.2]


def test_an_ablation_downstream_keeps_the_forecasters_number_and_one_upstream_does_not_lend_its_detections(tmp_path):
    results.write_rows(tmp_path / "tdrive" / "forecast.jsonl", [forecast_row("pu_gat_plus", "nrmse_h4", 0.3)])
    detected = {"stage": "detect", "method": "crfn_by", "scenario": "injected", "arm": "full+by", "level": 0.05}
    row = COMMON | detected | {"metric": "f1", "value": 0.6, "seed": 0}
    results.write_rows(tmp_path / "tdrive" / "detect.jsonl", [row])
    text = tables.paper_table("ablation", ours.load(tmp_path))
    nrmse, f1 = 1, 5  # columns «NRMSE, ours» and «F1, ours»
    assert [cells(text, "w/o Lyapunov")[k] for k in (nrmse, f1)] == ["0.300", "0.600"]
    assert [cells(text, "w/o dual stream")[k] for k in (nrmse, f1)] == ["", ""]


def test_the_twins_of_the_cities_stand_in_a_table_of_their_own(tmp_path):
    for folder, value in (("porto", 1.5), ("porto-twin", 2.5)):
        row = forecast_row("pu_gat_plus", "efficiency_h4", value)
        results.write_rows(tmp_path / folder / "forecast.jsonl", [row | {"dataset": "porto"}])
    porto = 5  # column «Porto, ours»
    assert cells(tables.paper_table("cross_dataset", ours.load(tmp_path)), "PU-GAT+")[porto] == "1.500"
    assert cells(tables.paper_table("cross_dataset", ours.load(tmp_path), variant="-twin"), "PU-GAT+")[porto] == "2.500"


def test_gamma_is_summarised_over_heads_seeds_and_streams(tmp_path):
    path = tmp_path / "tdrive" / "forecast.jsonl"
    rows = [
        forecast_row("pu_gat_plus:unconstrained", f"gamma/trend/layer_1/head_{k}", value, 0)
        for k, value in enumerate((-1.0, 1.0, 2.0, 2.0))
    ]
    results.write_rows(path, rows)
    text = tables.paper_table("gamma", ours.load(tmp_path))
    # Mean 1; squared deviations 4 + 0 + 1 + 1 over three degrees of freedom: sqrt 2; one of four is negative.
    assert cells(text, "1")[5] == "1.000" and cells(text, "1")[7] == "1.414"
    assert cells(text, "sign flips")[5] == "0.250"


def test_precision_is_one_minus_the_pooled_false_discovery_proportion(tmp_path):
    row = {"stage": "detect", "method": "crfn_by", "scenario": "injected", "arm": "full+by", "level": 0.05, "seed": 0}
    results.write_rows(tmp_path / "tdrive" / "detect.jsonl", [COMMON | row | {"metric": "fdr_pooled", "value": 0.25}])
    assert cells(tables.paper_table("anomaly", ours.load(tmp_path)), "CRFN-BY")[1] == "0.750"


def test_the_floor_of_the_error_ratio_cannot_change_safety(tmp_path):
    row = COMMON | {"stage": "control", "method": "lycon_wrl_plus", "level": "heavy"}
    rows = [row | {"metric": "safety", "value": 0.5}]
    rows += [
        row | {"metric": "certificate_model_error_relative", "seed": k, "value": v} for k, v in enumerate((0.1, 0.3))
    ]
    results.write_rows(tmp_path / "tdrive" / "control.jsonl", rows)
    text = tables.paper_table("eps_floor", ours.load(tmp_path))
    assert [cells(text, floor)[5] for floor in ("0", "0.05", "0.1", "0.2")] == ["0.500"] * 4
    assert cells(text, "0.1")[1] == "0.200 ± 1.271" and cells(text, "0.2")[1] == ""


def test_control_shows_safety_with_its_interval_at_every_level(tmp_path):
    row = COMMON | {"stage": "control", "method": "fixed", "seed": 0}
    rows = [
        row | {"level": level, "metric": "safety", "value": 0.5, "lower": 0.31, "upper": 0.69}
        for level in ("moderate", "heavy")
    ]
    rows.append(row | {"level": "heavy", "metric": "travel_time", "value": 210.4})
    results.write_rows(tmp_path / "tdrive" / "control.jsonl", rows)
    page = readme_tables.render(tmp_path)
    assert page.count("| fixed |  | 50 % [31 %, 69 %] |") == 2 and "moderate" in page
    assert "| fixed |  | 50 % [31 %, 69 %] | 210.4 |" in page


def test_control_names_the_limits_and_the_simulated_steps_and_has_the_safest_first():
    common = COMMON | {"stage": "control", "level": "heavy"}
    rows = [common | {"method": name, "metric": "safety", "value": value} for name, value in (("a", 0.2), ("b", 0.6))]
    rows += [common | {"method": "a", "metric": "mean_queue", "value": 4.0, "limit": 10.0}]
    rows += [common | {"method": "b", "metric": "sumo_steps", "value": 9000, "seed": seed} for seed in (0, 1)]
    lines = control_tables.control_tables(rows)
    assert "Limits: queue at most 10." in lines[0]
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| a", "| b"))] == ["| b", "| a"]
    text = "\n".join(lines)
    assert cells(text, "b") == ["2", "60 %", "", "9,000"] and cells(text, "a") == ["", "20 %", "4.000", ""]
    rows += [common | {"method": "b", "metric": "kept_iteration", "value": kept, "seed": kept} for kept in (0, 3)]
    assert cells("\n".join(control_tables.control_tables(rows)), "b")[-1] == "0, 3"


@pytest.mark.parametrize(
    ("hours", "said"), [((), "heavy."), ((20, 20), "heavy, 20 test hours."), ((60, 20), "heavy, 20 to 60 test hours.")]
)
def test_control_says_how_many_hours_were_driven(hours, said):
    row = COMMON | {"stage": "control", "level": "heavy", "metric": "safety", "value": 0.5}
    rows = [row | {"method": name, "hours": count} for name, count in zip("ab", hours, strict=False)]
    assert control_tables.control_tables(rows or [row | {"method": "a"}])[0].endswith(said)


def test_the_best_of_each_hour_is_said_to_be_no_controller():
    row = COMMON | {"stage": "control", "level": "heavy", "metric": "safety", "value": 0.5}
    (title, *_) = control_tables.control_tables([row | {"method": control_tables.HINDSIGHT, "drives": 9}])
    assert "best_in_hindsight is no controller: of each hour the best of 9 drives." in title


def test_rows_of_another_network_have_a_table_of_their_own_and_no_say_in_the_papers(tmp_path):
    row = COMMON | {"stage": "control", "method": "fixed_time", "level": "heavy", "metric": "safety"}
    file = tmp_path / "tdrive" / "control.jsonl"
    results.write_rows(file, [row | {"value": 0.25}])
    results.write_rows(file, [row | {"value": 0.75, "network": "grid-6x6"}])
    results.write_rows(file, [row | {"value": 0.5, "network": "town"}])
    assert cells(tables.paper_table("rl", ours.load(tmp_path)), "Fixed Timing")[5] == "0.250"
    page = readme_tables.render(tmp_path)
    titles = [line for line in page.splitlines() if line.startswith("**Control")]
    assert [title.split("**")[1].partition(" data)")[2] for title in titles] == ["", " on grid-6x6", " on town"]
    assert [page.count(f"| fixed_time |  | {share} % |") for share in (25, 75, 50)] == [1, 1, 1]
    results.write_rows(file, [row | {"value": 1.0, "network": "town"}])
    assert sorted(row["value"] for row in results.read_rows(file)) == [0.25, 0.75, 1.0]


def test_differences_are_bold_where_the_interval_leaves_zero_out_and_absent_without_pairs():
    common = COMMON | {"stage": "control", "level": "heavy", "method": "a"}
    rows = [common | {"metric": "safety", "value": 0.5}]
    assert not any("Differences" in line for line in control_tables.control_tables(rows))
    for metric, value, low, high in (
        ("safety_minus_default", -0.001, -0.2, 0.2),
        ("violating_steps_minus_default", -1.0, -1.96, -0.04),
        ("reward_minus_ours", 0.01, "-Infinity", "Infinity"),  # as results write the bounds of a single hour
    ):
        rows.append(common | {"metric": metric, "value": value, "lower": low, "upper": high})
    found = cells("\n".join(control_tables.control_tables(rows)).split("Differences at heavy demand")[1], "a")
    assert found[:2] == ["+0 [-20, +20] points", "**-1.00 [-1.96, -0.04]**"] and found[6] == "+0.010 [-inf, +inf]"
    assert [cell for cell in found if not cell] == [""] * 5


def test_certificates_are_shown_for_those_that_have_one(tmp_path):
    common = COMMON | {"stage": "control", "level": "heavy"}
    rows = [common | {"method": name, "metric": "safety", "value": 0.5} for name in ("default_plan", "lycon_wrl_plus")]
    for seed, (verdict, margin) in enumerate((("certified", 0.1), ("the drift bound", 0.3))):
        of = common | {"method": "lycon_wrl_plus", "seed": seed}
        rows += [of | {"metric": "certificate_verdict", "value": verdict}]
        rows += [of | {"metric": "certificate_margin", "value": margin}]
    text = "\n".join(control_tables.control_tables(rows)).split("Certificates at heavy demand")[1]
    assert cells(text, "lycon_wrl_plus")[:2] == ["2", "1 of 2"] and "default_plan" not in text
    assert "0.200 ± 1.271" in cells(text, "lycon_wrl_plus")


def test_the_command_prints_a_table_by_name():
    argv = [sys.executable, "experiments/tables.py", "--table", "trimming"]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tab:trim_sensitivity" in said and cells(said, "0.02")[0] == "0.041 [1]"


def test_a_figure_has_a_panel_for_each_column_that_was_run_and_there_is_none_without_rows(tmp_path):
    assert figures.draw("forecasting", {}) is None
    rows = [forecast_row("pu_gat_plus", metric, 0.5) for metric in ("nrmse_h4", "coverage_h4")]
    results.write_rows(tmp_path / "tdrive" / "forecast.jsonl", rows)
    figure = figures.draw("forecasting", ours.load(tmp_path))
    assert [axes.get_xlabel() for axes in figure.axes] == ["NRMSE", "coverage"]
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert 0.5 in widths and 0.254 in widths and "synthetic data" in figure.get_suptitle()


def test_committed_rows_have_no_time_of_day():
    for path in sorted((ROOT / "results").glob("*/*.jsonl")):
        for row in results.read_rows(path):
            assert not {"time", "date", "timestamp", "started", "finished_at"} & row.keys(), path
