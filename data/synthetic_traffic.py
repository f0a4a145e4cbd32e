"""Drives the vehicles of a synthetic city through one day and says which GPS fixes are seen.

Where to: attraction / distance, attraction moving from homes to offices and back. How fast: by how full the zone is.
How many: by time of day and weekday. On top come common weather, spatially correlated noise in the attraction, and
incidents. Stands in for the recordings of Section 5.
"""

import datetime
from typing import NamedTuple

import numpy as np

from data.synthetic_world import (
    CityConfig,
    Effects,
    Fixes,
    Incident,
    World,
    driving_share,
    effects_at,
    midnight_s,
    office_pull,
)

WEATHER_STEP_S = 900
PEAK_SHARE = 0.5  # of the fleet on the road; what the roads are built for
SLOWEST = 0.4  # speed in a full zone over speed in an empty one; without a floor a jam would never dissolve


class Weather(NamedTuple):
    """Slow random drivers, renewed every quarter hour."""

    common: float  # of log activity
    field: np.ndarray  # [Z] unit-variance noise of the zones
    silent_until: np.ndarray  # [V] unix seconds


class Demand(NamedTuple):
    """What the vehicles of this tick follow, all [Z]."""

    attraction: np.ndarray
    departure: np.ndarray  # probability that a parked vehicle leaves in this tick
    speed: np.ndarray  # m/s on empty roads
    capacity: np.ndarray  # vehicles on the road at which half of the slowing has happened


class Fleet(NamedTuple):
    """State of every vehicle, all [V]."""

    x: np.ndarray
    y: np.ndarray
    zone: np.ndarray  # of the position
    goal_x: np.ndarray
    goal_y: np.ndarray
    driving: np.ndarray
    lost: np.ndarray  # driving, but turned away and in need of another goal
    leg: np.ndarray
    luck: np.ndarray  # uniform number of the leg: who may enter a blocked zone, who is seen in a blind one
    parked_s: np.ndarray
    next_fix_s: np.ndarray


class Move(NamedTuple):
    """What the vehicles do during one tick, all [V]."""

    x: np.ndarray  # where they begin
    y: np.ndarray
    east: np.ndarray  # unit direction
    north: np.ndarray
    speed: np.ndarray
    metres: np.ndarray  # driven in this tick
    driving: np.ndarray
    left: np.ndarray  # begins its leg in this tick
    arrived: np.ndarray


def begin(cfg: CityConfig, world: World, rng: np.random.Generator) -> tuple[Fleet, Weather]:
    """Everybody parked at home, in mean weather."""
    home = rng.choice(len(world.homes), cfg.vehicles, p=world.homes)
    x, y = _spot_in(world, home, rng)
    no, zero = np.zeros(cfg.vehicles, bool), np.zeros(cfg.vehicles)
    fleet = Fleet(
        x=x,
        y=y,
        zone=home,
        goal_x=x,
        goal_y=y,
        driving=no,
        lost=no,
        leg=np.zeros(cfg.vehicles, np.int64),
        luck=rng.random(cfg.vehicles),
        parked_s=zero + np.inf,
        next_fix_s=zero,
    )
    return fleet, Weather(0.0, world.smooth @ rng.standard_normal(len(world.homes)), zero)


def drive_day(
    cfg: CityConfig,
    world: World,
    incidents: tuple[Incident, ...],
    fleet: Fleet,
    weather: Weather,
    day: int,
    rng: np.random.Generator,
) -> tuple[Fleet, Weather, list[Fixes]]:
    """One local day of ticks, and the fixes seen in each."""
    first, end = midnight_s(cfg, day), midnight_s(cfg, day + 1)
    weekday = (cfg.start + datetime.timedelta(days=day)).weekday()
    today = tuple(one for one in incidents if first <= one.start_s < end)
    fixes = []
    for time_s in range(first, end, cfg.tick_s):
        if time_s % WEATHER_STEP_S == 0:
            weather = _renew(cfg, world, weather, time_s, rng)
        effects = effects_at(today, time_s, len(world.homes))
        demand = _demand(cfg, world, weather, effects, weekday, (time_s - first) / 3600)
        fleet, move = _advance(cfg, world, fleet, demand, effects, rng)
        fleet, seen = _observe(cfg, world, fleet, move, effects, weather, time_s, rng)
        fixes.append(seen)
    return fleet, weather, fixes


