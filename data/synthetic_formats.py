"""Writes simulated GPS fixes as raw files in the four datasets' own text formats.

The formats of the datasets of Section 5 (T-Drive, GeoLife, Porto, New York FOIL 2013), with the faults of real files.
Every `append_*` takes one day of fixes, ordered by vehicle and time, and appends it to what is there. A line is a row
of a uint8 array in which the byte 0 means "nothing here"; a block of text is that array without its zeros.
"""

import dataclasses
import datetime
import gzip
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import shapely

from data.synthetic_world import EARTH_RADIUS_M, CityConfig, Fixes, Incident, metres_per_degree

GEOLIFE_HEADER = (
    b"Geolife trajectory\r\nWGS 84\r\nAltitude is in Feet\r\nReserved 3\r\n0,2,255,My Track,0,0,2,8421376\r\n0\r\n"
)
FOIL_HEADER = (
    b"medallion, hack_license, vendor_id, rate_code, store_and_fwd_flag, pickup_datetime, dropoff_datetime,"
    b" passenger_count, trip_time_in_secs, trip_distance,"
    b" pickup_longitude, pickup_latitude, dropoff_longitude, dropoff_latitude\n"
)
PORTO_HEADER = (
    b'"TRIP_ID","CALL_TYPE","ORIGIN_CALL","ORIGIN_STAND","TAXI_ID","TIMESTAMP","DAY_TYPE","MISSING_DATA","POLYLINE"\n'
)
METRES_PER_MILE = 1609.344


class Written(NamedTuple):
    """What a writer put on disk; sums over days."""

    points: int = 0  # positions that a correct reader finds, repeated ones included; a trip record holds two
    duplicate_rows: int = 0  # exact repetitions of the row before
    malformed_rows: int = 0  # rows cut off in the middle; their positions are not in `points`


def append_tdrive(folder: Path, cfg: CityConfig, fixes: Fixes, utc_offset_s: int, rng: np.random.Generator) -> Written:
    """Appends `taxi_id,YYYY-MM-DD HH:MM:SS,lon,lat` in local time: a file per taxi, or gzipped parts of the fleet."""
    rows, duplicates = _repeat_rows(rng, len(fixes.lon), cfg.duplicate_rate)
    fixes = Fixes(*(field[rows] for field in fixes))
    date, clock = _date_and_clock(fixes.time_s + utc_offset_s)
    lon, lat = _number(fixes.lon, 5), _number(fixes.lat, 5)
    table = _columns(_number(fixes.vehicle + 1), b",", date, b" ", clock, b",", lon, b",", lat, b"\n")
    malformed = _cut_lines(rng, table, cfg.malformed_rate, keep=24)
    text, ends = _text(table)
    if cfg.parts == 0:
        place, name = folder / "release" / "taxi_log_2008_by_id", "{}.txt"
        groups = fixes.vehicle + 1
    else:
        place, name = folder, "taxi_log_part_{:03d}.txt.gz"
        groups = fixes.vehicle * cfg.parts // cfg.vehicles
    place.mkdir(parents=True, exist_ok=True)
    for group, start, stop in _runs(groups):
        _append(place / name.format(group), text[ends[start] : ends[stop]])
    return Written(len(rows) - malformed, duplicates, malformed)


def append_geolife(folder: Path, cfg: CityConfig, fixes: Fixes, utc_offset_s: int, rng: np.random.Generator) -> Written:
    """Writes a `.plt` file per user and day, in GMT; consecutive days never share a file."""
    rows, duplicates = _repeat_rows(rng, len(fixes.lon), cfg.duplicate_rate)
    fixes = Fixes(*(field[rows] for field in fixes))
    date, clock = _date_and_clock(fixes.time_s)
    days = 25569 + fixes.time_s / 86400.0  # 1970-01-01 is day 25569 counted from 1899-12-30
    feet = 160 + np.rint(40 * np.sin(300 * fixes.lon) * np.cos(300 * fixes.lat)).astype(np.int64)
    lat, lon = _number(fixes.lat, 6), _number(fixes.lon, 6)
    when = (_number(days, 10), b",", date, b",", clock, b"\r\n")
    table = _columns(lat, b",", lon, b",0,", _number(feet), b",", *when)
    malformed = _cut_lines(rng, table, cfg.malformed_rate, keep=14)
    text, ends = _text(table)
    for user, start, stop in _runs(fixes.vehicle):
        first = datetime.datetime.fromtimestamp(int(fixes.time_s[start]), datetime.UTC)
        path = folder / "Data" / f"{user:03d}" / "Trajectory" / f"{first:%Y%m%d%H%M%S}.plt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GEOLIFE_HEADER + text[ends[start] : ends[stop]])
    return Written(len(rows) - malformed, duplicates, malformed)


