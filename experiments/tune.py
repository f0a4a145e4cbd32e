"""Tunes the few numbers of the look-ahead controller by an evolution strategy (CMA-ES) on hours of validation.

Every candidate drives the same hours as the controller as it is: at moderate and at heavy demand with pairs of NEMA
phases, and between them with the greens of each signal's own program. Its loss is the mean log ratio of travel times,
and `STEP_PRICE` for each control step beyond those that break a limit now. The numbers that come out hold on every
network; hours that are reported, and other maps, are never looked at.
"""

import contextlib
import dataclasses
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import cma
import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from data import loader
from experiments.cli.main import start
from experiments.cli.networks import control_folder
from experiments.cli.reading import read
from experiments.evaluation.drives import score
from sim.city_road import city_road, draw_scenarios
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.lookahead import LookaheadDriver
from sim.loop import Episode
from sim.network import GridConfig, Network
from sim.scenario import Scenario
from sim.session import Session
from sim.stages import Programs
from stream_jax import store
from stream_jax.road.controller import LookaheadConfig
from stream_jax.road.tables import PRICES

TUNED = (
    "headway_s",
    "startup_s",
    "wait_scale_s",
    "hysteresis",
    "yield_weight",
    "near_s",
    "gap_s",
    "overdue_s",
    "full_s",
    "cycle_s",
    "fair_s",
)
FIRST_SEED = 500  # of the hours that candidates are compared on
CHECK_SEED = 540  # of those on which the outcome is compared with the beginning
STEP_PRICE = 0.005  # a control step that breaks a limit counts as half a percent of travel time
TASKS: tuple[tuple[float, Programs], ...] = ((2600.0, "nema"), (4200.0, "nema"), (3400.0, "own"))
DESCRIPTION = """\
Tunes the look-ahead controller on days of validation by CMA-ES, and compares the outcome with the beginning on other
hours. It goes on where it was stopped: every episode that was driven is kept.

  stream-jax tune --out runs/synthetic-default
  stream-jax tune --out runs/synthetic-default --generations 20 --hours 4
"""


@dataclasses.dataclass(frozen=True)
class TuneOptions:
    """How long, and on what."""

    out: Path
    """folder of a run whose etl stage is done"""
    generations: int = 8
    """generations of candidates"""
    population: int = 8
    """candidates in each"""
    hours: int = 2
    """hours of each task that a candidate drives; other ones in each generation"""
    spread: float = 0.2
    """how far the first candidates lie from the beginning, as a factor's logarithm"""
    check_hours: int = 6
    """hours of each task on which outcome and beginning are compared"""
    workers: int = 2
    """SUMO processes that run at the same time"""


class Drive(NamedTuple):
    """One hour under one candidate."""

    network: Network
    scenario: Scenario
    programs: Programs
    cfg: LookaheadConfig
    kept: Path  # where its score is kept


def main(argv: Sequence[str] | None = None) -> int:
    """Tunes, compares, prints; returns the exit code."""
    args = read(TuneOptions, DESCRIPTION, argv, "tune")
    console = Console()
    folder = control_folder(args.out)
    dataset = loader.load(args.out / "data", verify=True)
    road = city_road(dataset, GridConfig(), DemandConfig(bin_s=dataset.manifest["bin_s"]), folder)

    def drives(cfg: LookaheadConfig, first: int, hours: int) -> list[Drive]:
        found = []
        for rate, programs in TASKS:
            for one in draw_scenarios(road, "val", rate, range(first, first + hours), folder / "trips"):
                name = store.key("lookahead", cfg, programs, Path(one.route_file).read_bytes(), one.incidents, one.seed)
                found.append(Drive(road.network, one, programs, cfg, folder / "tune" / f"{name}.json"))
        return found

    begun = LookaheadConfig()
    with workers(args.workers) as pool:
        strategy = cma.CMAEvolutionStrategy(
            np.zeros(len(TUNED)), args.spread, {"popsize": args.population, "seed": 1, "verbose": -9}
        )
        for generation in range(args.generations):
            first = FIRST_SEED + generation * args.hours
            asked = strategy.ask()
            sets = [drives(moved(begun, one), first, args.hours) for one in [np.zeros(len(TUNED)), *asked]]
            losses = compare(pool, sets, console, f"generation {generation + 1} of {args.generations}")
            strategy.tell(asked, losses)
            console.print(f"  best {min(losses):+.4f}, mean {np.mean(losses):+.4f} against the beginning")
        tuned = moved(begun, strategy.result.xfavorite)
        sets = [drives(cfg, CHECK_SEED, args.check_hours) for cfg in (begun, tuned)]
        gaps = compare_hours(pool, sets, console, "check on other hours")
    half = 1.96 * gaps.std(ddof=1) / np.sqrt(len(gaps))
    console.print(f"on other hours: loss {gaps.mean():+.4f} ± {half:.4f} against the beginning (negative: better)")
    numbers = {name: round(float(getattr(tuned, name)), 3) for name in TUNED}
    outcome = {"loss": float(gaps.mean()), "half_interval": float(half), "hours": len(gaps), "numbers": numbers}
    file = folder / "tune.json"
    store.write_text(file, json.dumps(outcome, indent=1))
    for name, value in numbers.items():
        console.print(f"  {name:14} {getattr(begun, name):8.3f} -> {value:8.3f}")
    console.print(f"numbers: {file}")
    return 0