def _renew(cfg: CityConfig, world: World, weather: Weather, time_s: int, rng: np.random.Generator) -> Weather:
    """AR(1) steps of a quarter hour: memory of 4 h in the weather and 1.5 h in the zones' noise."""
    slow, fast = np.exp(-0.25 / 4.0), np.exp(-0.25 / 1.5)
    common = slow * weather.common + np.sqrt(1 - slow**2) * cfg.weather_sd * rng.standard_normal()
    field = fast * weather.field + np.sqrt(1 - fast**2) * world.smooth @ rng.standard_normal(len(weather.field))
    falls = rng.random(cfg.vehicles) < cfg.dropouts_per_day * WEATHER_STEP_S / 86400
    until = time_s + rng.uniform(600, 3600, cfg.vehicles)
    return Weather(common, field, np.where(falls, until, weather.silent_until))


def _demand(cfg: CityConfig, world: World, weather: Weather, effects: Effects, weekday: int, hour: float) -> Demand:
    """Attraction, departures and road space of the zones at this time."""
    pull = office_pull(weekday, hour)
    usual = pull * world.offices + (1 - pull) * world.homes
    origin = (pull * world.homes + (1 - pull) * world.offices) / (0.5 * (world.homes + world.offices))
    noise = cfg.noise_sd * np.sqrt(usual * len(usual)) * weather.field
    share = min(0.85, cfg.activity * driving_share(weekday, hour) * np.exp(weather.common))
    leg_s = world.leg_m / (0.7 * cfg.free_speed_mps)
    rate = share / (1 - share) / leg_s * origin * effects.departure  # 1/s: driving share = rate / (rate + 1 / leg_s)
    room = 0.25 * (world.homes + world.offices) + 0.5 / len(usual)
    return Demand(
        attraction=usual * np.exp(noise) * effects.attraction,
        departure=-np.expm1(-rate * cfg.tick_s),
        speed=cfg.free_speed_mps * np.exp(0.5 * weather.common) * effects.speed,
        capacity=1.3 * PEAK_SHARE * cfg.activity * cfg.vehicles * room,
    )


def _advance(
    cfg: CityConfig, world: World, fleet: Fleet, demand: Demand, effects: Effects, rng: np.random.Generator
) -> tuple[Fleet, Move]:
    """Lets vehicles leave, aim, drive, turn away from blocked zones and arrive."""
    zone = fleet.zone
    chance = rng.random((3, cfg.vehicles))
    left = ~fleet.driving & (chance[0] < demand.departure[zone])
    fleet = _aim(world, fleet, left, demand.attraction, chance[1], rng)
    load = np.bincount(zone[fleet.driving], minlength=len(demand.capacity)) / demand.capacity
    speed = (demand.speed * (SLOWEST + (1 - SLOWEST) / (1 + load**2)))[zone] * (0.75 + 0.5 * chance[2])
    east, north = fleet.goal_x - fleet.x, fleet.goal_y - fleet.y
    distance = np.maximum(np.hypot(east, north), 1e-9)
    arrived = fleet.driving & (distance <= speed * cfg.tick_s)
    turn = np.where(arrived, 0.0, 0.3 * rng.standard_normal(cfg.vehicles))  # radians off the straight line
    ahead, aside = np.cos(turn) / distance, np.sin(turn) / distance
    east, north = ahead * east - aside * north, aside * east + ahead * north
    metres = np.where(fleet.driving, np.minimum(speed * cfg.tick_s, distance), 0.0)
    there = _zone_at(world, fleet.x + metres * east, fleet.y + metres * north)
    lost = fleet.driving & (there != zone) & (fleet.luck > effects.entry[there])
    arrived, metres = arrived & ~lost, np.where(lost, 0.0, metres)
    move = Move(fleet.x, fleet.y, east, north, speed, metres, fleet.driving, left, arrived)
    driving = fleet.driving & ~arrived
    fleet = fleet._replace(
        x=fleet.x + metres * east,
        y=fleet.y + metres * north,
        zone=np.where(lost, zone, there),
        driving=driving,
        lost=lost,
        parked_s=np.where(driving, 0.0, fleet.parked_s + cfg.tick_s),
    )
    return fleet, move