def append_porto(folder: Path, cfg: CityConfig, fixes: Fixes, utc_offset_s: int, rng: np.random.Generator) -> Written:
    """Appends trips with a polyline of one position every `fix_s` seconds; a silence begins a new trip."""
    silence = np.diff(fixes.time_s, prepend=fixes.time_s[:1]) > cfg.fix_s
    trips = list(_runs(np.cumsum(silence | _changes(fixes.vehicle) | _changes(fixes.leg))))
    text, ends = _text(_columns(b"[", _number(fixes.lon, 6), b",", _number(fixes.lat, 6), b"],"))
    rows, duplicates = _repeat_rows(rng, len(trips), cfg.duplicate_rate)
    empty, broken = rng.random(len(trips)) < cfg.empty_rate, rng.random(len(trips)) < cfg.malformed_rate
    caller, call_type = rng.integers(2002, 63000, len(trips)), rng.integers(3, size=len(trips))
    points, lines = 0, []
    for row in rows:
        _, start, stop = trips[row]
        time_s, taxi = int(fixes.time_s[start]), 20_000_001 + int(fixes.vehicle[start])
        origin = (f'"A","{caller[row]}",""', f'"B","","{caller[row] % 63 + 1}"', '"C","",""')[call_type[row]]
        polyline = "[]" if empty[row] else f"[{text[ends[start] : ends[stop] - 1].decode()}]"
        points += 0 if empty[row] or broken[row] else stop - start
        polyline = polyline[: len(polyline) // 2] if broken[row] else polyline
        lines.append(f'"{time_s}6{taxi}",{origin},"{taxi}","{time_s}","A","False","{polyline}"\n')
    _append(folder / "train.csv", "".join(lines).encode(), PORTO_HEADER)
    return Written(points, duplicates, int(broken[rows].sum()))


def append_manhattan(
    folder: Path, cfg: CityConfig, fixes: Fixes, utc_offset_s: int, rng: np.random.Generator
) -> Written:
    """Appends 2013 FOIL trip records in local time; a journey without both of its ends is no record."""
    same = (np.diff(fixes.vehicle) == 0) & (np.diff(fixes.leg) == 0)
    begin = np.flatnonzero(same)
    rows, duplicates = _repeat_rows(rng, len(begin), cfg.duplicate_rate)
    begin = begin[np.argsort(fixes.time_s[begin], kind="stable")][rows]
    start, stop = (Fixes(*(field[index] for field in fixes)) for index in (begin, begin + 1))
    seconds, miles = stop.time_s - start.time_s, 1.3 * _distance_m(start, stop) / METRES_PER_MILE
    names = [_hash_name(kind, number) for kind in ("medallion", "licence") for number in range(cfg.vehicles)]
    maker = np.array([b"CMT,1,N,", b"VTS,1,,"])[start.vehicle % 2]
    riders = 1 + (start.time_s + start.vehicle) % 4 // 3
    when = [part for fix in (start, stop) for part in _date_and_clock(fix.time_s + utc_offset_s)]
    where = [_number(part, 6) for fix in (start, stop) for part in (fix.lon, fix.lat)]
    head = (_words(names, start.vehicle), b",", _words(names, start.vehicle + cfg.vehicles), b",", _bytes(maker))
    times = (when[0], b" ", when[1], b",", when[2], b" ", when[3], b",")
    trip = (_number(riders), b",", _number(seconds), b",", _number(miles, 2), b",")
    ends = (where[0], b",", where[1], b",", where[2], b",", where[3], b"\n")
    table = _columns(*head, *times, *trip, *ends)
    malformed = _cut_lines(rng, table, cfg.malformed_rate, keep=40)
    _append(folder / "trip_data_1.csv", _text(table)[0], FOIL_HEADER)
    return Written(2 * (len(rows) - malformed), duplicates, malformed)


def spoil(cfg: CityConfig, fixes: Fixes, rng: np.random.Generator) -> Fixes:
    """Adds GPS noise, zero coordinates and jumps to a place outside the box."""
    count = len(fixes.lon)
    degrees_per_m = 180.0 / (np.pi * EARTH_RADIUS_M)
    noise = cfg.gps_sd_m * degrees_per_m * rng.standard_normal((2, count))
    lon = fixes.lon + noise[0] / np.cos(np.radians(fixes.lat))
    lat = fixes.lat + noise[1]
    fault = rng.random(count)
    jumped = fault < cfg.jump_rate
    lon = np.where(jumped, lon + rng.choice([-1.0, 1.0], count) * rng.uniform(1.0, 3.0, count), lon)
    zero = fault > 1.0 - cfg.zero_rate
    return fixes._replace(lon=np.where(zero, 0.0, lon), lat=np.where(zero, 0.0, lat))


def write_events(folder: Path, incidents: tuple[Incident, ...], zone: datetime.tzinfo) -> None:
    """Writes `events.csv`: start, end (ISO 8601 with the local offset), lon, lat, kind."""
    lines = ["start,end,lon,lat,kind\n"]
    for one in incidents:
        start, end = (datetime.datetime.fromtimestamp(t, zone).isoformat() for t in (one.start_s, one.end_s))
        lines.append(f"{start},{end},{one.lon:.5f},{one.lat:.5f},{one.kind}\n")
    (folder / "events.csv").write_text("".join(lines))


def write_note(folder: Path, cfg: CityConfig) -> None:
    """Writes `SYNTHETIC.txt`, so that nobody takes the files for a recording."""
    note = f"Made by a simulation (data/synthetic_city.py), not recorded: a stand-in for the {cfg.dataset} dataset.\n"
    (folder / "SYNTHETIC.txt").write_text(note + json.dumps(dataclasses.asdict(cfg), default=str, indent=1) + "\n")


def write_zones(folder: Path, seeds: np.ndarray, box: tuple[float, float, float, float]) -> None:
    """Writes `taxi_zones.geojson`: the Voronoi cells of the seeds [Z, 2] (metres from the corner) within the box."""
    lon_min, lat_min, lon_max, lat_max = box
    scale = metres_per_degree(box)
    frame = shapely.box(0.0, 0.0, *(np.array([lon_max - lon_min, lat_max - lat_min]) * scale))
    cells = shapely.voronoi_polygons(shapely.MultiPoint(seeds), extend_to=frame, ordered=True)
    features = []
    for number, cell in enumerate(cells.geoms, start=1):
        ring = shapely.get_coordinates(shapely.intersection(cell, frame)) / scale + [lon_min, lat_min]
        # A corner shared by neighbours is rounded alike in all of them, so rounding opens no gap and makes no overlap.
        geometry = {"type": "MultiPolygon", "coordinates": [[np.round(ring, 5).tolist()]]}
        names = {"location_id": str(number), "zone": f"Synthetic {number}", "borough": "Manhattan"}
        features.append({"type": "Feature", "properties": names, "geometry": geometry})
    text = json.dumps({"type": "FeatureCollection", "features": features})
    (folder / "taxi_zones.geojson").write_text(text)


def _number(values: np.ndarray, decimals: int = 0) -> np.ndarray:
    """Decimal text of numbers with a fixed number of decimals, without leading zeros: uint8 [P, W]."""
    scaled = np.rint(values * 10.0**decimals).astype(np.int64) if decimals else values
    rest = np.abs(scaled)
    width = max(len(str(rest.max(initial=0))), decimals + 1)
    digits = np.empty((width, len(values)), np.uint8)
    for place in range(width - 1, -1, -1):
        quotient = rest // 10
        digits[place] = rest - 10 * quotient + ord("0")
        if place < width - decimals - 1:
            digits[place] *= rest > 0  # a leading zero
        rest = quotient
    sign = np.where(scaled < 0, ord("-"), 0).astype(np.uint8)[None]
    point = np.full((1 if decimals else 0, len(values)), ord("."), np.uint8)
    return np.concatenate([sign, digits[: width - decimals], point, digits[width - decimals :]]).T


def _date_and_clock(time_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Text YYYY-MM-DD and HH:MM:SS of seconds since 1970: uint8 [P, 10] and [P, 8]."""
    day, second = np.divmod(time_s, 86400)
    days, index = np.unique(day, return_inverse=True)
    dates = np.datetime_as_string(days.astype("datetime64[D]")).astype("S10")
    clock = np.stack([second // 3600, second // 60 % 60, second % 60], axis=1).astype(np.uint8)  # [P, 3]
    text = np.full((len(time_s), 8), ord(":"), np.uint8)
    text[:, 0::3], text[:, 1::3] = clock // 10 + ord("0"), clock % 10 + ord("0")
    return _bytes(dates)[index], text


def _bytes(words: np.ndarray) -> np.ndarray:
    """Fixed-width byte strings [P] as uint8 [P, W]."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), words.dtype.itemsize)


def _words(words: list[str], index: np.ndarray) -> np.ndarray:
    return _bytes(np.array(words, "S"))[index]


def _hash_name(kind: str, number: int) -> str:
    return hashlib.md5(f"{kind} {number}".encode()).hexdigest().upper()


def _columns(*parts: np.ndarray | bytes) -> np.ndarray:
    """Sets text columns, and constants repeated in every row, side by side: uint8 [P, W]."""
    count = next(len(part) for part in parts if isinstance(part, np.ndarray))
    wide = [
        part if isinstance(part, np.ndarray) else np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part)))
        for part in parts
    ]
    return np.concatenate(wide, axis=1)


