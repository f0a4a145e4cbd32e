"""Does a run that was killed again and again end with the rows of one that was left alone?

`python experiments/interrupted.py --kills 10` runs the smoke preset twice undisturbed, and then with a SIGKILL to its
whole process group at random moments, and compares the results rows of all runs, wall-clock times left out.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments import results

RUN = Path(__file__).with_name("run.py")
TIMED = ("seconds", "_ms", "per_second")  # endings of metrics that no two runs have alike
FIRST_S = 3.0  # earliest moment of a kill


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if all rows agree and 1 otherwise."""
    args = _arguments(argv)
    console = Console()
    folder = args.out or Path(tempfile.mkdtemp(prefix="interrupted-"))
    undisturbed = []
    for name in ("alone", "again"):
        start = time.perf_counter()
        finish(args, folder / name)
        undisturbed.append(time.perf_counter() - start)
        console.print(f"{name}: {undisturbed[-1]:.0f} s")
    moments: list[float] = []
    names = ["alone", "again"]
    while len(moments) < args.kills:  # a run that reaches its end makes room for another
        names.append(f"killed_{len(names) - 1}")
        moments += kill_often(args, folder / names[-1], args.kills - len(moments), undisturbed[0], console)
        finish(args, folder / names[-1])
    runs = {name: comparable(folder / name) for name in names}
    facts = {"dataset": args.dataset, "preset": args.preset, "stage": "interrupted", "method": "run"}
    rows = [facts | {"metric": "rows", "value": sum(runs["alone"].values())}]
    rows += [facts | {"metric": f"rows_{name}_differ", "value": differing(runs["alone"], runs[name])} for name in runs]
    rows += [facts | {"metric": "killed_after_s", "value": moment} for moment in moments]
    rows.append(facts | {"metric": "undisturbed_seconds", "value": undisturbed[0]})
    results.write_rows(args.results / "interrupted.jsonl", rows)
    table = Table("run", "rows", "unlike the first run's", title=f"{args.kills} kills, {args.dataset}, {args.preset}")
    for name, found in runs.items():
        table.add_row(name, str(sum(found.values())), str(differing(runs["alone"], found)))
    console.print(table)
    return int(any(differing(runs["alone"], found) for found in runs.values()))


def finish(args: argparse.Namespace, out: Path) -> None:
    """Runs to the end."""
    done = subprocess.run(command(args, out), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The run in {out} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def kill_often(args: argparse.Namespace, out: Path, kills: int, length_s: float, console: Console) -> list[float]:
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


def command(args: argparse.Namespace, out: Path) -> list[str]:
    """The run as a user starts it."""
    return [sys.executable, str(RUN), "--dataset", args.dataset, "--preset", args.preset, "--out", str(out), *args.more]


def written(out: Path) -> str:
    """Which results there are so far."""
    return ", ".join(sorted({path.stem for path in out.glob("results/**/*.jsonl")})) or "no results"


def comparable(out: Path) -> Counter:
    """How often each row is there, without those that tell how long something took."""
    rows = (row for path in sorted(out.glob("results/**/*.jsonl")) for row in results.read_rows(path))
    return Counter(repr(sorted(row.items())) for row in rows if not str(row.get("metric", "")).endswith(TIMED))


def differing(one: Counter, other: Counter) -> int:
    """Rows that are in one of the two only."""
    return sum(((one - other) + (other - one)).values())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="synthetic")
    parser.add_argument("--preset", default="smoke", choices=("smoke", "default", "paper"))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, help="an empty folder for the three runs (a temporary one)")
    parser.add_argument("--results", type=Path, default=Path("results/bench"))
    parser.add_argument("more", nargs="*", help="further options of run.py, after --")
    args = parser.parse_args(argv)
    if args.kills < 1 or (args.out and args.out.exists() and any(args.out.iterdir())):
        parser.error("--kills must be at least 1, and --out a folder that is empty or does not exist")
    return args


if __name__ == "__main__":
    sys.exit(main())
