"""Writes a run's results for other programs: `stream-jax export RUN --to parquet`."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import rich
import tyro

from data import loader
from data.errors import DataError
from data.loader import TrafficDataset
from experiments.cli.main import start
from experiments.cli.reading import UNSET, read
from experiments.exporting import city, places, road
from stream_jax import store

FORMATS = ("parquet", "csv", "geojson")
STAGES = ("forecast", "detect", "control")
ISO = "%Y-%m-%dT%H:%M:%SZ"
DESCRIPTION = """\
Writes forecasts, detections, drives and plans of a finished run as tables, and its cells and signals as maps. Times are
UTC, places are longitude and latitude (WGS 84).

  stream-jax export runs/synthetic-smoke --to parquet               everything, into runs/synthetic-smoke/export
  stream-jax export runs/porto-default --to csv --stage forecast    forecasts alone
  stream-jax export runs/porto-default --to geojson --out maps      maps for QGIS or geopandas
"""


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """What is written, and how."""

    run: tyro.conf.Positional[Path]
    """folder of a run, as given to `run --out`"""
    to: Literal[FORMATS] = "parquet"  # type: ignore[valid-type]
    """format of the files; geojson has the alarms and the last forecasts alone"""
    stage: Annotated[
        tuple[Literal[STAGES], ...] | None,  # type: ignore[valid-type]
        UNSET,
        tyro.conf.arg(metavar=f"{{{','.join(STAGES)}}} ..."),
    ] = None
    """only what these stages made (all)"""
    method: str = "pu_gat_plus"
    """whose forecasts"""
    seed: int = 0
    """which training of it"""
    out: Annotated[Path | None, UNSET] = None
    """folder of the files (RUN/export)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the files; returns the exit code."""
    args = read(ExportOptions, DESCRIPTION, argv, "export")
    if args.seed < 0:
        raise DataError(f"--seed {args.seed} is negative; the first training is 0.")
    dataset = loader.load(args.run / "data", verify=True)
    folder, console = args.out or args.run / "export", rich.get_console()
    found = dict(tables(args, dataset, console))
    missing = [name for name in args.stage or () if not any(of == name for of, _ in found)]
    if missing:
        raise DataError(f"{args.run} has nothing of {args.method} from stage {missing[0]}; run it first.")
    try:
        write_all(folder, found, dataset, args.to, console)
    except OSError as error:
        raise DataError(f"Cannot write to {folder}: {error.strerror or error}; choose another --out.") from None
    return 0


def tables(
    args: ExportOptions, dataset: TrafficDataset, console: rich.console.Console
) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """What the run has of the stages asked for: (stage, name of the file) and the table."""
    wanted = args.stage or STAGES
    if "forecast" in wanted and (found := city.forecasts(args.run, dataset, args.method, args.seed)) is not None:
        yield ("forecast", "forecasts"), found
    if "detect" in wanted and (found := city.detections(args.run, dataset, args.seed)) is not None:
        yield ("detect", "detections"), found
    for control in sorted(args.run.glob("control*")) if "control" in wanted else ():
        if (network := places.network_of(control)) is None:
            continue
        mark = control.name.removeprefix("control")
        yield ("control", f"signals{mark}"), places.signals(network, dataset)
        made = road.road_tables(control, network, dataset)
        if made.left_out:
            sentence = f"{made.left_out} episodes in {control} are of an earlier version that kept no times; left out."
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        if len(made.drives):
            yield ("control", f"drives{mark}"), made.drives
            yield ("control", f"plans{mark}"), made.plans


def write_all(
    folder: Path,
    found: dict[tuple[str, str], pd.DataFrame],
    dataset: TrafficDataset,
    to: str,
    console: rich.console.Console,
) -> None:
    """One file for each table, and always the map of the cells."""
    maps = {"cells": places.cells(dataset)}
    if to == "geojson":
        maps |= {name: places.points(rows) for name, rows in mapped(found)}
    else:
        tabled = {"cells": pd.DataFrame(dict(zip(("name", "lon", "lat"), places.cell_places(dataset), strict=True)))}
        for name, table in (tabled | {name: table for (_, name), table in found.items()}).items():
            write_table(folder / f"{name}.{to}", table)
            console.print(f"{folder / name}.{to}: {len(table):,} rows", markup=False, highlight=False, soft_wrap=True)
        maps |= {name: places.points(table) for (_, name), table in found.items() if name.startswith("signals")}
    for name, shapes in maps.items():
        store.write_text(folder / f"{name}.geojson", json.dumps(shapes, ensure_ascii=False, allow_nan=False))
        words = f"{folder / name}.geojson: {len(shapes['features']):,} features"
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def mapped(found: dict[tuple[str, str], pd.DataFrame]) -> Iterator[tuple[str, pd.DataFrame]]:
    """What a map can show of the tables: the forecasts issued last, the alarms, the signals."""
    for (_, name), table in found.items():
        if name == "forecasts":
            yield "last_forecasts", table[table["issued"] == table["issued"].max()]
        elif name == "detections":
            yield "alarms", table[table["rejected"]]
        elif name.startswith("signals"):
            yield name, table


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Parquet with times that have a zone, or csv (RFC 4180) with times as ISO 8601."""
    with store.whole_file(path) as draft:
        if path.suffix == ".parquet":
            table.to_parquet(draft, index=False)
            return
        times = {name: table[name].dt.strftime(ISO) for name in table if hasattr(table[name].dtype, "tz")}
        table.assign(**times).to_csv(draft, index=False, lineterminator="\r\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(start("export"))