def _text(table: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The lines as one text, and where each begins [P + 1]."""
    written = table != 0
    return table[written].tobytes(), np.append(0, np.cumsum(written.sum(axis=1)))


def _cut_lines(rng: np.random.Generator, table: np.ndarray, rate: float, keep: int) -> int:
    """Cuts random lines of the table short in place, so that fields are missing, and says how many."""
    cut = rng.random(len(table)) < rate
    table[cut, keep:-2] = 0
    return int(cut.sum())


def _repeat_rows(rng: np.random.Generator, count: int, rate: float) -> tuple[np.ndarray, int]:
    """Row numbers in order, some of them twice, and how many are repetitions."""
    twice = rng.random(count) < rate
    return np.repeat(np.arange(count), 1 + twice), int(twice.sum())


def _changes(values: np.ndarray) -> np.ndarray:
    return np.diff(values, prepend=values[:1]) != 0


def _runs(values: np.ndarray) -> list[tuple[int, int, int]]:
    """Maximal runs of equal values as (value, start, stop)."""
    starts = np.append(0, np.flatnonzero(np.diff(values)) + 1) if len(values) else np.zeros(0, np.int64)
    stops = np.append(starts[1:], len(values))
    return [(int(values[a]), int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def _distance_m(start: Fixes, stop: Fixes) -> np.ndarray:
    """Local straight-line distance [P]."""
    east = np.radians(stop.lon - start.lon) * np.cos(np.radians(start.lat))
    return EARTH_RADIUS_M * np.hypot(east, np.radians(stop.lat - start.lat))


def _append(path: Path, text: bytes, header: bytes = b"") -> None:
    """Appends to a file; a `.gz` file gets one more gzip member, without a time: equal cities are equal bytes."""
    text = text if path.exists() else header + text
    with path.open("ab") as file:
        file.write(gzip.compress(text, compresslevel=1, mtime=0) if path.suffix == ".gz" else text)
