"""What a run shows while it works: the stage, the time since it began and the last metrics."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from experiments.evaluation import results

SHOWN = {
    "forecast": ("nrmse", "coverage", "crps"),
    "detect": ("fdr_step", "recall"),
    "control": ("safety", "travel_time", "reward"),
}


@contextlib.contextmanager
def stage_display(name: str, place: str, out: Path, console: Console) -> Iterator[None]:
    """Announces a stage, keeps a line alive under its own output, and says at the end how long it took."""
    start = time.perf_counter()
    console.print(f"[bold]{name}[/], stage {place}", highlight=False)

    def line() -> Text:
        parts = [name, place, duration(time.perf_counter() - start), last_metrics(name, out)]
        return Text(" · ".join(part for part in parts if part), style="dim")

    live = Live(get_renderable=line, console=console, refresh_per_second=1, transient=True)
    with live if console.is_terminal else contextlib.nullcontext():
        yield
    said = last_metrics(name, out)
    console.print(
        f"[bold]{name}[/] took {duration(time.perf_counter() - start)}" + (f"; {said}" if said else ""), highlight=False
    )


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as many as are needed."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def last_metrics(stage: str, out: Path) -> str:
    """Means over seeds of the method whose rows were written last; empty before there are any."""
    files = sorted((out / "results").glob(f"*/{stage}.jsonl"))
    if stage not in SHOWN or not files:
        return ""
    rows = [row for row in results.read_rows(files[-1]) if row.get("method") != "comparison"]
    rows = [row for row in rows if row.get("fold", "all") == "all" and row["metric"] in SHOWN[stage]]
    if not rows:
        return ""
    same = ("method", "scenario", "arm", "level", "network")
    last = [row for row in rows if all(row.get(name) == rows[-1].get(name) for name in same)]
    said = [str(rows[-1][name]) for name in same if rows[-1].get(name)]
    for metric in SHOWN[stage]:
        values = [row["value"] for row in last if row["metric"] == metric and not isinstance(row["value"], str)]
        said += [f"{metric} {np.mean(values):.3f}"] if values else []
    return " ".join(said)
