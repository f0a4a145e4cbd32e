"""The part of a synthetic city that stands still: its size, its demand zones, its calendar and its incidents.

Zones are the squares of the data contract's grid or, for New York, the Voronoi cells of 263 random points (Section 5).
"""

import dataclasses
import datetime
import zoneinfo
from typing import NamedTuple

import numpy as np

EARTH_RADIUS_M = 6_371_008.8
KINDS = ("accident", "closure", "surge", "outage")
NEAR_M = 1500.0  # softens the pull of the closest zones


@dataclasses.dataclass(frozen=True)
class CityConfig:
    """A city, its fleet, its incidents and the faults of its files; the paper has no such city, all values are ours."""

    dataset: str = "synthetic"  # whose format: tdrive, geolife, porto, manhattan, or synthetic (in T-Drive's format)
    vehicles: int = 900
    days: int = 28  # local days from midnight to midnight
    seed: int = 0
    start: datetime.date = datetime.date(2024, 3, 4)  # a Monday
    incidents_per_day: float = 8.0  # mean of a Poisson number
    surge: float = 8.0  # mean factor on the attraction in a surge, +-25 %; traffic passing through dilutes it to 2 or 4
    zones: int = 90  # demand zones: the squares nearest to the middle of the box; Voronoi cells for manhattan
    fix_s: int = 150  # seconds between a driving vehicle's fixes; 0 writes the two ends of each leg only
    tick_s: int = 60  # seconds per simulation step, a divisor of 900; a multiple of fix_s if that is shorter
    parts: int = 4  # T-Drive format: gzipped parts of the fleet; 0 writes one file per taxi
    free_speed_mps: float = 9.0  # straight-line speed on empty roads
    activity: float = 1.15  # multiplies the share of the fleet that drives (0.48 at the weekday peaks)
    weather_sd: float = 0.12  # of log activity; log speed moves by half of it
    noise_sd: float = 0.15  # of log attraction in a zone of mean attraction; grows with the root of attraction
    gps_sd_m: float = 8.0  # per axis
    idle_report_s: int = 600  # T-Drive format: a parked vehicle falls silent after this long
    dropouts_per_day: float = 1.0  # silences of 10 to 60 minutes per vehicle and day
    duplicate_rate: float = 0.03  # share of rows that are repeated exactly
    zero_rate: float = 2e-4  # share of fixes written as 0, 0
    jump_rate: float = 2e-4  # share of fixes thrown outside the box
    malformed_rate: float = 1e-5  # share of rows cut off in the middle
    empty_rate: float = 0.004  # Porto: share of trips with an empty polyline


class Place(NamedTuple):
    """Where a dataset's city lies."""

    box: tuple[float, float, float, float]  # lon_min, lat_min, lon_max, lat_max in degrees
    pixel_m: float  # side of a demand zone, on the grid of the data contract; for Voronoi zones, of a raster pixel
    timezone: str


PLACES = {
    "synthetic": Place((10.00, 50.00, 10.13, 50.09), 1000.0, "Etc/GMT-1"),
    "tdrive": Place((116.20, 39.75, 116.60, 40.05), 1000.0, "Asia/Shanghai"),
    "geolife": Place((116.20, 39.75, 116.60, 40.05), 1000.0, "Asia/Shanghai"),
    "porto": Place((-8.70, 41.10, -8.53, 41.22), 500.0, "Europe/Lisbon"),
    "manhattan": Place((-74.03, 40.69, -73.90, 40.88), 100.0, "America/New_York"),
}


class Incident(NamedTuple):
    """One labelled event and the zone that it strikes."""

    start_s: int  # unix seconds UTC
    end_s: int
    lon: float
    lat: float
    kind: str
    zone: int
    strength: float  # factor on what the kind acts on: < 1 for all but a surge


class Effects(NamedTuple):
    """What the incidents under way do to each zone, all [Z]; 1 where nothing happens."""

    speed: np.ndarray
    entry: np.ndarray  # share of the legs that may enter
    attraction: np.ndarray
    departure: np.ndarray
    report: np.ndarray  # share of the legs that are seen


