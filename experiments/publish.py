"""Copies the rows of a finished run into `results/`, from where tables are drawn, with the commands that wrote them.

Files there are small: what no table shows of leads, loads and targets is kept as curves, and numbers have six digits.
"""

import dataclasses
import json
import math
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from data.errors import DataError
from data.spark_etl import shards
from experiments.cli import plan
from experiments.cli.main import start
from experiments.cli.networks import control_folder
from experiments.cli.reading import UNSET, read
from experiments.evaluation import curves, decisions, results
from experiments.stages import final_controllers, packed_weights
from experiments.tables import ours

COMMANDS = "commands.json"
STAGES = ("forecast", "detect", "control", "capacity")
# What is kept of single folds; of all folds together everything is. The rest stays in the run's own folder.
OF_FOLDS = ("nrmse", "mae", "crps", "winkler", "coverage", "riw", "parameters", "epochs")
PREFIXES_OF_FOLDS = ("gamma", "joint", "seconds", "fit_seconds")
# What is kept of false-discovery targets other than the headline one, and of our own rules alone.
OF_LEVELS = ("fdr_step", "recall", "f1", "null_rate")
# How good a rule's decisions are: in scenarios that no table shows, kept as curves over targets.
QUALITY = ("fdr_step", "fdr_given_rejection", "fdr_pooled", "precision", "recall", "f1", "f1_minus_ours")
UNSHOWN = ("contaminated", "incidents")
DIGITS = 6
HASH = 12  # characters of a recording's hash that tell it from all others here
DESCRIPTION = """\
Copies the rows and the final controllers of a finished run into results/, where tables are drawn from, with the
commands that wrote them. Rows that were published before are replaced; all others stay.

  stream-jax publish runs/tdrive                                as results/tdrive
  stream-jax publish runs/porto-twin --name porto-twin          a twin beside the real recording
  stream-jax publish runs/longer --name synthetic-60-hours --stages control    one stage's rows alone
"""


@dataclasses.dataclass(frozen=True)
class PublishOptions:
    """What is published, and where."""

    run: tyro.conf.Positional[Path]
    """folder of a run, as given to `run --out`"""
    name: Annotated[str | None, UNSET] = None
    """folder under --results (the dataset's name)"""
    results: Path = Path("results")
    """where published rows are kept"""
    stages: Annotated[
        tuple[Literal[STAGES], ...] | None,  # type: ignore[valid-type]
        UNSET,
        tyro.conf.arg(metavar=f"{{{','.join(STAGES)}}} ..."),
    ] = None
    """only the rows of these stages (of all that have some)"""


def publish(run: Path, folder: Path, name: str | None = None, stages: Sequence[str] | None = None) -> list[Path]:
    """Replaces the rows that the run wrote again, of all stages or some, and keeps all others; the files written."""
    dataset = shards.read_manifest(run / "data")["dataset"]
    files = sorted((run / "results" / dataset).glob("*.jsonl"))
    files = [path for path in files if stages is None or path.stem in stages]
    found = {path.name: [_slim(row) for row in results.read_rows(path) if _is_kept(row)] for path in files}
    if not found:
        of = f" of {', '.join(stages)}" if stages else ""
        raise DataError(f"{run} has no results rows{of} yet; run its stages first.")
    target = folder / (name or dataset)
    for file, rows in found.items():
        _check_same_recording(target / file, rows)
    said = _commands(run, target, {file.removesuffix(".jsonl") for file in found})
    for path in files:
        known = [_slim(row) for row in results.read_rows(target / path.name) if _is_kept(row)]
        rows, drawn = split(found[path.name])
        results.replace_rows(target / path.name, known)
        results.write_rows(target / path.name, [*_at_other_levels(known, rows), *rows])
        curves.write(target / path.name, [*drawn, *map(_slim, curves.read(path))])
    (target / COMMANDS).write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    driven = _controllers(run, target) if "control.jsonl" in found else []
    drawn = [path for path in (curves.file_of(target / file) for file in found) if path.exists()]
    return [*(target / file for file in found), *drawn, target / results.RUNS, target / COMMANDS, *driven]


def split(rows: list[dict]) -> tuple[list[dict], list[dict]]:
    """Rows of their own, and curves: what follows the lead, the load or a rule's target.

    The hour ahead, the coverage at every lead and the headline target are rows, too: tables and readers ask for them.
    """
    stays, drawn = [], {over: [] for over in POINTS}
    for row in rows:
        over = next((over for over, is_point in POINTS.items() if is_point(row)), None)
        drawn.get(over, []).append(row)
        if over is None or (over == curves.LEAD and row["metric"] in AT_LEADS):
            stays.append(row)
    return stays, [one for over, points in drawn.items() for one in curves.gathered(points, over, PLACED[over])]