def _aim(
    world: World,
    fleet: Fleet,
    left: np.ndarray,
    attraction: np.ndarray,
    luck: np.ndarray,
    rng: np.random.Generator,
) -> Fleet:
    """Draws a goal by gravity for the vehicles that leave or are lost; only a new leg gets a new luck."""
    who = np.flatnonzero(left | fleet.lost)
    odds = np.cumsum(attraction * world.gravity[fleet.zone[who]], axis=1)  # [W, Z]
    goal = (odds < rng.random((len(who), 1)) * odds[:, -1:]).sum(axis=1)
    goal_x, goal_y = fleet.goal_x.copy(), fleet.goal_y.copy()
    goal_x[who], goal_y[who] = _spot_in(world, goal, rng)
    return fleet._replace(
        goal_x=goal_x,
        goal_y=goal_y,
        driving=fleet.driving | left,
        leg=fleet.leg + left,
        luck=np.where(left, luck, fleet.luck),
    )


def _observe(
    cfg: CityConfig,
    world: World,
    fleet: Fleet,
    move: Move,
    effects: Effects,
    weather: Weather,
    time_s: int,
    rng: np.random.Generator,
) -> tuple[Fleet, Fixes]:
    """The fixes (still in metres) of one tick, less those of silent vehicles and of blind zones."""
    fleet, who, after = _due(cfg, fleet, move, time_s, rng)
    metres = np.minimum(move.speed[who] * after, move.metres[who])
    x, y = move.x[who] + metres * move.east[who], move.y[who] + metres * move.north[who]
    # Dense fixes and journey ends sit on the ticks; a constant delay per vehicle spreads them over the clock.
    delay = 0 if cfg.fix_s >= cfg.tick_s else who * 37 % cfg.tick_s
    blind = fleet.luck[who] > effects.report[_zone_at(world, x, y)]
    seen = ~blind & (weather.silent_until[who] <= time_s)
    time = time_s + np.floor(after).astype(np.int64) + delay
    return fleet, Fixes(*(field[seen] for field in (who, fleet.leg[who], time, x, y)))


def _due(
    cfg: CityConfig, fleet: Fleet, move: Move, time_s: int, rng: np.random.Generator
) -> tuple[Fleet, np.ndarray, np.ndarray]:
    """Who reports in this tick [P], and how many seconds into it [P]."""
    if cfg.fix_s == 0:  # both ends of a leg
        left, arrived = np.flatnonzero(move.left), np.flatnonzero(move.arrived)
        ends = move.metres[arrived] / move.speed[arrived]
        return fleet, np.concatenate([left, arrived]), np.concatenate([np.zeros(len(left)), ends])
    if cfg.fix_s < cfg.tick_s:  # several per tick, while driving
        after, who = np.divmod(np.arange(cfg.tick_s // cfg.fix_s * cfg.vehicles), cfg.vehicles)
        after = after * float(cfg.fix_s)
        on_road = move.driving[who] & (~move.arrived[who] | (after * move.speed[who] <= move.metres[who]))
        return fleet, who[on_road], after[on_road]
    reports = move.driving | (fleet.parked_s <= cfg.idle_report_s)
    due = reports & (fleet.next_fix_s < time_s + cfg.tick_s)
    wait = cfg.fix_s * rng.uniform(0.8, 1.2, cfg.vehicles)
    who, after = np.flatnonzero(due), (fleet.next_fix_s - time_s)[due]
    asleep = time_s + cfg.tick_s + (wait - 0.8 * cfg.fix_s) * 2.5  # uniform over the first interval after waking
    next_fix_s = np.where(due, fleet.next_fix_s + wait, np.where(reports, fleet.next_fix_s, asleep))
    return fleet._replace(next_fix_s=next_fix_s), who, np.maximum(after, 0.0)


def _zone_at(world: World, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Zone of every position [V]; beyond the last pixel counts as the last."""
    rows, columns = world.raster.shape
    column = np.minimum(np.maximum(x / world.pixel_m, 0.0), columns - 1).astype(np.int64)
    row = np.minimum(np.maximum(y / world.pixel_m, 0.0), rows - 1).astype(np.int64)
    return world.raster[row, column]


def _spot_in(world: World, zone: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A uniform position inside each of the given zones: metres [W], [W]."""
    pick, dx, dy = rng.random((3, len(zone)))
    count = world.first[zone + 1] - world.first[zone]
    row, column = np.divmod(world.pixels[world.first[zone] + (pick * count).astype(np.int64)], world.raster.shape[1])
    return world.pixel_m * (column + dx), world.pixel_m * (row + dy)
