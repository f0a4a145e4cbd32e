"""Fits how vehicles of a compiled road drive to SUMO's training hours; five fits on bootstrapped hours say the doubt.

Turning shares need no fit: vehicles follow the very routes of SUMO's. Fitted are saturation flows, lost times, the
factor and the spread of travel times, the waves in queues, the gap of those who yield and how little the lane at the
kerb is used. Evolution: candidates around the best so far, in logarithms, fewer and closer from round to round.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich
from rich.console import Console
from rich.table import Table

from data.errors import DataError
from experiments.cli.reading import UNSET, read
from experiments.road.controllers import TRAINING
from experiments.road.drives import Course, Replay, hours_of, in_sumo
from experiments.road.places import TRAIN_SEED, Place, grid_hours, public_hours, routes_of, user_hours
from sim.compile_road import compile_road
from stream_jax import store
from stream_jax.road.world import Drivers, usual_drivers

FITS = 5
TRAVEL_WEIGHT = 2.0  # of the error of the vehicle-seconds, beside that of the queue
SPREAD = 0.25  # of the first candidates, in logarithms
DESCRIPTION = """\
Fits a compiled road to SUMO: drives training hours in SUMO (what was driven is read back), then lets candidates evolve
on the compiled road. Writes drivers.json into --out, with five fits on bootstrapped hours.

  stream-jax road fit --out runs/road                                       the 4x4 grid at three levels
  stream-jax road fit --out runs/road --network my.net.xml --routes my.rou.xml   your network
  stream-jax road fit --out runs/road --map cologne8 --archive sumo_rl-1.4.5-py3-none-any.whl
"""


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Which road is fitted, and how long."""

    out: Path
    """folder of everything that is driven and fitted"""
    network: Annotated[Path | None, UNSET] = None
    """your .net.xml instead of the grid"""
    routes: Annotated[Path | None, UNSET] = None
    """your .rou.xml with the edges of every vehicle, with --network"""
    map: Annotated[str | None, UNSET] = None
    """a map of RESCO instead of the grid"""
    archive: Annotated[Path | None, UNSET] = None
    """the wheel of sumo-rl or its unpacked folder, with --map"""
    levels: tuple[Literal["moderate", "heavy", "overload"], ...] = ("moderate", "heavy", "overload")
    """demand on the grid"""
    hours: int = 3
    """training hours at each level"""
    rounds: int = 14
    """rounds of candidates"""
    candidates: int = 12
    """candidates in a round"""
    workers: int = 2
    """SUMO processes that run at the same time; 0: all in this one"""


class Fitted(NamedTuple):
    """What a fit ends with."""

    drivers: Drivers  # of all training hours
    members: Drivers  # [FITS] of bootstrapped hours
    error: np.ndarray  # [1 + FITS] loss at the end, first that of the usual drivers


def main(argv: Sequence[str] | None = None) -> int:
    """Fits a road; returns the exit code."""
    args, console = read(FitOptions, DESCRIPTION, argv, "road fit"), rich.get_console()
    place = training_place(args)
    fitted = fit(place, args, console)
    path = args.out / place.name / "drivers.json"
    keep(path, fitted)
    show(fitted, console)
    console.print(f"drivers: {path}")
    return 0


def training_place(args: FitOptions) -> Place:
    """The network and its training hours."""
    seeds = range(TRAIN_SEED, TRAIN_SEED + args.hours)
    if (args.network is None) != (args.routes is None) or (args.map is None) != (args.archive is None):
        raise DataError("--network goes with --routes, and --map with --archive.")
    if args.network is not None:
        return user_hours(args.network, args.routes, args.out, seeds)
    if args.map is not None:
        return public_hours(args.map, args.archive, args.out, seeds)
    return grid_hours(args.out, args.levels, seeds)


