"""The report: one file that opens in a real browser without a network or an error, and whose maps can be moved."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data import loader
from data.spark_etl import shards
from experiments.cli import options
from experiments.evaluation import curves, results
from experiments.report import curves as report_curves
from experiments.report import html as report_html
from experiments.report import map as report_map
from experiments.stages import detection, report
from sim.city_road import episode_folder, vehicles_per_hour
from sim.demand import DEMAND_LEVELS
from sim.network import GridConfig, build_grid
from tests import browser
from tests.small_city import write_small_city

QUIET = Console(quiet=True)
# Notes the colours, moves the slider as a finger would, notes them again; then taps a cell and another controller.
DRIVE = """
const seen = {}, city = document.getElementById("city-map"), road = document.getElementById("road-map");
const colours = () => [...city.querySelectorAll(".cell")].map((cell) => cell.style.fill).join();
const radii = () => [...road.querySelectorAll("circle")].map((spot) => spot.getAttribute("r")).join();
const move = (root, value) => {
  const slider = root.querySelector("input");
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
};
seen.cells = city.querySelectorAll(".cell").length;
move(city, 0); seen.first = colours(); seen.firstClock = city.querySelector("output").value;
move(city, 9); seen.later = colours(); seen.laterClock = city.querySelector("output").value;
seen.alarms = city.querySelectorAll(".mark.alarm").length;
seen.said = city.querySelector(".said").textContent;
city.querySelectorAll(".cell")[1].dispatchEvent(new Event("click"));
seen.saidOther = city.querySelector(".said").textContent;
const layer = city.querySelector(".layer");
layer.value = "width"; layer.dispatchEvent(new Event("change")); seen.width = colours();
move(road, 0); seen.quiet = radii(); move(road, 5); seen.busy = radii();
const pick = road.querySelector(".layer");
pick.value = 1; pick.dispatchEvent(new Event("change"));
seen.ticks = road.querySelectorAll(".tick").length; seen.filter = road.querySelector(".said").textContent;
seen.controllers = road.querySelectorAll(".layer option").length;
document.body.dataset.seen = JSON.stringify(seen);
"""


def write_forecast(out: Path, dataset: loader.TrafficDataset, fold: int) -> None:
    """A forecast that is the cell's number times the step, with an interval of one vehicle to each side."""
    origins = dataset.origins("test", fold)
    mean = (origins[:, None, None] - origins[0] + 1.0) * (1 + np.arange(9)) * np.ones((1, 4, 1))  # [W, H, N]
    arrays = {"forecast_mean": mean[None], "forecast_sigma": np.ones_like(mean)[None]}
    upper = mean[None] + 1
    upper[0, -1, 0, 0] = np.inf
    arrays |= {"interval_lower": mean[None] - 1, "interval_upper": upper, "cluster": np.zeros((1, 9), np.int32)}
    arrays |= {"target": mean, "mask": np.ones_like(mean, bool), "slot": np.zeros(mean.shape[:2], np.int32)}
    (out / "forecast").mkdir()
    with (out / "forecast" / f"pu_gat_plus-fold{fold}-0123456789.npz").open("wb") as file:
        np.savez(file, **arrays)


def write_scores(out: Path, dataset: loader.TrafficDataset, fold: int) -> None:
    """Cell 4 is far out at every step, all others are as in calibration."""
    time = dataset.origins("test", fold) + 1
    test = np.zeros((len(time), 9))
    test[:, 4] = 100.0
    calibration = np.random.default_rng(0).normal(size=(500, 9))
    fields = {"calibration": calibration, "test": test, "time": time, "first_residual": test, "mean": 0.0, "sd": 1.0}
    fields |= {"kind": np.zeros(test.shape, np.int8), "judged": np.ones(test.shape, bool)}
    fields |= {"calibration_label": np.zeros(calibration.shape, bool), "outage": np.zeros(len(time), bool)}
    fields |= {"calibration_outage": np.zeros(len(calibration), bool), "weight": np.ones(test.shape)}
    fields |= {"flow_calibration": calibration, "flow_test": test}
    assert fields.keys() == set(detection.Scored._fields)
    (out / "detect").mkdir()
    shards.write_arrays(
        out / "detect" / f"fold{fold}-seed0-clean-00.npz", **{name: np.asarray(value) for name, value in fields.items()}
    )


