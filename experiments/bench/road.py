"""How fast a compiled road runs beside libsumo: simulated seconds per second of wall time, on the same cores.

    python experiments/bench/road.py --environments 1 16 64 256
    python experiments/bench/road.py --environments 64 --trace runs/trace     for jax.profiler's viewer

The 4×4 grid under the look-ahead controller in both worlds, at the same demand. libsumo runs one process a core; the
road's environments are divided among the cores. Compilation, start-up and warm-up are left out. `times_libsumo` is the
ratio; `road_alone` is the same road with lights that never change, which shows what the controller costs.
"""

import argparse
import contextlib
import functools
import json
import os
import platform
import resource
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table

from experiments.bench.simulator import CONTROL_S, measure
from experiments.evaluation.drives import open_session
from experiments.road.controllers import driver
from sim.compile_demand import compile_with_demand
from sim.demand import DemandConfig, TripPlanner, trip_rates
from sim.network import GridConfig, build_grid
from stream_jax.road.controller import GREEN, start
from stream_jax.road.env import Params, World
from stream_jax.road.world import Controller, lookahead, usual_drivers

CORES = os.cpu_count() or 1


def open_lights() -> Controller:
    """Green for everybody, always: what is left is the road alone."""
    return Controller(start, lambda state, seen, action, tables: (state, jnp.full(tables.phase.shape, GREEN)))


def speed(world: World, params: Params, environments: int, steps: int, trace: Path | None) -> float:
    """Simulated seconds per second of all environments together."""
    signals = world.road.turn.shape[0]
    devices = jax.devices()[: min(CORES, environments)]
    divided = NamedSharding(Mesh(np.array(devices), ("environments",)), PartitionSpec("environments"))
    keys = jax.device_put(jax.random.split(jax.random.key(0), environments), divided)

    def drive(key: Array, state: object) -> object:
        told = jnp.zeros((signals, 9))
        one = lambda state, drawn: (world.step(drawn, state, told, params)[0], None)  # noqa: E731
        return jax.lax.scan(one, state, jax.random.split(key, steps))[0]

    states = jax.jit(jax.vmap(lambda key: world.reset(key, params)))(keys)
    states = jax.device_put(states, divided)
    run = jax.jit(jax.vmap(drive), out_shardings=divided).lower(keys, states).compile()
    states = jax.block_until_ready(run(keys, states))  # the road fills
    with jax.profiler.trace(trace) if trace else contextlib.nullcontext():
        begin = time.perf_counter()
        jax.block_until_ready(run(keys, states))
        spent = time.perf_counter() - begin
    return environments * steps * CONTROL_S / spent


def main() -> None:
    """Measures, prints a table and appends one row per number of environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=4500.0, help="vehicles per hour")
    parser.add_argument("--minutes", type=int, default=10, help="control steps of libsumo")
    parser.add_argument("--steps", type=int, default=5, help="control steps of each environment")
    parser.add_argument("--environments", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--trace", type=Path, help="folder for a trace of jax.profiler")
    parser.add_argument("--out", type=Path, default=Path("results/bench/road.jsonl"))
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", CORES)
    rows = []
    with tempfile.TemporaryDirectory(prefix="stream_jax-") as scratch:
        network, demand = build_grid(GridConfig(), Path(scratch)), DemandConfig(duration_s=CONTROL_S * args.minutes)
        planner, flow = TripPlanner(network, demand), np.ones((20, 16))
        scenarios = [planner.scenario(seed, flow, 5, args.rate, (), Path(scratch)) for seed in range(CORES)]
        session = functools.partial(open_session, network, functools.partial(driver, "look_ahead"))
        sumo = measure(scenarios, "libsumo", CORES, session)
        rates = trip_rates(flow, 5, args.rate, (), demand)
        compiled, wanted = compile_with_demand(network, planner.roads, rates, flow[: len(rates)], demand)
        params = Params(usual_drivers(), wanted)
        for environments in args.environments:
            for name, controller in (("look_ahead", lookahead()), ("road_alone", open_lights())):
                found = speed(World(compiled.road, None, controller), params, environments, args.steps, args.trace)
                rows.append(
                    {
                        "metric": "times_libsumo",
                        "value": found / sumo.simulated_s_per_s,
                        "controller": name,
                        "environments": environments,
                        "simulated_s_per_s": found,
                        "libsumo_s_per_s": sumo.simulated_s_per_s,
                        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                    }
                )
    show(rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    common = {
        "bench": "road",
        "rate": args.rate,
        "cores": CORES,
        "load": os.getloadavg()[0],
        "host": platform.processor(),
    }
    with args.out.open("a") as file:
        for row in rows:
            file.write(json.dumps(common | row) + "\n")


def show(rows: list[dict]) -> None:
    """Prints the speeds."""
    title = f"4×4 grid; libsumo {rows[0]['libsumo_s_per_s']:.0f} simulated s/s on {CORES} cores"
    table = Table("controller", "environments", "simulated s/s", "times libsumo", "peak MB", title=title)
    for row in rows:
        numbers = (row["simulated_s_per_s"], row["value"], row["peak_memory_mb"])
        table.add_row(row["controller"], str(row["environments"]), *(f"{number:.1f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
