"""The page of a judged road: queues over an hour in both worlds, the ranking, errors by level."""

import base64
import html
import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stream_jax import store

SHOWN = ("look_ahead", "actuated_40", "cycle_120", "starving")  # whose queues are drawn


def write_page(path: Path, network: str, compared: dict[str, Any], rows: list[dict]) -> None:
    """Writes the page. Args: compared: by level, as `experiments.road.judge.Compared`."""
    parts = [_section("rows", "Agreement", _table(rows))]
    for level, one in compared.items():
        parts.append(_section(f"queues-{level}", f"Queues over an hour: {level}", _image(queues(one))))
        parts.append(_section(f"ranking-{level}", f"Ranking: {level}", _image(ranking(one))))
        parts.append(_section(f"errors-{level}", f"Errors by controller: {level}", _image(errors(one))))
    title = f"Compiled road against SUMO: {html.escape(network)}"
    store.write_text(path, f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>{''.join(parts)}")


def queues(one: Any) -> Figure:
    """Mean queue, step by step, in the first hour of a few controllers."""
    names = [name for name in SHOWN if name in one.names] or list(one.names[:4])
    figure = Figure(figsize=(3.4 * len(names), 2.8), layout="constrained")
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        row = one.names.index(name)
        axes.plot(one.sumo.queue[row, 0], label="SUMO")
        axes.plot(one.road.queue[row, 0], label="compiled road")
        axes.set(title=name, xlabel="minute", ylim=(0, None))
    figure.axes[0].set_ylabel("halting vehicles per intersection")
    figure.axes[0].legend()
    return figure


def ranking(one: Any) -> Figure:
    """Vehicle-seconds of each controller in both worlds."""
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    real, ours = (world.present.sum(-1).mean(1) / 3600 for world in (one.sumo, one.road))
    axes.scatter(real, ours)
    for name, x, y in zip(one.names, real, ours, strict=True):
        axes.annotate(name, (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
    ends = [min(real.min(), ours.min()), max(real.max(), ours.max())]
    axes.plot(ends, ends, color="0.7", linewidth=1)
    axes.set(xlabel="vehicle-hours in SUMO", ylabel="vehicle-hours on the compiled road", xscale="log", yscale="log")
    return figure


def errors(one: Any) -> Figure:
    """Mean queue of each controller in both worlds."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(one.names))
    axes.bar(place - 0.2, one.sumo.queue.mean((1, 2)), 0.4, label="SUMO")
    axes.bar(place + 0.2, one.road.queue.mean((1, 2)), 0.4, label="compiled road")
    axes.set_xticks(place, one.names, rotation=60, fontsize=7)
    axes.set_ylabel("mean queue")
    axes.legend()
    return figure


def _section(place: str, title: str, content: str) -> str:
    """A part of the page that a link leads to."""
    return f'<section id="{place}"><h2>{html.escape(title)}</h2>{content}</section>'


def _table(rows: list[dict]) -> str:
    head = "<tr><th>level</th><th>metric</th><th>value</th><th>95 % interval</th></tr>"
    lines = [
        f"<tr><td>{row['level']}</td><td>{row['metric']}</td><td>{row['value']:.3f}</td>"
        f"<td>{row['lower']:.3f} to {row['upper']:.3f}</td></tr>"
        for row in rows
    ]
    return f"<table>{head}{''.join(lines)}</table>"


def _image(figure: Figure) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}">'