def fit(place: Place, args: FitOptions, console: Console) -> Fitted:
    """Drivers of all training hours, and of bootstrapped ones from there on."""
    compiled = compile_road(place.network, routes_of(place), "nema" if place.name.startswith("grid") else "own")
    for sentence in compiled.left_out:
        console.print(f"[yellow]not represented:[/] {sentence}", soft_wrap=True)
    replay = Replay(compiled)
    scenarios = [hour for hours in place.hours.values() for hour in hours]
    batch, first = hours_of(compiled, place.network, scenarios), scenarios[0]
    truth = {}
    for name in TRAINING:
        courses = [in_sumo(place, level, name, args.out, args.workers, console) for level in place.hours]
        truth[name] = Course(*(np.concatenate(field) for field in zip(*courses, strict=True)))

    def losses(drivers: Drivers) -> np.ndarray:
        """[candidates, controllers * hours]."""
        found = []
        for name, real in truth.items():
            road = replay(name, batch, drivers, first.warmup_s, first.duration_s)
            found.append(_loss(road.queue.sum(-1).mean(-1), road.travel_time, real))
        return np.concatenate(found, axis=1)

    rng = np.random.default_rng(0)
    usual = _to_numbers(usual_drivers())
    begin = losses(_to_drivers(usual[None]))[0].mean()
    tried, results = _evolve(rng, usual, losses, args, lambda loss: loss.mean(1), SPREAD, args.rounds, console)
    best = tried[results.mean(1).argmin()]
    members, errors = [], []
    for member in range(FITS):
        pick = rng.integers(results.shape[1], size=results.shape[1])
        score = lambda loss, pick=pick: loss[:, pick].mean(1)  # noqa: E731
        centre = tried[score(results).argmin()]
        more, their = _evolve(rng, centre, losses, args, score, SPREAD / 4, max(args.rounds // 5, 1), None)
        everything, scores = np.concatenate([tried, more]), np.concatenate([score(results), score(their)])
        members.append(everything[scores.argmin()])
        errors.append(scores.min())
        console.print(f"  fit {member + 1} of {FITS} on bootstrapped hours: loss {scores.min():.3f}")
    return Fitted(
        _to_drivers(best[None], 0), _to_drivers(np.stack(members)), np.array([begin, results.mean(1).min(), *errors])
    )


def _evolve(
    rng: np.random.Generator,
    centre: np.ndarray,
    losses: object,
    args: FitOptions,
    score: object,
    spread: float,
    rounds: int,
    console: Console | None,
) -> tuple[np.ndarray, np.ndarray]:
    """All candidates tried [n, D], and their losses [n, hours]; each round searches around the mean of the best."""
    tried, found, mean, wide = [], [], centre, np.full(len(centre), spread)
    for number in range(rounds):
        candidates = mean + wide * rng.standard_normal((args.candidates, len(centre)))
        candidates[0] = mean
        tried.append(candidates)
        found.append(losses(_to_drivers(candidates)))
        everything, scores = np.concatenate(tried), np.concatenate([score(one) for one in found])
        elite = everything[np.argsort(scores)[: max(args.candidates // 2, 2)]]
        mean, wide = elite.mean(0), 0.5 * wide + 0.5 * np.clip(elite.std(0), spread / 20, spread)
        if console is not None:
            console.print(f"  round {number + 1} of {rounds}: loss {scores.min():.3f}")
    return np.concatenate(tried), np.concatenate(found)


def _loss(queue: np.ndarray, present: np.ndarray, real: Course) -> np.ndarray:
    """[candidates, hours] error of the queue, step by step, and of the vehicle-seconds of the hour."""
    of_queue = np.abs(queue - real.queue) / np.maximum(real.queue, 0.5)
    of_travel = np.abs(present.sum(-1) / real.present.sum(-1) - 1.0)
    return np.minimum(of_queue, 2.0).mean(-1) + TRAVEL_WEIGHT * np.minimum(of_travel, 2.0)


def _to_numbers(drivers: Drivers) -> np.ndarray:
    """[D] logarithms."""
    return np.log(np.concatenate([np.ravel(leaf) for leaf in drivers]))


def _to_drivers(numbers: np.ndarray, one: int | None = None) -> Drivers:
    """Drivers with a first axis in front, or one of them. Args: numbers [n, D]."""
    values, leaves, place = np.exp(numbers).astype(np.float32), [], 0
    for leaf in usual_drivers():
        width = max(leaf.size, 1)
        leaves.append(values[:, place : place + width].reshape(len(values), *leaf.shape))
        place += width
    found = Drivers(*map(jnp.asarray, leaves))._replace(headway_s=jnp.maximum(leaves[0], 1.0))
    return found if one is None else jax.tree.map(lambda leaf: leaf[one], found)


def keep(path: Path, fitted: Fitted) -> None:
    """Writes a fit as JSON, under the version of such artefacts."""
    facts = {
        "version": store.VERSIONS["drivers"],
        "drivers": {name: np.asarray(value).tolist() for name, value in fitted.drivers._asdict().items()},
        "members": {name: np.asarray(value).tolist() for name, value in fitted.members._asdict().items()},
        "loss": fitted.error.tolist(),
    }
    store.write_text(path, json.dumps(facts, indent=1) + "\n")


def read_drivers(path: Path) -> tuple[Drivers, Drivers]:
    """Drivers of a fit, and its members [FITS]; the usual ones, FITS times, where there is no file."""
    if not path.exists():
        usual = usual_drivers()
        return usual, jax.tree.map(lambda leaf: jnp.stack([leaf] * FITS), usual)
    facts = json.loads(path.read_text())
    if facts["version"] != store.VERSIONS["drivers"]:
        raise DataError(f"{path} was fitted by another version; run stream-jax road fit again.")
    best, members = (
        Drivers(**{name: jnp.asarray(value, jnp.float32) for name, value in facts[kind].items()})
        for kind in ("drivers", "members")
    )
    return best, members


def show(fitted: Fitted, console: Console) -> None:
    """Prints the fitted numbers."""
    table = Table(
        "number",
        "usual",
        "fitted",
        "five fits, from",
        "to",
        title=f"loss {fitted.error[0]:.3f} -> {fitted.error[1]:.3f}",
    )
    for name, usual, best, members in zip(
        Drivers._fields, usual_drivers(), fitted.drivers, fitted.members, strict=True
    ):
        rows = zip(np.ravel(usual), np.ravel(best), np.reshape(members, (FITS, -1)).T, strict=True)
        for before, after, spread in rows:
            table.add_row(name, *(f"{value:.2f}" for value in (before, after, spread.min(), spread.max())))
    console.print(table)
