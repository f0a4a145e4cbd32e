"""Drives a trained system live in SUMO: `python experiments/control.py --checkpoint DIR`, or `stream-jax drive`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import rich
from rich.markup import escape
from rich.table import Table

from data.loader import TrafficDataset
from experiments.cli.main import start
from experiments.cli.options import ACTIONS as SPACES
from experiments.cli.reading import UNSET, read
from experiments.methods.control.controllers import DRIVERS
from sim.demand import DEMAND_LEVELS
from sim.drivers import DRIVERS as BY_ACTION
from sim.keeping import MINUTES, city_scenario, kept_recording, users_scenario
from sim.nema import existing_phases
from sim.network import Network
from sim.scenario import Scenario
from sim.session import Session, SessionConfig
from sim.sumocfg import is_sumocfg
from stream_jax import live
from stream_jax.checkpoint import System
from stream_jax.system import open_system
from stream_jax.task import ACTIONS, Limits, constraint_values, costs

TRAINED = "trained"  # the controller of the checkpoint
PRETRAINED = Path(__file__).parent.parent / "checkpoints" / "synthetic"
LOGGED = {"wait": "longest_wait_s"}  # constraints that the log calls by another name than their limit
DESCRIPTION = """\
Drives signals in SUMO by a trained system. Each minute prints what the road shows, what the city's forecast and
detection say, where the action came from and whether it is certified. The log has everything.

  stream-jax drive                                             the pretrained system on its own city
  stream-jax drive --checkpoint DIR --level overload --gui     another one, watched in sumo-gui
  stream-jax drive --network my.sumocfg                        your network and routes, from begin to end
  stream-jax drive --network my.net.xml --routes my.rou.xml    the same in two files, without a city behind them
  stream-jax drive --controller lookahead                      a controller that needs no learning
"""


@dataclasses.dataclass(frozen=True)
class DriveOptions:
    """What is driven, and how long."""

    checkpoint: Path = PRETRAINED
    """folder of a trained system"""
    network: Annotated[Path | None, UNSET] = None
    """your .net.xml or .sumocfg instead of the checkpoint's grid"""
    routes: Annotated[Path | None, UNSET] = None
    """your .rou.xml; needed if --network is a .net.xml, else instead of the .sumocfg's own"""
    controller: Literal[(TRAINED, *DRIVERS)] = TRAINED  # type: ignore[valid-type]
    """the checkpoint's, or one that needs no learning"""
    action: Annotated[Literal[SPACES] | None, UNSET] = None  # type: ignore[valid-type]
    """refuse a checkpoint whose controller sets something else"""
    level: Literal[tuple(DEMAND_LEVELS)] = "heavy"  # type: ignore[valid-type]
    """demand on the checkpoint's grid"""
    minutes: Annotated[int | None, UNSET] = None
    """how long to drive (40, or from begin to end of a .sumocfg)"""
    seed: int = 1002
    """chooses the hour and the trips"""
    gui: Annotated[bool, UNSET] = False
    """watch in sumo-gui"""
    log: Path = Path("runs/live/log.jsonl")
    """where every tick is written"""


def main(argv: Sequence[str] | None = None) -> int:
    """Drives one episode; returns the exit code."""
    args = read(DriveOptions, DESCRIPTION, argv, "drive")
    console = rich.get_console()
    try:
        drive(args, console)
    except (ValueError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(' '.join(str(error).split()))}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped; the log holds what was driven.")
        return 130
    return 0


def drive(args: DriveOptions, console: rich.console.Console) -> None:
    """Prints and logs every tick, then the summary."""
    if args.routes is not None and args.network is None:
        raise ValueError("--routes needs the --network that they lead through.")
    if args.network is not None and args.routes is None and not is_sumocfg(args.network):
        raise ValueError(f"{args.network} has no vehicles to control; give --routes, or a .sumocfg that names both.")
    if args.minutes is not None and args.minutes < 1:
        raise ValueError(f"--minutes {args.minutes} is not a positive number.")
    is_trained, system = args.controller == TRAINED, None
    if is_trained or args.network is None:  # whose policy drives, or whose city is driven
        dataset = kept_recording(args.checkpoint)
        system = open_system(args.checkpoint, dataset.manifest["content_hash"])
        _check_action(system, args)
        of = f"{args.checkpoint}: {dataset.manifest['dataset']}, {dataset.manifest['data']} data"
        console.print(of, style="bold", markup=False)
    if args.network is not None:
        network, scenario = users_scenario(args.network, args.routes, args.seed, args.minutes)
        decide = live.without_city(system, network.neighbours) if is_trained else None
    else:
        signals, minutes = len(system.params.aggregator.weights), args.minutes or MINUTES
        cache = args.log.parent / "cache"
        network, scenario = city_scenario(args.checkpoint, signals, dataset, args.level, args.seed, minutes, cache)
        city = live.City(dataset.forecast_data(dataset.num_folds - 1), dataset.manifest["bin_s"], scenario.first_step)
        decide = live.with_city(system, city, network.neighbours, scenario.seed) if is_trained else None
    begins_s = None if args.network is not None else _begin_s(dataset, scenario)
    limits = DEMAND_LEVELS[args.level].limits  # the agent itself aims lower
    args.log.parent.mkdir(parents=True, exist_ok=True)
    ticks = []
    decide = decide if is_trained else _without_learning(len(network.ids))
    driver = BY_ACTION[system.config.agent.action.name] if is_trained else DRIVERS[args.controller]
    session = Session(network, driver(), SessionConfig(gui=args.gui))
    with args.log.open("w") as log, session:
        for tick in live.drive(session, scenario, decide):
            console.print(described(tick, args.controller), highlight=False, soft_wrap=True)
            clock = clock_of(tick.minute, scenario, begins_s)
            log.write(json.dumps(logged(tick, clock) | {"green_s": greens_of(network, session.green)}) + "\n")
            log.flush()
            ticks.append(tick)
    summary(ticks, limits, console)
    console.print(f"log: {args.log}", markup=False)


