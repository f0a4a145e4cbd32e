"""RESCO's maps as tables: delays beside the published figures, and the waits that a mean hides."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from experiments.evaluation import results


class Published(NamedTuple):
    """Delays in s from RESCO's published score files, of older SUMO releases."""

    fixed: float | None
    greedy: float
    max_pressure: float
    learner: str  # the one with the best training episode
    best: float  # that episode
    last: float  # the mean of its last ten episodes


PUBLISHED = {
    "cologne1": Published(56.6, 27.8, 65.9, "IDQN", 26.1, 28.9),
    "cologne3": Published(46.4, 90.7, 162.0, "IDQN", 24.0, 96.0),
    "cologne8": Published(63.8, 21.9, 47.7, "IPPO", 21.6, 22.5),
    "ingolstadt1": Published(39.4, 28.3, 23.6, "IPPO", 20.9, 22.7),
    "ingolstadt7": Published(91.3, 80.6, 46.8, "IDQN", 31.2, 35.6),
    "ingolstadt21": Published(133.0, 76.3, 137.0, "IDQN", 59.6, 86.2),
    "grid4x4": Published(None, 34.3, 52.6, "IDQN", 32.9, 34.1),
    "arterial4x4": Published(None, 821.0, 953.0, "FMA2C", 654.0, 773.0),
}
NOTE = (
    "Delay: time loss and departure delay, s per trip; unfinished and never departed trips count. ± is half a 95 % "
    "interval over seeds. Yellow 3 s (arterial4x4: 2 s), no all-red, except that fixed shows the map's own program; "
    "greedy and max-pressure decide every 10 s (5 s); actuated greens last 5 to 50 s. Published figures are of older "
    "SUMO releases, a mean for greedy, and for learners the best training episode, then the mean of the last ten."
)


def render(folder: Path) -> str:
    """Delays and longest waits of all maps as markdown; empty where none was driven."""
    paths = [folder / "resco" / f"{name}.jsonl" for name in PUBLISHED]
    rows = [row for path in paths if path.exists() for row in results.read_rows(path)]
    methods = methods_of(rows)
    if not rows:
        return ""
    lines = [
        "| map | " + " | ".join(f"`{method}`" for method in methods) + " | published: greedy, best learner |",
        "|---|" + "---|" * (len(methods) + 1),
    ]
    for name in dict.fromkeys(row["map"] for row in rows):
        delay = {method: values_of(rows, name, method, "delay") for method in methods}
        best = min(np.mean(values) for values in delay.values() if values)
        cells = [
            _markdown(values, values_of(rows, name, method, "longest_wait"), best) for method, values in delay.items()
        ]
        known = PUBLISHED[name]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {known.greedy:g}, {known.best:g} ({known.learner}) |")
    return "\n".join([*lines, ""])


def tables(rows: list[dict]) -> list[Table]:
    """A table of delays and one of waits, of the maps and controllers that have rows."""
    return [delays(rows), waits(rows)]


def methods_of(rows: list[dict]) -> list[str]:
    """Controllers in the order of the rows."""
    return list(dict.fromkeys(row["method"] for row in rows))


def delays(rows: list[dict]) -> Table:
    """Mean delay over seeds, a line for each map."""
    methods = methods_of(rows)
    table = Table("map", *methods, "published greedy", "published learner", title="RESCO: delay, s", caption=NOTE)
    for name in dict.fromkeys(row["map"] for row in rows):
        values = [values_of(rows, name, method, "delay") for method in methods]
        best = min((np.mean(some) for some in values if some), default=np.nan)
        known = PUBLISHED[name]
        learner = f"{known.learner} {known.best:g} → {known.last:g}"
        table.add_row(name, *(_cell(some, best) for some in values), f"{known.greedy:g}", learner)
    return table


def waits(rows: list[dict]) -> Table:
    """Waits and what never entered, a line for each map and controller."""
    shown = {"p90_wait": "90 % wait at most, s", "longest_wait": "longest wait, s", "queue": "queue per signal"}
    shown |= {"trip_time": "trip time, s", "never_departed": "never departed", "teleports": "teleports"}
    table = Table(
        "map", "controller", *shown.values(), title="RESCO: waits, means over seeds; longest wait: of all seeds"
    )
    for name in dict.fromkeys(row["map"] for row in rows):
        for method in methods_of(rows):
            found = {metric: values_of(rows, name, method, metric) for metric in shown}
            if all(found.values()):
                table.add_row(name, method, *(_summary(metric, values) for metric, values in found.items()))
        table.add_section()
    return table


def values_of(rows: Iterable[dict], name: str, method: str, metric: str) -> list[float]:
    """A metric of one controller on one map, for each seed."""
    asked = name, method, metric
    return [float(row["value"]) for row in rows if (row["map"], row["method"], row["metric"]) == asked]


def _summary(metric: str, values: list[float]) -> str:
    return f"{max(values):.0f}" if metric == "longest_wait" else f"{np.mean(values):.1f}"


def _markdown(values: list[float], longest: list[float], best: float) -> str:
    if not values:
        return "–"
    half = results.half_width(values)
    said = f"{np.mean(values):.1f}"
    said = f"**{said}**" if np.mean(values) <= best else said
    return said + (f" ± {half:.1f}" if half is not None else "") + f" ({max(longest):.0f})"


def _cell(values: list[float], best: float) -> str:
    if not values:
        return "–"
    half = results.half_width(values)
    said = f"{np.mean(values):.1f}" + (f" ± {half:.1f}" if half is not None else "")
    return f"[bold]{said}[/]" if np.mean(values) <= best else said
