"""Results rows: one JSON line per method, seed and metric; everything that is reported is read from these.

A file has rows of the fields of `Row` alone. What all rows of a run have in common, the fields of `Facts`, stands once
in `runs.json` beside the file, and is put back into every row that is read. Curves have a file of their own, see
`curves.py`.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from data.errors import DataError
from stream_jax import store

# Rows on a preset's own grid name no network, and those of controllers that set greens no action.
KEY = ("dataset", "preset", "data_hash", "stage", "method", "network", "action")
RUNS = "runs.json"  # the facts of the runs behind each file of a folder, by the file's name
OTHER_FACTS = "facts"  # of a row on disk: which entry of that list is its run's, if it is not the first
Value = float | int | bool | str | None  # an infinity or a NaN is text, such as "inf"


class Row(NamedTuple):
    """One measured number. A field that says nothing about a number is left out of its line."""

    method: str | None = None
    metric: str | None = None
    seed: int | None = None
    fold: str | None = None  # of the recording, or "all" of them together
    scenario: str | None = None  # what was done to the recording before anomalies were looked for
    arm: str | None = None  # p-values and rule of a detection
    level: str | float | None = None  # of demand, or the false-discovery rate that a rule aims at
    value: Value = None
    lower: Value = None  # bounds of a 95 % interval
    upper: Value = None
    binomial_p: Value = None  # probability of so many false alarms if the level were kept
    limit: float | None = None  # of the metric, on the road
    episodes: int | None = None  # behind a mean
    hours: int | None = None  # different ones among those episodes
    drives: int | None = None  # behind the best of each hour
    network: str | None = None  # None is the preset's own grid
    action: str | None = None  # of a learned controller; None: it sets greens
    trained_on: str | None = None  # the network that a controller learned on, if another one
    setting: str | None = None  # of a sensitivity table
    component: str | None = None  # of a control tick that was timed
    run: str | None = None  # of several that were compared
    map: str | None = None  # of a benchmark
    environments: int | None = None  # that were simulated together
    controllers: int | None = None  # that were ranked


class Facts(NamedTuple):
    """Where the rows of a run come from."""

    dataset: str | None = None
    data: str | None = None  # "real" or "synthetic"
    data_hash: str | None = None
    cells: int | None = None
    preset: str | None = None
    stage: str | None = None
    vehicles_per_hour: float | None = None  # that were driven
    device: str | None = None
    devices: int | None = None
    machine: str | None = None
    jax: str | None = None
    intersections: int | None = None
    ticks: int | None = None
    settings: str | None = None  # hash of everything that an episode of a benchmark depends on
    sumo: str | None = None  # its version
    decision_s: int | None = None  # of a benchmark's map: what its protocol says
    yellow_s: int | None = None
    all_red_s: int | None = None
    reach_m: float | None = None
    teleport_s: int | None = None


FIELDS = (*Facts._fields, *Row._fields)


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    """Adds rows to a file, replacing those of the same run (see `KEY`); atomic."""
    rows = list(rows)
    replaced = {run_of(row) for row in rows}
    replace_rows(path, [row for row in read_rows(path) if run_of(row) not in replaced] + rows)


def replace_rows(path: Path, rows: Iterable[dict]) -> None:
    """Writes a file of these rows alone, whole or not at all."""
    write_lines(path, rows, Row._fields)


def read_rows(path: Path) -> list[dict]:
    """All rows of a file, each with the facts of its run; none when it does not exist yet."""
    if not path.exists():
        return []
    known = _known(path.parent / RUNS).get(_name(path), [{}])
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines() if line]
        return [known[row.pop(OTHER_FACTS, 0)] | row for row in rows]
    except (ValueError, AttributeError, IndexError):
        raise DataError(f"{path} is damaged: a line of it is no row; delete it and run its stage again.") from None


def frame(rows: Path | Iterable[dict]) -> pd.DataFrame:
    """Rows, or those of a file, as a table with a column for every field; what a row leaves out is missing."""
    rows = read_rows(rows) if isinstance(rows, Path) else list(rows)
    return pd.DataFrame(rows, columns=list(FIELDS))


def write_lines(path: Path, rows: Iterable[dict], fields: Sequence[str]) -> None:
    """Writes a file of lines with these fields, and the facts of their runs beside it.

    The facts are written first and only ever added, so that lines and facts belong together whenever it is killed.
    """
    rows = list(rows)
    runs, known = path.parent / RUNS, _known(path.parent / RUNS)
    of_file = known.setdefault(_name(path), [])
    place, lines = {_mark(facts): number for number, facts in enumerate(of_file)}, []
    for row in rows:
        _check(row, path, fields)
        facts = {name: row[name] for name in Facts._fields if name in row}
        number = place.setdefault(_mark(facts), len(of_file))
        of_file += [facts] if number == len(of_file) else []
        line = {name: _finite(row[name]) for name in fields if name in row}
        lines.append(_plain(line | ({OTHER_FACTS: number} if number else {})) + "\n")
    if any(of_file):
        store.write_text(runs, json.dumps(known, indent=1, sort_keys=True) + "\n")
    store.write_text(path, "".join(lines))


def student(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of a mean; infinite from one value."""
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return float("-inf"), float("inf")
    half = scipy.stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def half_width(values: Sequence[float]) -> float | None:
    """Half of Student's 95 % interval of a mean: what stands after ± in every table. None from one value."""
    return student(values)[1] - float(np.mean(values)) if len(values) > 1 else None


def run_of(row: dict) -> tuple:
    """What two rows of the same run have in common."""
    return tuple(row.get(name) for name in KEY)


def _check(row: dict, path: Path, fields: Sequence[str]) -> None:
    """Refuses fields that no reader would find, and numbers that JSON would not keep."""
    unknown = sorted(row.keys() - {*fields, *Facts._fields})
    if unknown:
        named = f"{', '.join(unknown)}: a row of {path.name} has no such field"
        raise ValueError(f"{named}; there are {', '.join((*Facts._fields, *fields))}.")
    for name, value in row.items():
        if name != "columns" and not isinstance(value, Value):
            raise ValueError(f"{name} of a row of {path.name} is {type(value).__name__}, not a plain number or text.")


def _known(runs: Path) -> dict[str, list[dict]]:
    return json.loads(runs.read_text()) if runs.exists() else {}


def _name(path: Path) -> str:
    return path.name.removesuffix(".jsonl")


def _mark(facts: dict) -> str:
    return json.dumps(facts, sort_keys=True)


def _plain(value: dict) -> str:
    return json.dumps(value, separators=(",", ":"))


def of_one_action(rows: Sequence[dict]) -> list[dict]:
    """Rows without those of controllers that set greens where the same method also has rows of setting prices."""
    place = lambda row: (*(row.get(name) for name in KEY if name != "action"), row.get("level"))  # noqa: E731
    priced = {place(row) for row in rows if "action" in row}
    return [row for row in rows if "action" in row or place(row) not in priced]


def _finite(value: object) -> object:
    """JSON has no infinity and no NaN: they become strings, so that no reader takes them for numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
