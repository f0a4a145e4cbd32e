"""Draws the tables of the paper as bars, the paper's numbers beside ours.

Bars of ours carry half a 95 % interval over seeds. A bar of the paper is hatched where its number cannot be true.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.cli.main import start
from experiments.cli.reading import UNSET, read
from experiments.tables import ours, paper
from experiments.tables import render as tables

matplotlib.use("Agg")
WIDE = 0.38  # of a bar
PAPER, OURS = "0.72", "tab:blue"
DESCRIPTION = """\
Draws tables of the paper as bars, the paper's numbers beside ours. Bars of ours carry half a 95 % interval over seeds.
A bar of the paper is hatched where its number cannot be true.

  stream-jax figures --to runs/figures                 all tables that have any number of ours
  stream-jax figures --table aci --to runs/figures     one table
"""


@dataclasses.dataclass(frozen=True)
class FigureOptions:
    """What is drawn, and where."""

    to: Path
    """folder for the figures"""
    table: Annotated[Literal[tuple(paper.TABLES)] | None, UNSET] = None  # type: ignore[valid-type]
    """a table of the paper (all)"""
    dataset: str = "tdrive"
    """whose rows stand beside the paper's T-Drive"""
    results: Path = Path("results")
    """folder of published rows"""


def draw(name: str, book: ours.Book, dataset: str = "tdrive") -> Figure | None:
    """One panel per numeric column; None when nothing of ours answers any cell."""
    table = paper.TABLES[name]
    rows = [*table.rows, *ours.others(name, book, dataset)]
    columns = [column for column in table.columns[1:] if _numeric(name, column)]
    asked = {(row, column): ours.query(name, row, column, dataset) for row in rows for column in columns}
    found = {cell: ours.answer(query, book) for cell, query in asked.items()}
    columns = [column for column in columns if any(found[row, column] for row in rows)]
    if not columns:
        return None
    figure = Figure(figsize=(3.4 * len(columns) + 1.2, 0.42 * len(rows) + 1.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(columns), sharey=True))
    for axes, column in zip(panels, columns, strict=True):
        _panel(axes, name, column, rows, [found[row, column] for row in rows])
    panels[0].set_yticks(np.arange(len(rows)), rows, fontsize=8)
    panels[0].invert_yaxis()
    panels[-1].legend(handles=[panels[-1].barh(0, 0, color=c, label=n) for n, c in (("paper", PAPER), ("ours", OURS))])
    used = {(asked[cell].dataset, asked[cell].stage) for cell, answer in found.items() if answer}
    figure.suptitle(f"{table.title}\nours: {tables.source(book, used)}", fontsize=9)
    return figure


def _panel(axes: Axes, name: str, column: str, rows: list[str], found: list[ours.Answer | None]) -> None:
    place = np.arange(len(rows))
    for k, row in enumerate(rows):
        printed = paper.value(name, row, column) if row in paper.TABLES[name].rows else None
        if printed is not None:
            hatch = "////" if paper.doubts(name, row, column) else None
            axes.barh(place[k] - WIDE / 2, printed, WIDE, color=PAPER, hatch=hatch, edgecolor="white")
        if found[k] is not None:
            axes.barh(place[k] + WIDE / 2, found[k].value, WIDE, xerr=found[k].spread, color=OURS)
    axes.set_xlabel(column, fontsize=8)
    axes.tick_params(labelsize=8)


def _numeric(name: str, column: str) -> bool:
    printed = [paper.value(name, row, column) for row in paper.TABLES[name].rows]
    return any(isinstance(cell, int | float) for cell in printed)


def main(argv: Sequence[str] | None = None) -> int:
    """Draws one table or all into a folder; returns the exit code."""
    args = read(FigureOptions, DESCRIPTION, argv, "figures")
    book = ours.load(args.results)
    args.to.mkdir(parents=True, exist_ok=True)
    for name in [args.table] if args.table else paper.TABLES:
        figure = draw(name, book, args.dataset)
        if figure is None:
            print(f"{name}: nothing of ours was run")
            continue
        figure.savefig(args.to / f"{name}.png", dpi=130)
        print(args.to / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(start("figures"))
