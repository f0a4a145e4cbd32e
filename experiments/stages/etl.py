"""The stages of a run: artifact in, artifact out, skipped when neither config nor inputs changed."""

import dataclasses
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from data import download, synthetic_city
from data.errors import DataError
from data.spark_etl import shards
from data.spark_etl.bounds import check_lines
from data.spark_etl.inputs import RawInputs, check_readable, find_inputs
from data.spark_etl.job import JobConfig, run_job
from data.spark_etl.session import spark_session
from experiments.cli import job
from experiments.cli.options import RunOptions
from stream_jax import store

KEY = "etl.key"  # hash of the configuration and the inputs of the dataset beside it


def etl(args: RunOptions, out: Path, console: Console) -> Path:
    """Raw files to the dataset in `<out>/data`; returns its folder."""
    cfg = job.job_config(args)
    with tempfile.TemporaryDirectory(prefix="stream_jax-") as scratch:
        inputs = locate_inputs(args, cfg, out, Path(scratch), console)
        target, key = out / "data", _job_key(cfg, inputs)
        if _is_current(target, key):
            manifest = shards.read_manifest(target)
            shards.verify_content(target, manifest)
            console.print(f"[green]etl[/]: {escape(str(target))} is up to date.")
            _announce(manifest, console)
            return target
        (out / KEY).unlink(missing_ok=True)  # a job killed after its dataset must not leave the old key beside it
        spark = spark_session(args.master, args.memory)
        manifest = run_job(spark, cfg, inputs, target, console, Path(scratch))
        store.write_text(out / KEY, key)
    print_summary(manifest, target, console)
    return target


def locate_inputs(args: RunOptions, cfg: JobConfig, out: Path, scratch: Path, console: Console) -> RawInputs:
    """The real files where there are any, else the city's synthetic twin, said loudly."""
    if cfg.sensors:
        extra = [path for path in (cfg.sensors.adjacency, cfg.sensors.coordinates) if path]
        for path in (cfg.sensors.matrix, *extra):
            check_readable([path])
        check_lines([cfg.sensors.matrix, *extra])
        return RawInputs((cfg.sensors.matrix, *extra))
    raw = job.raw_folder(args)
    if args.download:
        raw = raw or out / "raw"
        download.download(args.dataset, raw, console)
    if raw is not None:
        return find_inputs(cfg.spec.source, raw, scratch, args.trips, args.events)
    if args.dataset == "gps":
        raise DataError("The gps reader needs --raw: a csv or parquet file, or a folder of them.")
    if args.require_real:
        raise DataError(
            f"No real {args.dataset} files: give their folder with --raw, set STREAM_DATA_DIR, "
            "or fetch them with --download."
        )
    if args.dataset != "synthetic":
        console.print(
            f"[bold yellow]SYNTHETIC DATA:[/] no {args.dataset} files were found in --raw or $STREAM_DATA_DIR, "
            f"so its synthetic twin is used; every result says so."
        )
    folder = synthetic_twin(args.dataset, args.preset, out / "raw", console)
    return find_inputs(cfg.spec.source, folder, scratch, args.trips, args.events)


def synthetic_twin(dataset: str, size: str, folder: Path, console: Console) -> Path:
    """Writes the synthetic city's raw files, once per configuration."""
    city = synthetic_city.city_config(dataset, size)
    stamp, want = folder / "complete.json", json.dumps(dataclasses.asdict(city), default=str, sort_keys=True)
    if stamp.exists() and stamp.read_text() == want:
        return folder
    with shards.atomic_folder(folder) as draft:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"writing a synthetic {dataset}: {city.vehicles} vehicles, days", total=city.days)
            synthetic_city.write_city(draft, city, on_day=lambda: progress.advance(task))
        (draft / stamp.name).write_text(want)
    return folder


def print_summary(manifest: dict, folder: Path, console: Console) -> None:
    """The table at the end of the etl stage."""
    rows = manifest["rows"]
    table = Table(title=f"{manifest['dataset']}: {manifest['data']} data")
    table.add_column("rows", justify="left")
    table.add_column("count", justify="right")
    table.add_row("read", f"{rows['rows_in']:,}")
    for reason, count in rows["dropped"].items():
        table.add_row(f"  dropped: {reason.replace('_', ' ')}", f"{count:,}")
    table.add_row("used", f"{rows['used']:,}", style="bold")
    console.print(table)
    folds = manifest["split"]["folds"]
    console.print(
        f"{manifest['steps']:,} steps of {manifest['bin_s'] // 60} min from {manifest['start']}, "
        f"{manifest['cells']} cells, "
        f"{manifest['edges']:,} edges, {len(folds)} {manifest['split']['kind']} fold{'s' if len(folds) > 1 else ''}"
    )
    console.print(
        f"dataset: {folder}   quality page: {folder / 'quality.html'}   content {manifest['content_hash'][:12]}",
        markup=False,
    )
    _announce(manifest, console)


def _announce(manifest: dict, console: Console) -> None:
    console.print(f"data: {manifest['data']}", style="bold yellow" if manifest["data"] == "synthetic" else "bold green")


def _job_key(cfg: JobConfig, inputs: RawInputs) -> str:
    return store.key("dataset", cfg, inputs.describe(), length=64)


def _is_current(target: Path, key: str) -> bool:
    stamp = target.parent / KEY
    return stamp.exists() and stamp.read_text() == key and (target / shards.MANIFEST).exists()
