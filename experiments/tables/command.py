"""The command that prints tables from results rows, or writes them into the blocks of pages.

A cell of ours that was not run is empty. A cell of the paper that cannot be true carries the number of its footnote.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.cli.reading import UNSET, read
from experiments.evaluation import curves
from experiments.report import control_figures
from experiments.tables import ours, paper, readme_tables
from experiments.tables.render import ALL, paper_table, paper_tables, write

DESCRIPTION = """\
Prints the paper's tables with columns «paper | ours», or all of our tables. An empty cell was not run. A number in
brackets points to why the paper's number cannot be true.

  stream-jax tables                                    the README's tables
  stream-jax tables --table forecasting                one table of the paper; --table all prints every one
  stream-jax tables --write README.md docs/results/*.md     fills the blocks between a page's markers
  stream-jax tables --dataset synthetic --curves docs/learning_curves.png    how controllers learned
"""


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Which tables, from which rows."""

    table: Annotated[Literal[(*paper.TABLES, ALL)] | None, UNSET] = None  # type: ignore[valid-type]
    """a table of the paper, or all"""
    dataset: str = "tdrive"
    """whose rows stand beside the paper's T-Drive"""
    variant: Annotated[str | None, UNSET] = None
    """of the paper's cities, in tables that name them: twin for results/<city>-twin"""
    results: Path = Path("results")
    """folder of published rows"""
    write: Annotated[tuple[Path, ...], UNSET, tyro.conf.arg(metavar="PAGE ...")] = ()
    """fills the blocks between the markers of these pages"""
    curves: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="PNG")] = None
    """draws the dataset's learning curves of control"""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints tables, or writes them into pages; returns the exit code."""
    args = read(TableOptions, DESCRIPTION, argv, "tables")
    if args.table:
        told = (ours.load(args.results), args.dataset, f"-{args.variant}" if args.variant else "")
        print(paper_tables(*told) if args.table == ALL else paper_table(args.table, *told))
    elif args.curves:
        points = curves.learning(args.results / args.dataset / "control.jsonl", network=None)
        control_figures.learning_curves(points).savefig(args.curves, dpi=130)
    elif args.write:
        for page in args.write:
            write(page, args.results)
    else:
        print(readme_tables.render(args.results))
    return 0