def moved(cfg: LookaheadConfig, by: np.ndarray) -> LookaheadConfig:
    """A candidate: each number times a factor; of the hysteresis, what it has beyond 1."""
    changed = {name: getattr(cfg, name) * float(np.exp(x)) for name, x in zip(TUNED, by, strict=True)}
    excess = (cfg.hysteresis - 1.0) * changed["hysteresis"] / cfg.hysteresis
    return dataclasses.replace(cfg, **(changed | {"hysteresis": 1.0 + excess}))


def compare(pool: ProcessPoolExecutor, sets: list[list[Drive]], console: Console, title: str) -> list[float]:
    """The loss of every set of drives but the first, against the first."""
    found = scores(pool, [one for drives in sets for one in drives], console, title)
    count = len(sets[0])
    table = [found[at : at + count] for at in range(0, len(found), count)]
    return [float(np.mean([loss(*pair) for pair in zip(row, table[0], strict=True)])) for row in table[1:]]


def compare_hours(pool: ProcessPoolExecutor, sets: list[list[Drive]], console: Console, title: str) -> np.ndarray:
    """The loss of the second set of drives against the first, hour by hour."""
    found = scores(pool, [one for drives in sets for one in drives], console, title)
    half = len(found) // 2
    return np.array([loss(*pair) for pair in zip(found[half:], found[:half], strict=True)])


def loss(one: dict[str, float], other: dict[str, float]) -> float:
    """How much worse one drive of an hour is than another."""
    steps = one["violating_steps"] - other["violating_steps"]
    return float(np.log(one["travel_time"] / other["travel_time"])) + STEP_PRICE * steps


def scores(pool: ProcessPoolExecutor, drives: list[Drive], console: Console, title: str) -> list[dict[str, float]]:
    """Drives what was not driven before, and reads the rest."""
    todo = {one.kept: one for one in drives if not one.kept.exists()}
    columns = TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=len(todo))
        for done in as_completed([pool.submit(drive, one) for one in todo.values()]):
            done.result()
            progress.advance(task)
    return [json.loads(one.kept.read_text()) for one in drives]


def drive(one: Drive) -> None:
    """Drives an hour in this process and keeps its score."""
    driver = LookaheadDriver(one.cfg, one.programs)
    signals = len(one.network.ids)
    with Session(one.network, driver) as road:
        rows = [road.reset(one.scenario)]
        while not road.done:
            rows.append(road.step(np.zeros((signals, PRICES))))
        totals = road.totals()
    measured = jax.tree.map(lambda *steps: np.stack(steps), *rows)
    episode = Episode(0, one.scenario, measured, np.zeros((len(rows) - 1, signals, PRICES)), totals, None)
    store.write_text(one.kept, json.dumps(score(episode, DEMAND_LEVELS["heavy"].limits)))


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of their own: SUMO is one for each."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


if __name__ == "__main__":
    sys.exit(start("tune"))
