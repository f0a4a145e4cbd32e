"""Turns raw T-Drive logs into the flow, speed and density tensor in one process, with pandas, pyarrow and numpy.

The rival of the Spark job: the definitions are those of docs/concepts/data.md, so both must write the same bits. Only
integers are summed, so the order of summation cannot matter; the floats are a fixed chain of IEEE operations per fix
or cell.
"""

import argparse
import contextlib
import dataclasses
import math
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

METRES_PER_DEGREE = math.pi / 180 * 6_371_008.8  # along a meridian; the earth's mean radius is in metres
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
DECIMAL = r"^-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$"
FIELDS = {  # of a raw row, in order: what a well-formed one looks like, and its type
    "vehicle_id": (r"^-?[0-9]{1,18}$", pa.int64()),
    "time": (r"^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}$", pa.timestamp("s")),
    "lon": (DECIMAL, pa.float64()),
    "lat": (DECIMAL, pa.float64()),
}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class EtlConfig:
    """The tdrive row of the data contract."""

    box: tuple[float, float, float, float] = (116.20, 116.60, 39.75, 40.05)  # west, east, south, north; degrees
    size: float = 1000.0  # side of a square, metres
    cells: int = 293  # squares kept
    max_gap_s: int = 900  # longest movement
    max_speed_mps: float = 50.0
    bin_s: int = 900  # length of a step
    utc_offset_s: int = 8 * 3600  # local minus UTC; China has had no clock change since 1991


class Fixes(NamedTuple):
    """Positions of vehicles; after `sort_fixes` by vehicle, time, longitude, latitude."""

    vehicle: Ints  # [P]
    time: Ints  # [P] unix seconds, UTC
    lon: Floats  # [P] degrees
    lat: Floats  # [P] degrees

    def where(self, keep: Bools) -> "Fixes":
        """The fixes that a mask selects, in the same order."""
        return Fixes(*(column[keep] for column in self))


class Track(NamedTuple):
    """Cleaned fixes in metres and steps; row i - 1 is the fix before row i where both are of one vehicle."""

    vehicle: Ints  # [P]
    step: Ints  # [P] 0 = first step of the recording
    square: Ints  # [P] id over the whole grid
    begins_visit: Bools  # [P] no movement joins it to a previous fix in its square
    ends_movement: Bools  # [P]
    speed_mm: Ints  # [P] mm/s of the movement that ends here, 0 without one


class Phase(NamedTuple):
    """What one phase of a run cost."""

    name: str
    seconds: float
    peak_rss_mb: float  # high-water mark of the process when the phase ended


class PandasResult(NamedTuple):
    """The traffic tensor and the account of every row that went in."""

    values: NDArray[np.float32]  # [T, N, 3] flow (vehicles per step), speed (m/s), density (vehicles); 0 where missing
    observed: Bools  # [T, N, 3]
    time: Ints  # [T] unix seconds at which the steps start
    square: Ints  # [N] ids, ascending
    counts: dict[str, int]  # rows_in, dropped by reason, used
    phases: tuple[Phase, ...]


def run(paths: list[Path], cfg: EtlConfig, threads: int = 1) -> PandasResult:
    """Reads the logs, `threads` files at a time, cleans and counts on one core; ValueError where no fix survives."""
    phases: list[Phase] = []
    start = time.perf_counter()
    fixes, counts = read(paths, cfg, threads)
    start = _lap(phases, "read", start)
    fixes = sort_fixes(fixes)
    start = _lap(phases, "sort", start)
    fixes, dropped = clean(fixes, cfg)
    start = _lap(phases, "clean", start)
    if not fixes.time.size:
        raise ValueError(f"no fix is left after the cleaning: {dropped}")
    first_step = int(fixes.time.min()) // cfg.bin_s
    num_steps = int(fixes.time.max()) // cfg.bin_s - first_step + 1
    track = join_movements(fixes, cfg, first_step)
    start = _lap(phases, "join", start)
    square = choose_squares(track, cfg, num_steps)
    values, observed, used = count_features(track, square, cfg, num_steps)
    _lap(phases, "count", start)
    counts |= dropped | {"outside_cells": track.step.size - used, "used": used}
    if counts["rows_in"] != sum(counts.values()) - counts["rows_in"]:
        raise ValueError(f"rows in are not used + dropped: {counts}")
    starts = (first_step + np.arange(num_steps, dtype=np.int64)) * cfg.bin_s  # [T]
    return PandasResult(values, observed, starts, square, counts, tuple(phases))


def read(paths: list[Path], cfg: EtlConfig, threads: int = 1) -> tuple[Fixes, dict[str, int]]:
    """All well-formed rows of the files, and how many rows there were and how many are malformed."""
    with ThreadPoolExecutor(threads) as pool:  # bzip2 and the CSV parser run outside the interpreter lock
        parts = list(pool.map(lambda path: _read_file(path, cfg), paths))
    fixes = Fixes(*(np.concatenate(columns) for columns in zip(*(part for part, _ in parts), strict=True)))
    malformed = sum(bad for _, bad in parts)
    return fixes, {"rows_in": fixes.time.size + malformed, "malformed": malformed, "nonexistent_local_time": 0}


