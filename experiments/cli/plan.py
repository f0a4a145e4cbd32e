"""What a run would do, how long it took before and how much disk it needs: `run.py --dry-run` writes nothing."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data.spark_etl import shards
from experiments.cli import display
from experiments.cli.networks import control_folder, network_name, report_file
from experiments.cli.options import RunOptions
from experiments.evaluation import results
from stream_jax import store

RECORD = "run.json"  # seconds of each finished stage and the commands that ran it, the last one last
FLOAT = 4  # bytes
OUTCOME_ARRAYS = 4  # mean, sigma and the two bounds of an interval
SCORED_ARRAYS = 4  # calibration and test scores, first residuals, labels
COMMITTED = Path(__file__).parent.parent / "results"


class Step(NamedTuple):
    """One stage of the plan."""

    stage: str
    state: str
    seconds: float | None  # None when nothing like it was ever timed
    megabytes: float | None


def make_plan(args: RunOptions, out: Path, stages: list[str], seeds: int, folds: int) -> list[Step]:
    """Reads what the folder holds; touches nothing."""
    sizes = _sizes(out, seeds, folds)
    return [
        Step(timed_as(name, args), _state(name, args, out), _seconds(name, args, out), sizes.get(name))
        for name in stages
    ]


def show(plan: list[Step], out: Path, console: Console) -> None:
    """The plan as a table, and whether it fits on the disk."""
    table = Table(title=escape(f"would run in {out}"))
    for column in ("stage", "what is there", "roughly", "disk"):
        table.add_column(column)
    for step in plan:
        took = "not timed yet" if step.seconds is None else display.duration(step.seconds)
        table.add_row(step.stage, step.state, took, "?" if step.megabytes is None else f"{step.megabytes:,.0f} MB")
    console.print(table)
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e6
    needed = sum(step.megabytes or 0 for step in plan)
    console.print(f"{free:,.0f} MB are free" + (": not enough." if free < needed else "."), highlight=False)


def record(out: Path, stage: str, seconds: float, argv: list[str]) -> None:
    """Remembers what was run and how long it took, for the next plan and the report."""
    path = out / RECORD
    known = json.loads(path.read_text()) if path.exists() else {"seconds": {}}
    # A stage that found everything done is quick and says nothing about the work; the longest time does.
    longest = max(seconds, known["seconds"].get(stage, 0.0))
    commands = known.get("commands", {}) | {stage: [*(ran for ran in commands_of(out, stage) if ran != argv), argv]}
    known = {"commands": commands, "seconds": known["seconds"] | {stage: round(longest, 1)}}
    store.write_text(path, json.dumps(known, indent=1))


def commands_of(out: Path, stage: str) -> list[list[str]]:
    """The different commands that have run a stage in this folder, in the order in which they last ended."""
    path = out / RECORD
    ran = json.loads(path.read_text()).get("commands", {}).get(stage, []) if path.exists() else []
    return [ran] if ran and isinstance(ran[0], str) else ran  # earlier versions kept the last one alone


def timed_as(stage: str, args: RunOptions) -> str:
    """The name of a stage's work: another network's control takes another time."""
    return control_folder(Path(), network_name(args)).name if stage == "control" else stage


def _state(stage: str, args: RunOptions, out: Path) -> str:
    if stage == "etl":
        return "dataset; rebuilt only if its inputs changed" if (out / "data" / shards.MANIFEST).exists() else "nothing"
    if stage == "report":
        return "a page; written again" if report_file(out, network_name(args)).exists() else "nothing"
    folder = out / timed_as(stage, args)
    pieces = [path for path in folder.glob("*") if path.suffix in (".json", ".npz", ".jsonl")]
    return f"{len(pieces)} finished files; those of the same config are kept" if pieces else "nothing"


def _seconds(stage: str, args: RunOptions, out: Path) -> float | None:
    """As long as it took in this folder, else as the committed rows of the same dataset and preset say."""
    path = out / RECORD
    known = json.loads(path.read_text())["seconds"] if path.exists() else {}
    if timed_as(stage, args) in known:
        return known[timed_as(stage, args)]
    for folder in (out / "results", COMMITTED):
        rows = results.read_rows(folder / args.dataset / f"{stage}.jsonl")
        timed = [row["value"] for row in rows if row["metric"] == "fit_seconds" and row["preset"] == args.preset]
        if timed:
            return float(sum(timed))
    return None


def _sizes(out: Path, seeds: int, folds: int) -> dict[str, float]:
    """Megabytes of each stage's arrays before compression, known once there is a dataset."""
    if not (out / "data" / shards.MANIFEST).exists():
        return {}
    manifest = shards.read_manifest(out / "data")
    parts = manifest["split"]["folds"][-folds:]
    steps = sum(part["test"][1] - part["test"][0] for part in parts)
    both = steps + sum(part["calibration"][1] - part["calibration"][0] for part in parts)
    cell_bytes = manifest["cells"] * FLOAT / 1e6
    scenarios = 4 if manifest["events"] else 3
    forecasts = 2 * manifest["horizon"] * manifest["steps"] * len(parts)  # mean and sigma of the whole recording
    return {
        "etl": manifest["steps"] * cell_bytes * len(manifest["features"]) * 1.25,
        "forecast": (seeds + 4) * OUTCOME_ARRAYS * manifest["horizon"] * steps * cell_bytes,
        "detect": seeds * (scenarios * SCORED_ARRAYS * both + forecasts) * cell_bytes,
    }
