"""Seconds to imagine in the world model: one compiled call against a Python loop, and seeds together against apart.

    python experiments/bench/rollout.py [--starts 256] [--seeds 1 2 5] [--intersections 16] [--hidden 64]

One rollout is 15 steps of a 5-member ensemble (the paper's sizes) under random actions, from every start. The loop
calls a compiled function per step and member, vmapped over the starts, as a program without scan and without a member
axis would; so the ratio is the gain of compiling the whole, not of leaving Python's arithmetic behind.
"""

import argparse
import dataclasses
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.table import Table

from stream_jax.rl import world_model
from stream_jax.rl.state import CLOCK, advance_clock, clip_physical
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import Scaling, WorldConfig, init_network
from stream_jax.task import ACTIONS
from stream_jax.types import RLState

FORECAST = 4  # steps of the city's forecast
# The last x [starts, I, 10] and the disagreement [starts, 15].
RunFn = Callable[[Array, WorldParams, RLState], tuple[Array, Array]]


class Timing(NamedTuple):
    """One measured way of imagining."""

    way: str
    seeds: int
    compile_s: float
    run_s: float  # median over the repeats
    reference_s: float  # what it is compared with
    peak_memory_mb: float  # of the process so far


def grid_adjacency(intersections: int) -> Array:
    """Row-normalised neighbours on the smallest square grid that holds them."""
    side = int(np.ceil(np.sqrt(intersections)))
    row, column = np.divmod(np.arange(intersections), side)
    near = abs(row[:, None] - row) + abs(column[:, None] - column) == 1
    return jnp.asarray(near / np.maximum(near.sum(axis=1, keepdims=True), 1), jnp.float32)


def random_world(key: Array, cfg: WorldConfig) -> WorldParams:
    """Untrained members: the time does not depend on what was learned."""
    num_inputs = 2 * (2 * FORECAST + 26) + 2 * ACTIONS
    scaling = Scaling(jnp.zeros(num_inputs), jnp.ones(num_inputs), jnp.full(10, 0.1))
    return WorldParams(init_network(key, num_inputs, cfg), scaling, jnp.asarray(jnp.inf))


def random_starts(starts: int, intersections: int) -> RLState:
    """Leaves [starts, ...]."""
    x_key, plan_key = jax.random.split(jax.random.key(1))
    shape = (starts, intersections)
    flat = jnp.ones((*shape, FORECAST))
    plan = jax.random.uniform(plan_key, (*shape, ACTIONS), minval=-1.0, maxval=1.0)
    local = jax.random.uniform(x_key, (*shape, 10))
    return RLState(local, flat, 0.1 * flat, jnp.ones(shape), jnp.zeros(shape), plan, jnp.zeros((starts, CLOCK)))


def act(key: Array, state: RLState) -> tuple[Array, tuple]:
    """A uniformly random action."""
    return jax.random.uniform(key, state.plan.shape, minval=-1.0, maxval=1.0), ()


def compiled_way(adjacency: Array, cfg: WorldConfig) -> RunFn:
    """All starts, members and steps in one call."""

    def run(key: Array, params: WorldParams, starts: RLState) -> tuple[Array, Array]:
        keys = jax.random.split(key, starts.local.shape[0])
        rollouts = jax.vmap(lambda k, s: world_model.imagine(k, params, act, s, adjacency, cfg))(keys, starts)
        return rollouts.transitions.x_next[:, -1], rollouts.disagreement

    return run


def looping_way(adjacency: Array, cfg: WorldConfig) -> RunFn:
    """The same work with Python loops over steps and members."""
    single = dataclasses.replace(cfg, members=1)
    draw = jax.jit(jax.vmap(act))
    answer = jax.jit(jax.vmap(lambda p, s, a: world_model.predict(p, s, a, adjacency, single), (None, 0, 0)))
    follow = jax.jit(jax.vmap(partial(_follow, cfg=cfg)))

    def run(key: Array, params: WorldParams, starts: RLState) -> tuple[Array, Array]:
        num = starts.local.shape[0]
        members = [
            params._replace(network=jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], params.network))
            for k in range(cfg.members)
        ]
        leader_key, steps_key = jax.random.split(key)
        leader = jax.random.randint(leader_key, (num,), 0, cfg.members)
        state, spreads = starts, []
        for step_key in jax.random.split(steps_key, cfg.horizon):
            act_keys, noise_keys = jax.random.split(step_key, (2, num))
            action, _ = draw(act_keys, state)
            answers = [answer(member, state, action) for member in members]
            together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *answers)
            state, spread = follow(noise_keys, state, action, together, leader)
            spreads.append(spread)
        return state.local, jnp.stack(spreads, axis=1)

    return run


