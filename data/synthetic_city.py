"""Simulates a city of vehicles with a known truth and writes it as raw files in the four datasets' own formats.

Stands in for the datasets of Section 5 where they are absent, and labels its incidents, which no recording does.
The city itself is in `synthetic_world`, its vehicles in `synthetic_traffic`, the text of the files in
`synthetic_formats`. Memory does not grow with the days: each day is written before the next is simulated.
"""

import argparse
import dataclasses
import datetime
import zoneinfo
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rich.progress

from data import synthetic_formats, synthetic_traffic
from data.synthetic_formats import Written
from data.synthetic_traffic import WEATHER_STEP_S, Fleet
from data.synthetic_world import (
    PLACES,
    CityConfig,
    Fixes,
    Incident,
    build_world,
    draw_incidents,
    metres_per_degree,
    midnight_s,
)

BASE = {
    "synthetic": CityConfig(),
    "tdrive": CityConfig("tdrive", start=datetime.date(2008, 2, 2), zones=320),
    "geolife": CityConfig("geolife", vehicles=182, start=datetime.date(2008, 10, 20), zones=180, fix_s=30),
    "porto": CityConfig("porto", start=datetime.date(2013, 7, 1), zones=480, fix_s=15, surge=14.0),
    "manhattan": CityConfig("manhattan", start=datetime.date(2013, 1, 7), zones=263, fix_s=0, tick_s=180, surge=4.0),
}
SIZES = {
    ("synthetic", "smoke"): {"vehicles": 250, "days": 10, "zones": 36, "fix_s": 300, "parts": 0},
    ("synthetic", "default"): {},
    ("synthetic", "paper"): {"vehicles": 2000, "days": 56, "parts": 8},
    ("tdrive", "smoke"): {"vehicles": 250, "days": 10, "zones": 60, "fix_s": 300, "parts": 0},
    ("tdrive", "default"): {"vehicles": 850},
    ("tdrive", "paper"): {"vehicles": 10357, "days": 7, "parts": 8, "fix_s": 120},
    ("geolife", "smoke"): {"vehicles": 50, "days": 10, "zones": 36, "fix_s": 60},
    ("geolife", "default"): {"days": 21},
    ("geolife", "paper"): {"days": 80, "fix_s": 15},
    ("porto", "smoke"): {"vehicles": 20, "days": 10, "zones": 49},
    ("porto", "default"): {"vehicles": 120, "days": 21},
    ("porto", "paper"): {"vehicles": 442, "days": 365},
    ("manhattan", "smoke"): {"vehicles": 800, "days": 10},
    ("manhattan", "default"): {"vehicles": 5000, "days": 21},
    ("manhattan", "paper"): {"vehicles": 13000, "days": 31, "start": datetime.date(2013, 1, 1), "activity": 1.6},
}
WRITERS = {
    "synthetic": synthetic_formats.append_tdrive,
    "tdrive": synthetic_formats.append_tdrive,
    "geolife": synthetic_formats.append_geolife,
    "porto": synthetic_formats.append_porto,
    "manhattan": synthetic_formats.append_manhattan,
}


class CityTruth(NamedTuple):
    """What was written and what is true of it."""

    files: tuple[Path, ...]
    points: int  # positions that a correct reader finds, repetitions included
    duplicate_rows: int
    malformed_rows: int
    incidents: tuple[Incident, ...]
    zone_position: np.ndarray  # [Z, 2] zone centres, metres east and north of the box's corner


def city_config(dataset: str, size: str) -> CityConfig:
    """The named size (smoke, default or paper) of a dataset's stand-in."""
    if (dataset, size) not in SIZES:
        raise ValueError(f"no city {dataset!r} of size {size!r}; known: {sorted(SIZES)}")
    return dataclasses.replace(BASE[dataset], **SIZES[dataset, size])