def write_control(out: Path) -> None:
    """Two controllers on a 2 x 2 grid; queues grow by a vehicle a step, and the learned one is filtered at step 2."""
    build_grid(GridConfig(size=2), out / "control")
    queue = np.arange(7.0)[:, None, None] * np.ones((1, 4, 8)) / 8
    rate = vehicles_per_hour(DEMAND_LEVELS["heavy"], 4)
    plain = episode_folder(out / "control", rate, "default_plan")
    learned = out / "control" / "heavy" / "lycon_wrl_plus" / "seed0"
    for folder in (plain, learned):
        folder.mkdir(parents=True)
        shards.write_arrays(folder / "000-aa.npz", queue=queue, wait=queue[..., 0] * 50)
    (learned / "decisions").mkdir()
    shards.write_arrays(learned / "decisions" / "000-aa.npz", source=np.array([0, 1, 0, 0, 0, 0]))
    row = {"dataset": "small", "data": "synthetic", "preset": "smoke", "data_hash": "h", "stage": "control"}
    row |= {"method": "lycon_wrl_plus", "level": "heavy"}
    rows = [row | {"metric": "safety", "value": 0.5, "lower": 0.1, "upper": 0.9, "episodes": 2}]
    rows += [
        row | {"metric": f"certificate_{name}", "seed": 0, "value": value}
        for name, value in (("verdict", "the drift bound"), ("identity_holds", True), ("bound_upper", 0.25))
    ]
    file = out / "results" / "small" / "control.jsonl"
    results.write_rows(file, rows)
    points = [
        row | {"seed": 0, "kind": "validation", "iteration": k, "traffic": v, "safe": v, "intervened": v}
        for k, v in enumerate((0.1, 0.4))
    ]
    curves.write(file, curves.of_learning(points))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run")
    dataset = loader.load(write_small_city(out / "data"))
    fold = dataset.num_folds - 1
    write_forecast(out, dataset, fold)
    write_scores(out, dataset, fold)
    write_control(out)
    row = {"dataset": "small", "data": "synthetic", "preset": "smoke", "device": "cpu", "data_hash": "h", "seed": 0}
    row |= {"stage": "forecast", "fold": "all"}
    rows = [
        row | {"method": method, "metric": metric, "value": value}
        for method, value in (("pu_gat_plus", 0.25), ("linear_ar", 0.5))
        for metric in ("nrmse", "mae", "coverage", "riw", "winkler", "crps", "noise_floor")
    ]
    results.write_rows(out / "results" / "small" / "forecast.jsonl", rows)
    (out / "forecast" / "config.json").write_text('{"note": "</script><b>x"}')
    report.report(options.parse(["--preset", "smoke"]), out, QUIET)
    return out


@pytest.mark.skipif(browser.BROWSER is None, reason=browser.WHY)
def test_it_opens_without_an_error_and_moving_the_slider_changes_the_map(run):
    found = browser.visit(run / "report.html", DRIVE)
    assert not found.console
    assert 'data-ready="yes"' in found.dom
    seen = json.loads(re.search(r'data-seen="([^"]*)"', found.dom)[1].replace("&quot;", '"'))
    assert seen["cells"] == 9
    assert seen["first"] != seen["later"] != seen["width"] and seen["firstClock"] != seen["laterClock"]
    assert seen["alarms"] == 1
    # Nine steps after the first, cell 8 (the busiest) was forecast (9 + 1) * 9 = 90 and drawn with one to each side.
    assert seen["said"].endswith("forecast 90.0, interval [89.0, 91.0], observed 90.0.")
    assert "forecast 20.0" in seen["saidOther"]
    assert seen["quiet"] != seen["busy"] and seen["controllers"] == 2
    assert seen["ticks"] == 1 and seen["filter"].endswith("Filter: policy.")  # filtered once, and not at step 5


def test_nothing_is_fetched_from_anywhere(run):
    page = (run / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert not re.findall(r"@import|url\(", page)
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_synthetic_data_are_called_so_before_anything_else_and_real_data_are_not(run, tmp_path):
    page = (run / "report.html").read_text()
    assert page.index("SYNTHETIC DATA") < page.index("<h1>")
    manifest = json.loads((write_small_city(tmp_path / "data") / "manifest.json").read_text())
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest | {"data": "real"}))
    real = report.report(options.parse(["--preset", "smoke"]), tmp_path, QUIET).read_text()
    assert "SYNTHETIC" not in real and "No forecasts yet" in real and "This stage has not been run" in real


def test_text_from_a_run_cannot_close_the_script_it_is_shown_in(run):
    page = (run / "report.html").read_text()
    assert "</script><b>x" not in page and "&lt;/script&gt;&lt;b&gt;x" in page


def test_headline_numbers_are_the_rows(run):
    page = (run / "report.html").read_text()
    assert '<div class="value">0.250</div><div class="beside">best reference: 0.500 (linear ar)</div>' in page


def test_the_same_run_gives_the_same_page(run):
    before = (run / "report.html").read_bytes()
    report.report(options.parse(["--preset", "smoke"]), run, QUIET)
    assert (run / "report.html").read_bytes() == before


def test_an_infinite_bound_is_null_and_a_filtered_step_keeps_its_source(run):
    city = report_map.city(run, loader.load(run / "data"))
    assert city["upper"][-1][0] is None and city["width"][-1][0] is None and city["mean"][-1][0] is not None
    learned = next(one for one in report_map.road(run / "control")["runs"] if one["name"] == "lycon_wrl_plus")
    assert learned["source"] == [-1, 0, 1, 0, 0, 0, 0] and report_map.SOURCES[1] == "projected"


def test_the_certificates_verdict_and_the_learning_curve_are_the_rows(run):
    page = (run / "report.html").read_text()
    assert "<td>lycon_wrl_plus</td><td>heavy</td><td>0</td><td>the drift bound</td><td>0.250</td>" in page
    found = json.loads(re.search(r'id="run-data">(.*?)</script>', page)[1])["curves"]
    assert [one["title"].split(": ")[1] for one in found] == [f"{t}, validation" for t in report_curves.AGENT.values()]
    assert found[0]["series"] == [{"name": "seed 0", "values": [0.1, 0.4]}]


def test_cells_are_drawn_north_up_and_keep_their_proportions():
    rings = [np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0]])]
    size, (placed,) = report_map.fitted(rings, margin=0.0)
    # Twice as wide as high: 560 by 280; the northern corner is at the top, y = 0.
    assert size == [560.0, 280.0] and placed == [[0.0, 280.0], [560.0, 280.0], [560.0, 0.0]]


def test_our_markdown_becomes_a_table_with_escaped_text():
    made = report_html.markdown("**Title** <x>\n\n| a | b |\n|---|---|\n| `m` | **1** |\n")
    assert made.startswith("<p><strong>Title</strong> &lt;x&gt;</p>")
    assert "<th>a</th><th>b</th>" in made and "<td><code>m</code></td><td><strong>1</strong></td>" in made
