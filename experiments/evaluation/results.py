"""Results rows: one JSON line per method, seed and metric; everything that is reported is read from these."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import scipy.stats

from stream_jax import store

KEY = ("dataset", "preset", "data_hash", "stage", "method", "network")  # rows on a preset's own grid name no network


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    """Adds rows to a file, replacing those of the same run (dataset, preset, data, stage, method, network); atomic."""
    rows = list(rows)
    replaced = {run_of(row) for row in rows}
    replace_rows(path, [row for row in read_rows(path) if run_of(row) not in replaced] + rows)


def replace_rows(path: Path, rows: Iterable[dict]) -> None:
    """Writes a file of these rows alone, whole or not at all."""
    store.write_text(path, "".join(json.dumps(_finite(row), sort_keys=True) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict]:
    """All rows of a file; none when it does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


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


def _finite(row: dict) -> dict:
    """JSON has no infinity and no NaN: they become strings, so that no reader takes them for numbers."""
    return {name: value if _is_plain(value) else str(value) for name, value in row.items()}


def _is_plain(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