def _by_target_alone(row: dict) -> bool:
    """Whether a number of a detection is a point of a curve over targets."""
    is_rated = row.get("scenario") in UNSHOWN and row["metric"] in QUALITY
    return is_rated and row.get("stage") == "detect" and row.get("level") is not None


def _by_lead(row: dict) -> tuple[int, dict]:
    name, lead, bound = LEADS.fullmatch(row["metric"]).groups()
    return int(lead), {name + (bound or ""): row["value"]}


def _by_load(row: dict) -> tuple[int, dict]:
    name, load = LOADS.fullmatch(row["metric"]).groups()
    return int(load), {name: row["value"]}


def _by_target(row: dict) -> tuple[float, dict]:
    named = {"value": row["metric"], "lower": f"{row['metric']}_lower", "upper": f"{row['metric']}_upper"}
    return row["level"], {named[part]: row[part] for part in named if part in row}


LEADS, LOADS = re.compile(r"(.+)_h(\d+)(_lower|_upper)?"), re.compile(r"(coverage)_load_(\d+)")
# The points of a curve, and where they stand on it.
POINTS = {
    curves.LEAD: lambda row: row.get("stage") == "forecast" and LEADS.fullmatch(row["metric"]),
    curves.LOAD: lambda row: row.get("stage") == "forecast" and LOADS.fullmatch(row["metric"]),
    curves.LEVEL: _by_target_alone,
}
PLACED = {curves.LEAD: _by_lead, curves.LOAD: _by_load, curves.LEVEL: _by_target}
AT_LEADS = (*ours.AN_HOUR_AHEAD.values(), *(f"coverage_h{lead}" for lead in range(1, 5)))


def _controllers(run: Path, target: Path) -> list[Path]:
    """Copies what the preset's grid was finally driven with, so that it can be driven at other levels and elsewhere."""
    folder = target / final_controllers.FOLDER
    found = sorted((control_folder(run) / final_controllers.FOLDER).glob("*.npz"))
    for path in found:
        packed_weights.write(folder / path.name, packed_weights.read(path))
    return packed_weights.share(folder)


def _at_other_levels(known: list[dict], rows: list[dict]) -> list[dict]:
    """Rows of the same controllers at levels of demand that the run did not drive."""
    place = lambda row: (results.run_of(row), row.get("level"))  # noqa: E731
    driven = {place(row) for row in rows}
    again = {run for run, _ in driven}
    return [
        row
        for row in known
        if row.get("stage") == "control" and results.run_of(row) in again and place(row) not in driven
    ]


def _is_kept(row: dict) -> bool:
    if row.get("stage") == "detect" and row.get("level") not in (None, decisions.HEADLINE):
        return row["method"] == "crfn_by" and row["metric"] in OF_LEVELS
    is_whole = row.get("fold", "all") == "all"
    return is_whole or row["metric"] in OF_FOLDS or row["metric"].startswith(PREFIXES_OF_FOLDS)


def _slim(row: dict) -> dict:
    """Numbers with as many digits as anybody compares, and the beginning of the recording's hash."""
    rounded = {name: _rounded(value) for name, value in row.items()}
    return rounded | ({"data_hash": row["data_hash"][:HASH]} if "data_hash" in row else {})


def _rounded(value: Any) -> Any:
    """A number with the digits that are kept of it, and so every number of a curve."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short


def _check_same_recording(path: Path, rows: list[dict]) -> None:
    """Tables show one recording a folder: rows of another one would hide those that are there."""
    mark = lambda row: (row["preset"], row["data_hash"][:HASH])  # noqa: E731
    known, new = ({mark(row) for row in some if "data_hash" in row} for some in (results.read_rows(path), rows))
    if any(old[0] == one[0] and old != one for old in known for one in new):
        raise DataError(f"{path} has rows of another recording; give a --name of its own, or remove the file first.")


def _commands(run: Path, target: Path, stages: set[str]) -> dict[str, list[str]]:
    """Everything that was run for each stage, here and before; rows of later ones replaced those of earlier ones."""
    record, kept = run / plan.RECORD, target / COMMANDS
    ran = json.loads(record.read_text()).get("commands", {}) if record.exists() else {}
    known = {stage: _listed(said) for stage, said in json.loads(kept.read_text()).items()} if kept.exists() else {}
    for stage in ran:
        if stage.split("-")[0] in stages | {"etl"}:
            said = ["python experiments/run.py " + shlex.join(words) for words in plan.commands_of(run, stage)]
            known[stage] = [*(one for one in known.get(stage, []) if one not in said), *said]
    return known


def _listed(said: str | list[str]) -> list[str]:
    """Earlier versions kept the last command alone."""
    return [said] if isinstance(said, str) else said


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    args = read(PublishOptions, DESCRIPTION, argv, "publish")
    try:
        for path in publish(args.run, args.results, args.name, args.stages):
            print(path)
    except (DataError, OSError) as error:
        print(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(start("publish"))