class Fixes(NamedTuple):
    """GPS fixes ordered by vehicle and time."""

    vehicle: np.ndarray  # [P] int64, from 0
    leg: np.ndarray  # [P] int64, number of the vehicle's journey
    time_s: np.ndarray  # [P] int64, unix seconds UTC
    lon: np.ndarray  # [P] float64, degrees
    lat: np.ndarray  # [P] float64, degrees


class World(NamedTuple):
    """Everything that does not change while vehicles drive."""

    raster: np.ndarray  # [rows, columns] zone of each pixel of the box
    pixel_m: float
    pixels: np.ndarray  # pixel numbers ordered by zone, only those where journeys begin and end
    first: np.ndarray  # [Z + 1] where each zone's pixels begin
    position: np.ndarray  # [Z, 2] zone centres (or Voronoi seeds), metres east and north of the box's corner
    homes: np.ndarray  # [Z] share of the residents
    offices: np.ndarray  # [Z] share of the work places
    gravity: np.ndarray  # [Z, Z] 1 / (distance + NEAR_M), 0 from a zone to itself
    smooth: np.ndarray  # [Z, Z] turns white noise into a field of unit variance
    leg_m: float  # length of a mean leg


def metres_per_degree(box: tuple[float, float, float, float]) -> np.ndarray:
    """Metres per degree of longitude and latitude at the middle latitude of a box."""
    middle = np.radians((box[1] + box[3]) / 2)
    return np.radians(1.0) * EARTH_RADIUS_M * np.array([np.cos(middle), 1.0])  # [2]


def build_world(cfg: CityConfig, rng: np.random.Generator) -> World:
    """Lays out zones and who lives and works there."""
    place = PLACES[cfg.dataset]
    size = metres_per_degree(place.box) * (np.array(place.box[2:]) - place.box[:2])  # [2] metres
    columns, rows = np.floor(size / place.pixel_m).astype(int)
    row, column = np.divmod(np.arange(rows * columns), columns)
    centre = place.pixel_m * np.stack([column + 0.5, row + 0.5], axis=1)  # [pixels, 2]
    if cfg.dataset == "manhattan":
        position = _scatter(cfg.zones, size, rng)
        inhabited = np.full(len(centre), True)
    else:
        nearest = np.argsort(np.linalg.norm(centre - size / 2, axis=1), kind="stable")[: cfg.zones]
        position = centre[np.sort(nearest)]
        inhabited = np.isin(np.arange(len(centre)), nearest)
    zone = _nearest(centre, position)
    pixels = np.flatnonzero(inhabited)[np.argsort(zone[inhabited], kind="stable")]
    first = np.searchsorted(zone[pixels], np.arange(len(position) + 1))
    distance = np.linalg.norm(position[:, None] - position[None], axis=-1)  # [Z, Z]
    smooth = np.exp(-0.5 * (distance / (1.2 * np.median(np.sort(distance)[:, 1]))) ** 2)
    smooth /= np.linalg.norm(smooth, axis=1, keepdims=True)
    gravity = np.where(distance > 0, 1.0 / (distance + NEAR_M), 0.0)
    homes, offices = _population(position, smooth, rng)
    trips = (homes + offices)[:, None] * gravity * (homes + offices)
    leg_m = float((trips * distance).sum() / trips.sum())
    raster = zone.reshape(rows, columns)
    return World(raster, place.pixel_m, pixels, first, position, homes, offices, gravity, smooth, leg_m)


