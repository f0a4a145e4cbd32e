"""Stage `report`: everything a run found on one HTML page that needs no network and no other file."""

import base64
import html
import json
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from data import loader
from experiments.cli.networks import control_folder, network_name, report_file
from experiments.cli.options import RunOptions
from experiments.evaluation import curves
from experiments.report import curves as report_curves
from experiments.report import map as report_map
from experiments.report.html import PAGE, details, json_block, markdown, page
from experiments.tables import control_tables, ours, paper, readme_tables
from experiments.tables import render as tables
from stream_jax import store

FIGURES = {
    "forecast": ("calibration", "coverage_over_time", "width_map", "examples"),
    "detect": ("fdr_and_power", "null_p_values", "recall_by_kind", "detections"),
    "control": ("safety", "trade_off", "learning", "episode", "prices", "greens", "episode_heavy"),
}
REFUSED = "SYNTHETIC DATA: a program wrote this recording, so nothing on this page is a finding about a real city."


def report(args: RunOptions, out: Path, console: Console) -> Path:
    """Writes the page of the run and its network from rows and artefacts; returns its path."""
    dataset = loader.load(out / "data", verify=True)
    name, network = dataset.manifest["dataset"], network_name(args)
    book = ours.load(out / "results")
    controlled = ours.picked(out / "results" / name / "control.jsonl", network)
    control = control_folder(out, network)
    data = {"city": report_map.city(out, dataset), "road": report_map.road(control, args.demand_factor)}
    data["curves"] = report_curves.curves(out, curves.learning(out / "results" / name / "control.jsonl", network))
    title = f"{name}: forecast, detect, control" + (f" on {network}" if network else "")
    manifest = dataset.manifest
    shown = book | {(name, "control"): controlled}
    about = f"{manifest['cells']} cells, {manifest['steps']:,} steps of {manifest['bin_s'] // 60} minutes from "
    text = page(
        title=title,
        style=(PAGE / "style.css").read_text(),
        script=(PAGE / "page.js").read_text(),
        banner=REFUSED if manifest["data"] == "synthetic" else "",
        about=about + f"{manifest['start'][:10]}, {manifest['data']} data.",
        headlines=headlines(shown, name),
        parts=parts_of(dataset, book, controlled, data, out, control),
        data=json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
    )
    path = report_file(out, network)
    store.write_text(path, text)
    console.print(f"report: {escape(str(path))}   ({len(text) / 1e6:.1f} MB, opens without a network)", highlight=False)
    return path


class Part(NamedTuple):
    """A section of the page, and the link to it."""

    place: str
    word: str  # of the link
    title: str
    content: str  # HTML


def parts_of(
    dataset: loader.TrafficDataset, book: ours.Book, controlled: list[dict], data: dict, out: Path, control: Path
) -> list[Part]:
    """The page from top to bottom; the paper's tables alone are always about the preset's own grid.

    Args:
        controlled: rows of the network that is shown.
        control: folder of its control stage.
    """
    name = dataset.manifest["dataset"]
    shown = book | {(name, "control"): controlled}
    block = lambda stage, folder: _block(shown, name, stage) + _figures(folder, stage)  # noqa: E731
    return [
        Part("city", "City", "One day in the city", _city(data)),
        Part("forecast", "Forecasts", "Forecasts", block("forecast", out / "forecast")),
        Part("detect", "Detections", "Detections", block("detect", out / "detect")),
        Part("control", "Signals", "Signals", _road(data) + block("control", control)),
        Part("learning", "Learning", "Learning", _curves(data["curves"]) + _verdicts(controlled)),
        Part("paper", "Paper and ours", "Paper and ours", _paper(book, name)),
        Part("data", "Data", "Where the data come from", _provenance(dataset.manifest)),
        Part("config", "Configuration", "Configuration", _configs(out)),
    ]


