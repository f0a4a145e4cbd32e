"""The data-quality page: points per step, a map of the cells, missing share, speeds, and what was dropped."""

import base64
import html
import io
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from data.spark_etl import shards
from data.spark_etl.local_time import offset_s

matplotlib.use("Agg")


def write_quality_page(folder: Path, manifest: dict) -> Path:
    """Writes quality.html, self-contained, from the shards themselves."""
    parts = [shards.map_arrays(folder / entry["file"]) for entry in manifest["shards"]]
    time, values, observed = (np.concatenate([part[name] for part in parts]) for name in ("time", "values", "observed"))
    cells = shards.read_arrays(folder / shards.GRAPH)
    figures = {
        "Whole city per step": _over_time(manifest, time, values, observed),
        "Mean of the first feature per cell": _map(manifest, cells, values, observed),
        "Share of cell-steps not observed": _missing(manifest, time, observed),
    }
    if "speed" in manifest["features"] and observed[..., manifest["features"].index("speed")].any():
        figures["Speed"] = _speeds(manifest, values, observed)
    page = folder / "quality.html"
    page.write_text(_page(manifest, figures), encoding="utf-8")
    return page


def draw_cells(axes: Axes, figure: Figure, cells: dict[str, np.ndarray], values: np.ndarray, label: str) -> None:
    """Colours the cells of a city by their values; sensors, which have no outline, become dots."""
    start, outline = cells["outline_start"], cells["outline"]
    rings = [outline[start[i] : start[i + 1]] for i in range(len(values))]
    if all(len(ring) > 2 for ring in rings):
        shapes = PolyCollection(rings, array=values, cmap="viridis", edgecolors="white", linewidths=0.2)
        axes.add_collection(shapes)
        axes.autoscale_view()
        axes.set_aspect(1 / np.cos(np.radians(cells["lonlat"][:, 1].mean())))
        axes.set(xlabel="longitude", ylabel="latitude")
    else:
        shapes = axes.scatter(*cells["position"].T / 1000, c=values, s=14)
        axes.set(xlabel="km east", ylabel="km north", aspect="equal")
    figure.colorbar(shapes, label=label, shrink=0.7)


def _over_time(manifest: dict, time: np.ndarray, values: np.ndarray, observed: np.ndarray) -> Figure:
    figure = Figure(figsize=(10, 3), layout="constrained")
    axes = figure.subplots()
    total = np.where(observed[..., 0].any(axis=1), (values[..., 0] * observed[..., 0]).sum(axis=1), np.nan)
    axes.plot(_local(time, manifest), total, linewidth=0.8)
    name = manifest["features"][0]
    axes.set_ylabel(f"{name}, all cells\n({manifest['units'][name]})")
    axes.set_xlabel(f"time ({manifest['timezone']})")
    return figure


def _map(manifest: dict, cells: dict, values: np.ndarray, observed: np.ndarray) -> Figure:
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    mean = (values[..., 0] * observed[..., 0]).sum(axis=0) / np.maximum(observed[..., 0].sum(axis=0), 1)
    name = manifest["features"][0]
    draw_cells(axes, figure, cells, mean, f"mean {name} ({manifest['units'][name]})")
    return figure


def _missing(manifest: dict, time: np.ndarray, observed: np.ndarray) -> Figure:
    figure = Figure(figsize=(10, 3), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(manifest["features"]):
        axes.plot(_local(time, manifest), 1 - observed[..., index].mean(axis=1), label=name, linewidth=0.8)
    axes.set(ylim=(-0.02, 1.02), ylabel="share missing", xlabel=f"time ({manifest['timezone']})")
    axes.legend(loc="upper right", ncols=3)
    return figure


def _speeds(manifest: dict, values: np.ndarray, observed: np.ndarray) -> Figure:
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    index = manifest["features"].index("speed")
    axes.hist(values[..., index][observed[..., index]] * 3.6, bins=60, range=(0, 120))
    axes.set(xlabel="mean speed of a cell-step (km/h)", ylabel="cell-steps")
    return figure


def _local(time: np.ndarray, manifest: dict) -> np.ndarray:
    """Timestamps to plot; wall-clock offsets are those at each step."""
    zone = ZoneInfo(manifest["timezone"])
    offset = [offset_s(datetime.fromtimestamp(int(t), UTC), zone) for t in time[::96]]
    return (time + np.repeat(offset, 96)[: len(time)]).astype("datetime64[s]")


def _page(manifest: dict, figures: dict[str, Figure]) -> str:
    rows = manifest["rows"]
    lines = [("rows read", rows["rows_in"]), *rows["dropped"].items(), ("used", rows["used"])]
    table = "".join(f"<tr><td>{html.escape(str(name))}</td><td>{count:,}</td></tr>" for name, count in lines)
    images = "".join(f"<h2>{html.escape(title)}</h2>{_image(figure, title)}" for title, figure in figures.items())
    facts = (
        f"{manifest['data']} data; {manifest['steps']:,} steps of {manifest['bin_s'] // 60} min "
        f"from {manifest['start']}; "
        f"{manifest['cells']} cells, {manifest['edges']:,} edges; content {manifest['content_hash'][:12]}"
    )
    title = f"{manifest['dataset']}: data quality"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
        "img{max-width:100%}td{padding:.1rem 1rem .1rem 0}td+td{text-align:right}</style>"
        f"<h1>{title}</h1><p>{html.escape(facts)}</p>{images}<h2>Rows</h2><table>{table}</table></html>"
    )


def _image(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return (
        f"<img alt='{html.escape(title)}' src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"
    )