def draw_incidents(cfg: CityConfig, world: World, rng: np.random.Generator) -> tuple[Incident, ...]:
    """Incidents of 30 to 180 minutes between 6:30 and midnight, no two in one zone on one day, more in busy zones."""
    box, weight = PLACES[cfg.dataset].box, world.homes + world.offices
    incidents = []
    for day in range(cfg.days):
        count = min(rng.poisson(cfg.incidents_per_day), len(weight) // 2)
        zones = rng.choice(len(weight), count, replace=False, p=weight / weight.sum())
        begins = np.sort(rng.integers(390, 1260, count)) * 60  # seconds after midnight
        lasts = rng.integers(30, 181, count) * 60
        for zone, begin, last in zip(zones.tolist(), begins.tolist(), lasts.tolist(), strict=True):
            kind = KINDS[rng.integers(len(KINDS))]
            strength = cfg.surge * rng.uniform(0.75, 1.25) if kind == "surge" else rng.uniform(0.1, 0.4)
            lon, lat = box[:2] + world.position[zone] / metres_per_degree(box)
            start = midnight_s(cfg, day) + begin
            incidents.append(Incident(start, start + last, float(lon), float(lat), kind, zone, float(strength)))
    return tuple(incidents)


def effects_at(incidents: tuple[Incident, ...], time_s: int, zones: int) -> Effects:
    """The incidents under way, as factors per zone."""
    effects = Effects(*np.ones((len(Effects._fields), zones)))
    for one in incidents:
        if not one.start_s <= time_s < one.end_s:
            continue
        if one.kind == "surge":
            effects.attraction[one.zone] = one.strength
        elif one.kind == "outage":
            effects.report[one.zone] = one.strength
        else:
            blocked = 0.0 if one.kind == "closure" else one.strength
            effects.entry[one.zone] = effects.attraction[one.zone] = blocked
            effects.departure[one.zone] = one.strength
            effects.speed[one.zone] = 1.0 if one.kind == "closure" else one.strength
    return effects


def driving_share(weekday: int, hour: float) -> float:
    """Share of the fleet on the road: peaks near 8:00 and 17:30 from Monday to Friday, one near 16:00 at weekends."""
    if weekday >= 5:
        return 0.06 + (0.34 if weekday == 5 else 0.28) * _bump(hour, 16.0, 3.6)
    late = 0.08 * _bump(hour, 21.5, 1.5) if weekday == 4 else 0.0
    return 0.05 + 0.34 * _bump(hour, 8.0, 1.1) + 0.34 * _bump(hour, 17.5, 1.6) + 0.2 * _bump(hour, 13.0, 3.5) + late


def office_pull(weekday: int, hour: float) -> float:
    """Share of the journeys that go to work places, the rest going home: 0.8 in the morning, 0.2 in the evening."""
    swing = 0.0 if weekday >= 5 else 0.3
    return 0.5 + swing * (_bump(hour, 8.5, 2.5) - _bump(hour, 18.0, 3.0))


def midnight_s(cfg: CityConfig, day: int) -> int:
    """Unix seconds of the local midnight at which a day begins."""
    date = cfg.start + datetime.timedelta(days=day)
    zone = zoneinfo.ZoneInfo(PLACES[cfg.dataset].timezone)
    return int(datetime.datetime.combine(date, datetime.time(), zone).timestamp())


def _bump(hour: float, peak: float, width: float) -> float:
    """Bell over the clock, 1 at its peak; hours wrap at midnight."""
    return float(np.exp(-0.5 * (((hour - peak + 12.0) % 24.0 - 12.0) / width) ** 2))


def _population(position: np.ndarray, smooth: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Homes in a wide ring and offices in the middle, both uneven, each summing to 1: [Z], [Z]."""
    radius = np.linalg.norm(position - position.mean(axis=0), axis=1)
    radius = radius / radius.max()
    uneven = np.exp(0.4 * smooth @ rng.standard_normal((len(position), 2)))  # [Z, 2]
    homes = (0.8 + np.exp(-0.5 * ((radius - 0.5) / 0.25) ** 2)) * uneven[:, 0]
    offices = (0.4 + 2.0 * np.exp(-0.5 * (radius / 0.3) ** 2)) * uneven[:, 1]
    return homes / homes.sum(), offices / offices.sum()


def _scatter(count: int, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random points [count, 2] that keep a distance, by Lloyd's iteration on a coarse sample of the box."""
    points = rng.uniform(0.0, 1.0, (count, 2)) * size
    sample = rng.uniform(0.0, 1.0, (40 * count, 2)) * size
    for _ in range(4):
        owner = _nearest(sample, points)
        mass = np.maximum(np.bincount(owner, minlength=count), 1)[:, None]
        centroid = np.stack([np.bincount(owner, sample[:, axis], count) for axis in range(2)], axis=1) / mass
        points = np.where(np.isin(np.arange(count), owner)[:, None], centroid, points)
    return points


def _nearest(points: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Number of the nearest seed of every point [P]."""
    squared = (seeds**2).sum(axis=1) - 2.0 * points @ seeds.T  # [P, Z], less the points' own square
    return squared.argmin(axis=1)