def headlines(book: ours.Book, name: str) -> list[tuple[str, str, str]]:
    """The few numbers that a reader wants first: name, value, and what it is to be compared with."""
    found = []
    ask = lambda stage, metric, **where: ours.answer(ours.Query(name, stage, where, metric), book)  # noqa: E731
    nrmse, best = ask("forecast", "nrmse", method="pu_gat_plus", fold="all"), _best_reference(book, name)
    if nrmse:
        found.append(("NRMSE of PU-GAT+", f"{nrmse.value:.3f}", best))
    coverage = ask("forecast", "coverage", method="pu_gat_plus", fold="all")
    if coverage:
        found.append(("Coverage of its intervals", f"{100 * coverage.value:.1f} %", "asked for: 90 %"))
    fdr = ask("detect", "fdr_step", scenario="injected", arm="full+by", level=0.05)
    recall = ask("detect", "recall", scenario="injected", arm="full+by", level=0.05)
    if fdr and recall:
        found.append(("False discoveries, BY", f"{100 * fdr.value:.1f} %", f"allowed: 5 %; recall {recall.value:.2f}"))
    for method in ("lycon_wrl_plus", "default_plan"):
        safe = ask("control", "safety", method=method, level="heavy")
        if safe:
            found.append((f"Safe episodes, {method.replace('_', ' ')}", f"{100 * safe.value:.0f} %", "heavy demand"))
    return found


def _best_reference(book: ours.Book, name: str) -> str:
    rows = [row for row in book.get((name, "forecast"), ()) if (row["metric"], row["fold"]) == ("nrmse", "all")]
    rows = [row for row in rows if not row["method"].startswith(("pu_gat_plus", "comparison"))]
    best = min(rows, key=lambda row: row["value"], default=None)
    return f"best reference: {best['value']:.3f} ({best['method'].replace('_', ' ')})" if best else ""


def _block(book: ours.Book, name: str, stage: str) -> str:
    """The README's tables of one stage."""
    rows = book.get((name, stage))
    if not rows:
        return "<p>This stage has not been run.</p>"
    draw = {
        "forecast": readme_tables.forecast_tables,
        "detect": readme_tables.detect_tables,
        "control": control_tables.control_tables,
    }[stage]
    return markdown("\n".join(draw(rows)))


def _figures(folder: Path, stage: str) -> str:
    made = []
    for name in FIGURES[stage]:
        path = folder / f"{name}.png"
        if path.exists():
            coded = base64.b64encode(path.read_bytes()).decode()
            words = name.replace("_", " ")
            made.append(f'<figure><img alt="{words}" loading="lazy" src="data:image/png;base64,{coded}"></figure>')
    return details("Figures", "".join(made)) if made else ""


def _city(data: dict) -> str:
    if data["city"] is None:
        return "<p>No forecasts yet.</p>"
    words = "The last test day, one step ahead. Choose what is coloured, move through the day, tap a cell for its day."
    return f"<p>{words}</p>" + (PAGE / "city.html").read_text()


def _road(data: dict) -> str:
    if data["road"] is None:
        return ""
    words = "The first test episode. A disc grows with the vehicles that halt; a red ring is a wait beyond the limit."
    return f"<p>{words}</p>" + (PAGE / "road.html").read_text()


def _curves(found: list[dict]) -> str:
    made = [
        f'<div class="panel" data-curve="{k}"><h3>{html.escape(curve["title"])}</h3><svg></svg>'
        '<div class="legend"></div></div>'
        for k, curve in enumerate(found)
    ]
    return f'<div class="cards curves">{"".join(made)}</div>' if made else "<p>Nothing was trained in this folder.</p>"


def _verdicts(controlled: list[dict]) -> str:
    table = report_curves.verdicts(controlled)
    words = "What the drift bound, computed on the test episodes, promises about the mean violation, and what happened."
    return f"<h3>Certificates</h3><p>{words}</p>{markdown(table)}" if table else ""


def _paper(book: ours.Book, name: str) -> str:
    words = "An empty cell was not run. A number in brackets points to why the paper's number cannot be true."
    made = [details(paper.TABLES[key].title, markdown(tables.paper_table(key, book, name))) for key in paper.TABLES]
    return f"<p>{words}</p>" + "".join(made)


def _provenance(manifest: dict) -> str:
    rows = manifest["rows"]
    lines = ["| rows | count |", "|---|---|", f"| read | {rows['rows_in']:,} |"]
    lines += [f"| dropped: {key.replace('_', ' ')} | {count:,} |" for key, count in rows["dropped"].items()]
    lines += [f"| used | {rows['used']:,} |"]
    return markdown("\n".join(lines)) + details("Manifest", json_block(manifest))


def _configs(out: Path) -> str:
    made = [
        details(str(path.relative_to(out)), json_block(json.loads(path.read_text())))
        for path in (out / "run.json", *sorted(out.glob("*/config.json")))
        if path.exists()
    ]
    return "".join(made) or "<p>No stage has written its configuration.</p>"
