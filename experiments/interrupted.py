"""Does a run that was killed again and again end with the rows of one that was left alone?

`python experiments/interrupted.py --kills 10` runs the smoke preset twice undisturbed, and then with a SIGKILL to its
whole process group at random moments, and compares the results rows of all runs, wall-clock times left out.
"""

import argparse
import json
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

from experiments.evaluation import results

RUN = Path(__file__).with_name("run.py")
TIMED = ("seconds", "_ms")  # in the names of metrics that no two runs have alike
KILLS = "kills.json"
FIRST_S = 3.0  # earliest moment of a kill


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if all rows agree and 1 otherwise."""
    args = _arguments(argv)
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


def run_all(args: argparse.Namespace, folder: Path, console: Console) -> None:
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
    lasting = (row for row in rows if not any(part in str(row.get("metric")) for part in TIMED))
    return Counter(repr(sorted(row.items())) for row in lasting)


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
    parser.add_argument("--compare", action="store_true", help="only compare the runs that --out already holds")
    parser.add_argument("more", nargs="*", help="further options of run.py, after --")
    args = parser.parse_args(argv)
    is_used = bool(args.out and args.out.exists() and any(args.out.iterdir()))
    if args.kills < 1 or is_used != args.compare:
        parser.error("--kills must be at least 1, and --out an empty folder, or with --compare one with finished runs")
    return args


if __name__ == "__main__":
    sys.exit(main())