def clock_of(minute: int, scenario: Scenario, begins_s: int | None) -> dict:
    """When a minute begins: SUMO's second, and the recording's time (UTC, ISO 8601) where a city is behind the road.

    Args:
        begins_s: unix seconds of minute 0; None without a city.
    """
    found = {"sumo_s": scenario.begin_s + scenario.warmup_s + live.CONTROL_S * minute}
    if begins_s is not None:
        found["time"] = datetime.fromtimestamp(begins_s + live.CONTROL_S * minute, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def greens_of(network: Network, green: np.ndarray) -> dict[str, dict[str, float]]:
    """Seconds of the last minute for which each phase of each signal was green, by their names."""
    exists = existing_phases(network)
    return {
        name: {str(phase + 1): float(green[signal, phase]) for phase in np.flatnonzero(exists[signal])}
        for signal, name in enumerate(network.ids)
    }


def _begin_s(dataset: TrafficDataset, scenario: Scenario) -> int:
    return dataset.manifest["start_s"] + dataset.manifest["bin_s"] * scenario.first_step


def _without_learning(signals: int) -> live.Decide:
    """Action 0 throughout, whatever the driver makes of it: nobody hears a city, and nothing is promised."""
    rest = np.zeros((signals, ACTIONS), np.float32)
    return lambda minute, road: (rest, None, None, 0)


def described(tick: live.LiveTick, controller: str) -> str:
    """One line for a person."""
    if controller == TRAINED:
        return live.describe(tick)
    limits = Limits()  # for the names: values do not depend on them
    values = constraint_values(tick.x, limits)
    shown = [one.constraint.text.format(float(values[one.name])) for one in limits.bounds]
    return f"{tick.minute:3d} min  {'  '.join(shown)}  {controller}"


def logged(tick: live.LiveTick, clock: dict) -> dict:
    """A tick as one JSON line; without learning there are only the clock and the road."""
    values = {name: float(value) for name, value in constraint_values(tick.x, Limits()).items()}
    if tick.certificate is None:
        return {"minute": tick.minute} | clock | {LOGGED.get(name, name): value for name, value in values.items()}
    certificate = {name: np.asarray(value).item() for name, value in tick.certificate._asdict().items()}
    return {
        "minute": tick.minute,
        **clock,
        **{LOGGED.get(name, name): value for name, value in values.items()},
        "forecast_mean": np.asarray(tick.view.mean).round(3).tolist(),
        "forecast_sigma": np.asarray(tick.view.sigma).round(3).tolist(),
        "p_value": np.asarray(tick.view.p_value).round(6).tolist(),
        "anomalous_cells": tick.rejected,
        "certificate": certificate,
    }


def summary(ticks: list[live.LiveTick], limits: object, console: rich.console.Console) -> None:
    """What the episode came to."""
    broken = [bool((np.asarray(costs(tick.x, limits)) > 0).any()) for tick in ticks[1:]]
    cells = {
        "minutes": str(len(ticks)),
        "violating minutes": str(sum(broken)),
        "longest wait s": f"{max(float(tick.after.wait.max()) for tick in ticks):.0f}",
        "trips finished": f"{sum(float(tick.after.finished) for tick in ticks):.0f}",
    }
    certificates = [tick.certificate for tick in ticks if tick.certificate is not None]
    if certificates:
        cells["certified"] = f"{np.mean([bool(one.certified) for one in certificates]):.0%}"
        cells["from the policy"] = f"{np.mean([int(one.source) == 0 for one in certificates]):.0%}"
    table = Table(title="this episode")
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    console.print(table)


def _check_action(system: System, args: DriveOptions) -> None:
    sets = system.config.agent.action.name
    if args.controller == TRAINED and args.action not in (None, sets):
        raise ValueError(f"The controller in {args.checkpoint} sets {sets}, not {args.action}.")


if __name__ == "__main__":
    sys.exit(start("drive"))
