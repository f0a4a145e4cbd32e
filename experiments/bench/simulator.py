"""How fast the road runs: simulated seconds and control steps per second of wall time, by backend and processes.

    python experiments/bench/simulator.py --rate 4500 --minutes 20

A 4×4 grid with even demand under the default plan; every control step makes the round trip to the parent, as with a
learned agent. Start-up and warm-up are left out. All configurations run in turn in one call, so ratios are fair.
"""

import argparse
import functools
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.evaluation.drives import open_session
from experiments.methods.control import default_plan
from sim.demand import DemandConfig, TripPlanner
from sim.loop import MakeSession, Tick, run_episodes
from sim.network import GridConfig, build_grid
from sim.session import Scenario, SessionConfig

CONTROL_S = 60


class Speed(NamedTuple):
    """One configuration."""

    backend: str
    workers: int
    steps_per_s: float  # control steps of all environments together
    simulated_s_per_s: float
    vehicles: float  # on the road, mean


class Stopwatch:
    """A step_fn that answers with the default plan and notes when it was called with all environments active."""

    def __init__(self, num_signals: int) -> None:
        self.num_signals, self.times, self.present = num_signals, [], []

    def __call__(self, tick: Tick) -> np.ndarray:
        if tick.active.all() and (tick.step >= 0).all():
            self.times.append(time.perf_counter())
            self.present.append(float(np.mean(tick.road.travel_time)) / CONTROL_S)
        return np.zeros((len(tick.active), self.num_signals, 9), np.float32)


def measure(scenarios: list[Scenario], backend: str, workers: int, make_session: MakeSession) -> Speed:
    """Speed of `workers` environments that step together."""
    watch = Stopwatch(scenarios[0].flow.shape[1])
    list(run_episodes(make_session, scenarios[:workers], watch, workers))
    steps = workers * (len(watch.times) - 1) / (watch.times[-1] - watch.times[0])
    return Speed(backend, workers, steps, steps * CONTROL_S, float(np.mean(watch.present)))


def main() -> None:
    """Measures, prints a table and appends one row per configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=4500.0, help="vehicles per hour")
    parser.add_argument("--minutes", type=int, default=20, help="control steps of each environment")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--backends", nargs="+", default=["libsumo", "traci"])
    parser.add_argument("--out", type=Path, default=Path("results/bench/simulator.jsonl"))
    args = parser.parse_args()
    speeds = []
    with tempfile.TemporaryDirectory(prefix="stream_jax-") as scratch:
        network = build_grid(GridConfig(), Path(scratch))
        planner = TripPlanner(network, DemandConfig(duration_s=CONTROL_S * args.minutes))
        flow = np.ones((20, len(network.ids)))
        scenarios = [planner.scenario(s, flow, 5, args.rate, (), Path(scratch)) for s in range(max(args.workers))]
        for backend in args.backends:
            session = functools.partial(open_session, network, default_plan.driver, SessionConfig(backend))
            speeds += [measure(scenarios, backend, workers, session) for workers in args.workers]
    show(speeds, args.rate)
    append(speeds, args)


def show(speeds: list[Speed], rate: float) -> None:
    """Prints the speeds."""
    title = f"4×4 grid, {rate:g} vehicles per hour"
    table = Table("backend", "processes", "control steps/s", "simulated s/s", "vehicles", title=title)
    for row in speeds:
        numbers = (row.steps_per_s, row.simulated_s_per_s, row.vehicles)
        table.add_row(row.backend, str(row.workers), *(f"{number:.1f}" for number in numbers))
    Console().print(table)


def append(speeds: list[Speed], args: argparse.Namespace) -> None:
    """Adds one JSON line per configuration."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    common = {"bench": "simulator", "rate": args.rate, "minutes": args.minutes, "host": platform.processor()}
    with args.out.open("a") as file:
        for row in speeds:
            file.write(json.dumps(common | row._asdict()) + "\n")


if __name__ == "__main__":
    main()