def sort_fixes(fixes: Fixes) -> Fixes:
    """Orders by vehicle, time, longitude, latitude; vehicles are renamed 0, 1, ... by first appearance."""
    vehicle = pd.factorize(fixes.vehicle)[0].astype(np.int64)
    span = int(np.ptp(fixes.time)) + 1
    key = vehicle * span + (fixes.time - fixes.time.min())
    order = np.argsort(key, kind="stable")  # quick, since the logs are nearly in order; positions only break ties
    key = key[order]
    repeats = np.concatenate([[False], key[1:] == key[:-1], [False]])
    tied = np.flatnonzero(repeats[1:] | repeats[:-1])  # members of a group with one vehicle and second
    rows = order[tied]
    order[tied] = rows[np.lexsort((fixes.lat[rows], fixes.lon[rows], key[tied]))]
    return Fixes(vehicle[order], fixes.time[order], fixes.lon[order], fixes.lat[order])


def clean(fixes: Fixes, cfg: EtlConfig) -> tuple[Fixes, dict[str, int]]:
    """Drops bad fixes in the contract's order, and says how many fell to each reason."""
    west, east, south, north = cfg.box
    dropped = {}
    tests = {
        "duplicate": lambda f: ~_same_as_previous(*f),
        "zero_coordinate": lambda f: (f.lon != 0) & (f.lat != 0),
        "outside_box": lambda f: (west <= f.lon) & (f.lon < east) & (south <= f.lat) & (f.lat < north),
        "repeated_time": lambda f: ~_same_as_previous(f.vehicle, f.time),
        "impossible_speed": lambda f: _is_plausible(f, cfg),
    }
    for reason, test in tests.items():
        keep = test(fixes)
        dropped[reason] = keep.size - int(np.count_nonzero(keep))
        fixes = fixes.where(keep)
    return fixes, dropped


def join_movements(fixes: Fixes, cfg: EtlConfig, first_step: int) -> Track:
    """Squares, steps, visits and movements of cleaned fixes."""
    x, y = project(fixes.lon, fixes.lat, cfg)
    square = np.floor(y / cfg.size).astype(np.int64) * grid_shape(cfg)[1] + np.floor(x / cfg.size).astype(np.int64)
    distance, seconds = _steps_between(x, y, fixes.time)  # [P - 1]
    joined = _same_as_previous(fixes.vehicle)
    joined[1:] &= (seconds <= cfg.max_gap_s) & (distance <= cfg.max_speed_mps * seconds)
    speed_mm = np.zeros(square.size, np.int64)
    ends = joined[1:]
    speed_mm[1:][ends] = np.floor(distance[ends] / seconds[ends] * 1000 + 0.5).astype(np.int64)
    step = fixes.time // cfg.bin_s - first_step
    return Track(fixes.vehicle, step, square, ~(joined & _same_as_previous(square)), joined, speed_mm)