def _follow(
    key: Array, state: RLState, action: Array, prediction: world_model.Prediction, leader: Array, cfg: WorldConfig
) -> tuple[RLState, Array]:
    """The next state and the disagreement about it, as `imagine_step` computes them."""
    noise = jax.random.normal(key, state.local.shape)
    local = clip_physical(prediction.mean[leader] + prediction.sigma[leader] * noise)
    clock = advance_clock(state.clock, cfg.control_s, cfg.forecast_s)
    return state._replace(local=local, plan=action, clock=clock), world_model.disagreement(prediction)


def measure(run: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> tuple[float, float]:
    """Time of the first call beyond a usual one (compilation), and the median of the others."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        times.append(time.perf_counter() - begin)
    usual = statistics.median(times[1:])
    return times[0] - usual, usual


def measure_all(args: argparse.Namespace) -> list[Timing]:
    """The compiled way against the loop for one seed, then S seeds in one call against S calls."""
    cfg = WorldConfig(hidden=args.hidden)
    adjacency, starts = grid_adjacency(args.intersections), random_starts(args.starts, args.intersections)
    run, key = compiled_way(adjacency, cfg), jax.random.key(2)
    params = random_world(jax.random.key(0), cfg)
    loop_compile, loop = measure(looping_way(adjacency, cfg), (key, params, starts), args.repeats)
    once_compile, once = measure(jax.jit(run), (key, params, starts), args.repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    timings = [Timing("loop", 1, loop_compile, loop, loop, peak), Timing("compiled", 1, once_compile, once, loop, peak)]
    for seeds in args.seeds:
        worlds = jax.vmap(lambda k: random_world(k, cfg))(jax.random.split(jax.random.key(3), seeds))
        keys = jax.random.split(key, seeds)
        compile_s, run_s = measure(jax.jit(jax.vmap(run, (0, 0, None))), (keys, worlds, starts), args.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        timings.append(Timing("seeds together", seeds, compile_s, run_s, seeds * once, peak))
    return timings


def main() -> None:
    """Measures, prints a table and appends one row per way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 5])
    parser.add_argument("--intersections", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=WorldConfig().hidden)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench/rollout.jsonl"))
    args = parser.parse_args()
    timings = measure_all(args)
    show(timings, args)
    append(timings, args)


def show(timings: list[Timing], args: argparse.Namespace) -> None:
    """Prints the timings."""
    device = jax.devices()[0].device_kind
    title = f"{args.starts} starts x 5 members x 15 steps, {args.intersections} intersections, {device}"
    table = Table("way", "seeds", "compile s", "run s", "reference s", "ratio", "peak MB", title=title)
    for row in timings:
        cells = (row.compile_s, row.run_s, row.reference_s, row.reference_s / row.run_s, row.peak_memory_mb)
        table.add_row(row.way, str(row.seeds), *(f"{value:.2f}" for value in cells))
    Console().print(table)


def append(timings: list[Timing], args: argparse.Namespace) -> None:
    """Adds one JSON line per timing."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = {"device": jax.devices()[0].device_kind, "platform": jax.default_backend(), "host": platform.processor()}
    sizes = {"starts": args.starts, "intersections": args.intersections, "hidden": args.hidden, "jax": jax.__version__}
    with args.out.open("a") as file:
        for row in timings:
            file.write(json.dumps({"bench": "rollout", **row._asdict(), **sizes, **device}) + "\n")


if __name__ == "__main__":
    main()
