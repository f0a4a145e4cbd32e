"""The ETL on the whole of T-Drive: Spark against a careful pandas version of the same tensor, and growth in points.

    python experiments/bench/etl.py --raw DIR            both, side by side, and 1x 2x 4x 8x points
    python experiments/bench/etl.py --raw DIR --growth   the growth alone

Each run is a process of its own, so that seconds include all start-up and peak memory is its own. Rows are appended to
results/bench/etl.jsonl.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from data.loader import load
from data.spark_etl.inputs import RawInputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.schema import CITIES
from data.spark_etl.session import spark_session
from experiments.bench import etl_pandas

RESULTS = Path("results/bench/etl.jsonl")
HEAP = "3g"


def main() -> None:
    """Runs the workers one after another and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, help="folder of T-Drive files")
    parser.add_argument("--growth", action="store_true", help="only 1x, 2x, 4x, 8x points on Spark")
    parser.add_argument("--repeats", type=int, default=2, help="alternating repetitions of the comparison")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs="*", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(WORKERS[args.worker](args.files, args.save)))
        return
    files = sorted(path for pattern in ("*.txt", "*.txt.gz", "*.txt.bz2") for path in args.raw.rglob(pattern))
    rows = [] if args.growth else compare(files, args)
    rows += grow(files, args)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with open(RESULTS, "a") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def compare(files: list[Path], args: argparse.Namespace) -> list[dict]:
    """Alternates the versions; refuses to report times of tensors that differ."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        saved = {name: Path(folder) / f"{name}.npz" for name in ("spark", "pandas", "pandas-2-threads")}
        for repeat in range(args.repeats):
            for name, path in saved.items():
                rows.append(run_worker(name, files, args, path) | {"repeat": repeat, "bench": "compare"})
        tensors = {name: dict(np.load(path)) for name, path in saved.items()}
    for name, tensor in tensors.items():
        for field, array in tensors["spark"].items():
            np.testing.assert_array_equal(array, tensor[field], err_msg=f"spark and {name} differ in {field}")
    _print(rows, "Spark and pandas on the whole of T-Drive: equal tensors")
    return rows


def grow(files: list[Path], args: argparse.Namespace) -> list[dict]:
    """Spark on one, two, four and all eight eighths of the files."""
    rows = []
    for share in (8, 4, 2, 1):
        part = files[: max(len(files) // share, 1)]
        rows.append(run_worker("spark", part, args, None) | {"bench": "growth", "times": 8 // share})
    _print(rows, "Growth on Spark")
    return rows


def run_worker(name: str, files: list[Path], args: argparse.Namespace, save: Path | None) -> dict:
    """One version in a process of its own; wall seconds are the parent's."""
    command = [sys.executable, __file__, "--raw", str(args.raw), "--worker", name, "--files", *map(str, files)]
    start = time.perf_counter()
    run = subprocess.run(command + (["--save", str(save)] if save else []), capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{name} failed:\n{run.stderr[-2000:]}")
    row = json.loads(run.stdout.splitlines()[-1])
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {"version": name, "seconds": round(time.perf_counter() - start, 1), "machine": machine} | row


def spark_worker(files: list[Path], save: Path | None) -> dict:
    """The job as run.py runs it; memory is that of the Python driver and of the JVM apart."""
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session(None, HEAP)
        jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        cfg, out = JobConfig(CITIES["tdrive"]), Path(folder) / "data"
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        manifest = run_job(spark, cfg, RawInputs(tuple(files)), out, Console(quiet=True), scratch)
        if save:
            shard = load(out).steps(0, manifest["steps"])
            np.savez(
                save, values=shard.values, observed=shard.observed, time=shard.time, square=load(out).geometry["ids"]
            )
        return {
            "points": manifest["rows"]["rows_in"],
            "peak_mb": _peak_of(int(jvm)),
            "driver_python_mb": _own_peak(),
        }


def pandas_worker(files: list[Path], save: Path | None, threads: int = 1) -> dict:
    """The careful single-process version."""
    result = etl_pandas.run(files, etl_pandas.EtlConfig(), threads=threads)
    if save:
        np.savez(save, values=result.values, observed=result.observed, time=result.time, square=result.square)
    return {"points": result.counts["rows_in"], "peak_mb": _own_peak()}


WORKERS = {
    "spark": spark_worker,
    "pandas": pandas_worker,
    "pandas-2-threads": lambda files, save: pandas_worker(files, save, threads=2),
}


def _own_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _peak_of(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def _print(rows: list[dict], title: str) -> None:
    table = Table(title=title)
    for name in ("version", "points", "seconds", "µs per point", "peak MB", "of it Python driver"):
        table.add_column(name, justify="right")
    for row in rows:
        per_point = f"{1e6 * row['seconds'] / row['points']:.2f}"
        driver = str(row.get("driver_python_mb", ""))
        table.add_row(row["version"], f"{row['points']:,}", str(row["seconds"]), per_point, str(row["peak_mb"]), driver)
    Console().print(table)


if __name__ == "__main__":
    main()