def write_city(folder: Path, cfg: CityConfig, on_day: Callable[[], object] = lambda: None) -> CityTruth:
    """Simulates the city into an empty or new folder; equal configs give equal bytes.

    Args:
        on_day: called after each day that is on disk.
    """
    _check(folder, cfg)
    folder.mkdir(parents=True, exist_ok=True)
    world_rng, incident_rng, traffic_rng, fault_rng = np.random.default_rng(cfg.seed).spawn(4)
    world = build_world(cfg, world_rng)
    incidents = draw_incidents(cfg, world, incident_rng)
    zone = zoneinfo.ZoneInfo(PLACES[cfg.dataset].timezone)
    synthetic_formats.write_note(folder, cfg)
    synthetic_formats.write_events(folder, incidents, zone)
    if cfg.dataset == "manhattan":
        synthetic_formats.write_zones(folder, world.position, PLACES[cfg.dataset].box)

    fleet, weather = synthetic_traffic.begin(cfg, world, traffic_rng)
    total = Written()
    waiting: list[Fixes] = []
    for day in range(cfg.days):
        fleet, weather, fixes = synthetic_traffic.drive_day(cfg, world, incidents, fleet, weather, day, traffic_rng)
        ready, waiting = _part_open_legs([*waiting, *fixes], fleet, is_last=day == cfg.days - 1)
        midnight = datetime.datetime.fromtimestamp(midnight_s(cfg, day), zone)
        offset_s = round(midnight.replace(tzinfo=datetime.UTC).timestamp() - midnight.timestamp())
        spoiled = synthetic_formats.spoil(cfg, _in_degrees(cfg, ready), fault_rng)
        written = WRITERS[cfg.dataset](folder, cfg, spoiled, offset_s, fault_rng)
        total = Written(*(a + b for a, b in zip(total, written, strict=True)))
        on_day()
    files = tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
    return CityTruth(files, *total, incidents, world.position)


def _check(folder: Path, cfg: CityConfig) -> None:
    if cfg.dataset not in PLACES:
        raise ValueError(f"unknown dataset {cfg.dataset!r}; known: {sorted(PLACES)}")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    if min(cfg.vehicles, cfg.days) < 1 or WEATHER_STEP_S % cfg.tick_s:
        raise ValueError(f"need vehicles and days, and a tick that divides 900 s: {cfg}")
    if 0 < cfg.fix_s < cfg.tick_s and cfg.tick_s % cfg.fix_s:
        raise ValueError(f"a tick of {cfg.tick_s} s must hold a whole number of fixes, one every {cfg.fix_s} s")
    spans = midnight_s(cfg, cfg.days) - midnight_s(cfg, 0)
    if cfg.dataset not in ("geolife", "porto") and spans != 86400 * cfg.days:
        raise ValueError("records in local time must not span a clock change")


def _part_open_legs(parts: list[Fixes], fleet: Fleet, is_last: bool) -> tuple[Fixes, list[Fixes]]:
    """Orders fixes by vehicle and time; legs still under way wait for the next day, so no trip breaks at midnight."""
    fixes = Fixes(*(np.concatenate(field) for field in zip(*parts, strict=True)))
    is_open = fleet.driving[fixes.vehicle] & (fixes.leg == fleet.leg[fixes.vehicle]) & (not is_last)
    # Parts follow each other in time, and so does a vehicle in each part: a stable sort keeps its time order.
    order = np.argsort(fixes.vehicle[~is_open], kind="stable")
    ready = Fixes(*(field[~is_open][order] for field in fixes))
    return ready, [Fixes(*(field[is_open] for field in fixes))]


def _in_degrees(cfg: CityConfig, fixes: Fixes) -> Fixes:
    """Metres from the box's corner to degrees."""
    box = PLACES[cfg.dataset].box
    scale = metres_per_degree(box)
    return fixes._replace(lon=box[0] + fixes.lon / scale[0], lat=box[1] + fixes.lat / scale[1])


def main() -> None:
    """Command line: writes a named city, with some of its sizes changed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dataset", choices=sorted(BASE), default="synthetic")
    parser.add_argument("--size", choices=["smoke", "default", "paper"], default="default")
    parser.add_argument("--out", type=Path, required=True, help="empty or new folder")
    for name in ("vehicles", "days", "seed"):
        parser.add_argument(f"--{name}", type=int, help="instead of the size's own")
    args = parser.parse_args()
    changes = {name: getattr(args, name) for name in ("vehicles", "days", "seed") if getattr(args, name) is not None}
    cfg = dataclasses.replace(city_config(args.dataset, args.size), **changes)
    with rich.progress.Progress() as progress:
        task = progress.add_task(f"{cfg.dataset}: {cfg.vehicles} vehicles, days", total=cfg.days)
        truth = write_city(args.out, cfg, on_day=lambda: progress.advance(task))
    print(f"{truth.points} points, {len(truth.incidents)} incidents, {len(truth.files)} files in {args.out}")


if __name__ == "__main__":
    main()