def choose_squares(track: Track, cfg: EtlConfig, num_steps: int) -> Ints:
    """Ids of the squares with the most flow in the first half of the steps, ascending; never one without flow there."""
    early = track.begins_visit & (track.step < num_steps // 2)
    flow = np.bincount(track.square[early], minlength=math.prod(grid_shape(cfg)))
    busiest = np.argsort(-flow, kind="stable")[: cfg.cells]  # stable: of equal squares the smaller id comes first
    return np.sort(busiest[flow[busiest] > 0]).astype(np.int64)


def count_features(track: Track, square: Ints, cfg: EtlConfig, num_steps: int) -> tuple[NDArray, Bools, int]:
    """The tensor [T, N, 3] over the kept squares, its mask, and how many fixes lie in those squares."""
    shape = (num_steps, square.size)
    node_of = np.full(math.prod(grid_shape(cfg)), -1, np.int64)
    node_of[square] = np.arange(square.size)
    track = Track(*(column[node_of[track.square] >= 0] for column in track))
    slot = track.step * square.size + node_of[track.square]  # flat index into [T, N]
    ends = track.ends_movement
    flow = _totals(slot[track.begins_visit], shape)
    movements = _totals(slot[ends], shape)
    speed = _totals(slot[ends], shape, track.speed_mm[ends]) / np.maximum(movements, 1) / 1000.0
    seen = track.vehicle * math.prod(shape) + slot
    seen = np.sort(seen[~_same_as_previous(seen)])  # most repetitions are neighbours, which need no sorting
    density = _totals(seen[~_same_as_previous(seen)] % math.prod(shape), shape)
    values = np.stack([flow, speed, density], axis=-1).astype(np.float32)
    alive = np.broadcast_to(density.any(axis=1)[:, None], shape)  # no fix in the whole city is an outage
    return values, np.stack([alive, movements > 0, alive], axis=-1), slot.size


def project(lon: Floats, lat: Floats, cfg: EtlConfig) -> tuple[Floats, Floats]:
    """Metres east and north of the box's corner, by the equirectangular projection of the data contract."""
    west, _, south, north = cfg.box
    metres_per_lon = METRES_PER_DEGREE * math.cos(math.pi / 180 * ((south + north) / 2))
    return (lon - west) * metres_per_lon, (lat - south) * METRES_PER_DEGREE


def grid_shape(cfg: EtlConfig) -> tuple[int, int]:
    """Rows and columns of the grid that covers the box."""
    width, height = project(cfg.box[1], cfg.box[3], cfg)
    return math.ceil(height / cfg.size), math.ceil(width / cfg.size)


def _lap(phases: list[Phase], name: str, start: float) -> float:
    now = time.perf_counter()  # the start of the next phase
    phases.append(Phase(name, now - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))  # KiB on Linux
    return now


def _same_as_previous(*columns: NDArray) -> Bools:
    same = np.zeros(columns[0].size, bool)
    same[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    return same


def _steps_between(x: Floats, y: Floats, seconds: Ints) -> tuple[Floats, Ints]:
    dx, dy = np.diff(x), np.diff(y)
    return np.sqrt(dx * dx + dy * dy), np.diff(seconds)  # not hypot, which rounds differently


def _is_plausible(fixes: Fixes, cfg: EtlConfig) -> Bools:
    """Reachable from the previous fix or to the next one, or without neighbours."""
    distance, seconds = _steps_between(*project(fixes.lon, fixes.lat, cfg), fixes.time)
    has_previous = _same_as_previous(fixes.vehicle)
    reached = has_previous.copy()
    reached[1:] &= distance <= cfg.max_speed_mps * seconds
    leads_on, has_next = (np.append(flags[1:], False) for flags in (reached, has_previous))
    return reached | leads_on | ~(has_previous | has_next)


def _totals(slots: Ints, shape: tuple[int, int], weights: Ints | None = None) -> Ints:
    # Exact although bincount adds weights as float64: they are integers and the sums stay below 2^53.
    return np.bincount(slots, weights, minlength=math.prod(shape)).astype(np.int64).reshape(shape)


def _read_file(path: Path, cfg: EtlConfig) -> tuple[Fixes, int]:
    """Well-formed rows of one log (plain, .bz2 or .gz) and the number of malformed ones; blank lines are no rows."""
    if not path.stat().st_size:
        return Fixes(*(np.empty(0, kind) for kind in (np.int64, np.int64, float, float))), 0
    wrong_width: list[csv.InvalidRow] = []
    table = csv.read_csv(
        path,
        csv.ReadOptions(column_names=list(FIELDS), use_threads=False, block_size=8 << 20),
        csv.ParseOptions(quote_char=False, invalid_row_handler=lambda row: wrong_width.append(row) or "skip"),
        csv.ConvertOptions(column_types=dict.fromkeys(FIELDS, pa.string()), check_utf8=False),
    )
    parsed = [_parse(table[name], pattern, kind) for name, (pattern, kind) in FIELDS.items()]
    vehicle, local, lon, lat = (values for values, _ in parsed)
    ok = np.logical_and.reduce([real for _, real in parsed]) & np.isfinite(lon) & np.isfinite(lat)
    fixes = Fixes(vehicle, local.astype(np.int64) - cfg.utc_offset_s, lon, lat)
    bad = int(ok.size - np.count_nonzero(ok))
    return fixes.where(ok) if bad else fixes, bad + len(wrong_width)


def _parse(text: pa.ChunkedArray, pattern: str, kind: pa.DataType) -> tuple[NDArray, Bools]:
    """Typed values and which of them are real; only a column with a bad field is looked at field by field."""
    is_time = pa.types.is_timestamp(kind)
    with contextlib.suppress(pa.ArrowInvalid):
        # Arrow would also read a date alone, or a T between date and time.
        is_odd = pc.or_(pc.not_equal(pc.binary_length(text), 19), pc.match_substring(text, "T")) if is_time else [False]
        if not pc.any(is_odd).as_py():
            return pc.cast(text, kind).to_numpy(), np.ones(len(text), bool)
    ok = pc.match_substring_regex(text, pattern).to_numpy().copy()
    if is_time:  # 30 February has the pattern and no value
        ok[ok] = pd.to_datetime(text.filter(pa.array(ok)).to_pandas(), format=TIME_FORMAT, errors="coerce").notna()
    filled = pc.if_else(pa.array(ok), text, "2000-01-01 00:00:00" if is_time else "0")
    return pc.cast(filled, kind).to_numpy(), ok


def main() -> None:
    """Runs on the given logs, prints counts and costs, and writes the tensor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    result = run(sorted(args.paths), EtlConfig(), args.threads)
    np.savez(args.out, values=result.values, observed=result.observed, time=result.time, square=result.square)
    for name, count in result.counts.items():
        print(f"{name:24s}{count:12,d}")
    total = Phase("total", sum(phase.seconds for phase in result.phases), result.phases[-1].peak_rss_mb)
    for phase in (*result.phases, total):
        print(f"{phase.name:24s}{phase.seconds:10.2f} s{phase.peak_rss_mb:10.0f} MB peak")


if __name__ == "__main__":
    main()
