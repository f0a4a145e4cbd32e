"""Curves of results: what changes with iterations, leads, loads or levels, a JSON line each, beside the rows.

A line has the fields of a row that its points have in common, and its points as columns of equal length.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments.evaluation import results

FOLDER = "curves"
COLUMNS = "columns"
OVER = "over"  # what the points follow: the name of the first column
LEARNING, LEAD, LOAD, LEVEL = "iteration", "lead", "load", "level"
OF_LEARNERS = (*results.Facts._fields, "method", "seed", "level", "network", "action", "trained_on")
FIELDS = (*results.Row._fields, OVER, COLUMNS)


def file_of(rows_file: Path) -> Path:
    """Where the curves of a rows file are kept."""
    return rows_file.parent / FOLDER / rows_file.name


def read(rows_file: Path, over: str | None = None) -> list[dict]:
    """The curves that belong to a rows file, of one kind or all."""
    return [one for one in results.read_rows(file_of(rows_file)) if over in (None, one[OVER])]


def write(rows_file: Path, curves: Iterable[dict]) -> None:
    """Adds curves, replacing those of the same run, level of demand and kind; atomic."""
    curves = list(curves)
    replaced = {_place(one) for one in curves}
    kept = [one for one in read(rows_file) if _place(one) not in replaced]
    if curves:
        results.write_lines(file_of(rows_file), kept + curves, FIELDS)


def curve(common: dict, over: str, points: Iterable[dict]) -> dict:
    """A curve of these points; what a point does not have is None there."""
    points = list(points)
    names = dict.fromkeys([over, *(name for point in points for name in point)])
    return common | {OVER: over, COLUMNS: {name: [point.get(name) for point in points] for name in names}}


def of_learning(made: Iterable[dict]) -> list[dict]:
    """The learning curves that these points make up, in order: one for each seed, method and level of demand."""
    found: dict[str, tuple[dict, list[dict]]] = {}
    for point in made:
        common = {name: point[name] for name in OF_LEARNERS if name in point}
        told = {name: value for name, value in point.items() if name not in (*common, "metric")}
        found.setdefault(json.dumps(common), (common, []))[1].append(told)
    return [curve(common, LEARNING, some) for common, some in found.values()]


def learning(rows_file: Path, network: str | None) -> list[dict]:
    """The points of all learning curves on one network, in the order in which each learner made them."""
    here = [one for one in read(rows_file, LEARNING) if one.get("network") == network]
    return points(results.of_one_action(here))


def points(curves: Iterable[dict]) -> list[dict]:
    """The points of curves one after another, each with what its curve says of all of them."""
    found = []
    for one in curves:
        common = {name: value for name, value in one.items() if name not in (OVER, COLUMNS)}
        for values in zip(*one[COLUMNS].values(), strict=True):
            told = zip(one[COLUMNS], values, strict=True)
            found.append(common | {name: value for name, value in told if value is not None})
    return found


def gathered(rows: Iterable[dict], over: str, named: Callable[[dict], tuple[Any, dict]]) -> list[dict]:
    """Rows as curves: one for all rows that have all but their seed, their place and their numbers in common.

    Args:
        named: a row -> its place on the curve, and the numbers that it has there by the name of their column.
    """
    found: dict[str, tuple[dict, dict]] = {}
    for row in rows:
        place, numbers = named(row)
        taken = ("metric", "value", "lower", "upper", "seed", over)
        common = {name: value for name, value in row.items() if name not in taken}
        _, columns = found.setdefault(json.dumps(common), (common, {}))
        point = {over: place} | ({"seed": row["seed"]} if "seed" in row else {})
        columns.setdefault(tuple(point.values()), point).update(numbers)
    return [curve(common, over, columns.values()) for common, columns in found.values()]


def _place(one: dict) -> tuple:
    return results.run_of(one), one.get("level"), one[OVER]
