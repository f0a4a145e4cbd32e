"""Does a run that was killed again and again end with the rows of one that was left alone?

`python experiments/interrupted.py --kills 10` runs the smoke preset twice undisturbed, and then with a SIGKILL to its
whole process group at random moments, and compares the results rows of all runs, wall-clock times left out.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from data.errors import DataError
from experiments.cli.main import start
from experiments.cli.options import PRESETS
from experiments.cli.reading import UNSET, read
from experiments.compare import comparable, differing
from experiments.evaluation import results

RUN = Path(__file__).with_name("run.py")
KILLS = "kills.json"
FIRST_S = 3.0  # earliest moment of a kill


DESCRIPTION = """\
Runs one preset twice undisturbed, then kills it at random moments and starts it again until it ends. At the end it
compares the results rows of all runs; wall-clock times are left out. The exit code is 0 if all rows agree.

  stream-jax interrupted --kills 10                        ten kills of the smoke preset
  stream-jax interrupted --kills 4 -- --stage etl          further options of `stream-jax run` after --
"""


@dataclasses.dataclass(frozen=True)
class InterruptedOptions:
    """What is run and killed."""

    dataset: str = "synthetic"
    """as for `stream-jax run`"""
    preset: Literal[PRESETS] = "smoke"  # type: ignore[valid-type]
    """as for `stream-jax run`"""
    kills: int = 10
    """how many kills there are in all"""
    seed: int = 0
    """chooses the moments"""
    out: Annotated[Path | None, UNSET] = None
    """an empty folder for the runs (a temporary one)"""
    results: Path = Path("results/bench")
    """where the rows of the comparison are kept"""
    compare: Annotated[bool, UNSET] = False
    """only compare the runs that --out already holds"""
    more: tyro.conf.Positional[tuple[str, ...]] = ()
    """further options of `stream-jax run`, after --"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if all rows agree and 1 otherwise."""
    args = _options(argv)
    console = Console()
    folder = args.out or Path(tempfile.mkdtemp(prefix="interrupted-"))
    if not args.compare:
        run_all(args, folder, console)
    kills = json.loads((folder / KILLS).read_text())
    runs = {name: comparable(folder / name) for name in ("alone", "again", *kills)}
    unlike = {name: differing(runs["alone"], found) for name, found in runs.items()}
    facts = {"dataset": args.dataset, "preset": args.preset, "stage": "interrupted", "method": "run"}
    rows = [facts | {"metric": "rows", "value": sum(runs["alone"].values())}]
    rows += [facts | {"metric": "rows_that_differ", "run": name, "value": count} for name, count in unlike.items()]
    rows += [facts | {"metric": "killed_after_s", "run": name, "value": s} for name in kills for s in kills[name]]
    results.write_rows(args.results / "interrupted.jsonl", rows)
    table = Table("run", "kills", "rows", "unlike the first run's", title=f"{args.dataset}, {args.preset}")
    for name, count in unlike.items():
        table.add_row(name, str(len(kills.get(name, ()))), str(sum(runs[name].values())), str(count))
    console.print(table)
    return int(any(unlike.values()))


def run_all(args: InterruptedOptions, folder: Path, console: Console) -> None:
    """Two runs that are left alone, and as many as it takes for all kills; which were when is kept in the folder."""
    start = time.perf_counter()
    finish(args, folder / "alone")
    length_s = time.perf_counter() - start
    finish(args, folder / "again")
    kills: dict[str, list[float]] = {}
    while (missing := args.kills - sum(map(len, kills.values()))) > 0:  # a run that reaches its end makes room
        name = f"killed_{len(kills) + 1}"
        kills[name] = kill_often(args, folder / name, missing, length_s, console)
        finish(args, folder / name)
    (folder / KILLS).write_text(json.dumps(kills))


def finish(args: InterruptedOptions, out: Path) -> None:
    """Runs to the end."""
    done = subprocess.run(command(args, out), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The run in {out} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def kill_often(args: InterruptedOptions, out: Path, kills: int, length_s: float, console: Console) -> list[float]:
    """Starts a run and kills it, at most `kills` times; the seconds after which each start was killed.

    What is finished stays, so that a start may last three tenths of a whole run: the kills fall all over it.
    """
    draw, moments = random.Random(f"{args.seed} {out.name}"), []
    while len(moments) < kills:
        moment = draw.uniform(FIRST_S, max(0.3 * length_s, 2.0 * FIRST_S))
        process = subprocess.Popen(
            command(args, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(moment)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            moments.append(moment)
            console.print(f"{out.name}: killed after {moment:.1f} s, when it had written {written(out)}")
    return moments


def command(args: InterruptedOptions, out: Path) -> list[str]:
    """The run as a user starts it."""
    return [sys.executable, str(RUN), "--dataset", args.dataset, "--preset", args.preset, "--out", str(out), *args.more]


def written(out: Path) -> str:
    """Which results there are so far."""
    return ", ".join(sorted({path.stem for path in out.glob("results/**/*.jsonl")})) or "no results"


def _options(argv: Sequence[str] | None) -> InterruptedOptions:
    """Refuses what cannot be meant."""
    args = read(InterruptedOptions, DESCRIPTION, argv, "interrupted")
    is_used = bool(args.out and args.out.exists() and any(args.out.iterdir()))
    if args.kills < 1 or is_used != args.compare:
        raise DataError("Give --kills of at least 1 and an empty folder --out, or --compare one with finished runs.")
    return args


if __name__ == "__main__":
    sys.exit(start("interrupted"))
