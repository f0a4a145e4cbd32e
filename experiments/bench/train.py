"""Seconds per training step of PU-GAT+ on random data, for one seed and for several trained together.

    python experiments/bench/train.py [--seeds 1 2 5 10] [--batch 64] [--cells 293] [--out results/bench/train.jsonl]

A step is forward, backward and update on one batch at the paper's sizes (appendix "Training Details"). The ratio of
S single runs to one run of S seeds says what training seeds together saves.
"""

import argparse
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from rich.console import Console
from rich.table import Table

from stream_jax.gnn.attention import neighbour_table
from stream_jax.gnn.inputs import fit_inputs
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.pu_gat_plus import init_params, training_loss
from stream_jax.types import ForecastData, RoadGraph, TrafficSeries

LENGTH = 480  # five days of 15-minute steps


class Timing(NamedTuple):
    """One measured configuration."""

    seeds: int
    compile_s: float
    step_s: float  # median over the repeats
    single_s: float  # the same for one seed
    peak_memory_mb: float  # of the process so far


def random_city(cells: int) -> ForecastData:
    """Poisson counts on a square grid with eight neighbours per cell."""
    rng = np.random.default_rng(0)
    side = int(np.ceil(np.sqrt(cells)))
    row, column = np.divmod(np.arange(cells), side)
    near = (abs(row[:, None] - row) <= 1) & (abs(column[:, None] - column) <= 1)  # host only, [N, N]
    receivers, senders = np.nonzero(near)
    position = jnp.asarray(np.stack([column, row], 1) * 1000.0)
    graph = RoadGraph(jnp.asarray(senders), jnp.asarray(receivers), jnp.zeros((len(senders), 3)), position)
    step = np.arange(LENGTH)
    wave = 20 + 10 * np.sin(2 * np.pi * step / 96)
    values = jnp.asarray(rng.poisson(wave[:, None, None], (LENGTH, cells, 3)), jnp.float32)
    angle = 2 * np.pi * step[:, None] / np.array([96, 672])
    clock = np.stack([np.sin(angle[:, 0]), np.cos(angle[:, 0]), np.sin(angle[:, 1]), np.cos(angle[:, 1])], 1)
    series = TrafficSeries(
        values, jnp.ones_like(values, bool), jnp.asarray(clock, jnp.float32), jnp.asarray(step % 672)
    )
    return ForecastData(series, graph, jnp.arange(11, 300), jnp.arange(320, 380))


def build_step(data: ForecastData, cfg: ForecasterConfig) -> tuple[Callable[[Array], Any], Callable[..., Any]]:
    """Start of one seed's state, and its training step on a batch of origins."""
    scaler, prepared = fit_inputs(data, cfg)
    shared = (prepared, scaler, neighbour_table(data.graph))
    optimiser = optax.adamw(3e-4)

    def start(key: Array) -> tuple[Any, Any]:
        params = init_params(key, shared, data.train[:1], cfg)
        return params, optimiser.init(params)

    def step(key: Array, state: tuple[Any, Any], origins: Array, shared: Any) -> tuple[Any, Any]:
        params, opt_state = state
        weight = jnp.ones(origins.shape[0])
        grads = jax.grad(training_loss, argnums=1)(key, params, origins, weight, shared, cfg)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return start, lambda key, state, origins: step(key, state, origins, shared)


def measure(data: ForecastData, cfg: ForecasterConfig, seeds: int, batch: int, repeats: int) -> tuple[float, float]:
    """Compile time and median step time of `seeds` seeds in one call."""
    start, step = build_step(data, cfg)
    keys = jax.random.split(jax.random.key(0), seeds)
    origins = data.train[:batch]
    if seeds == 1:
        keys = keys[0]
    else:
        start, step = jax.vmap(start), jax.vmap(step, (0, 0, None))
    state = jax.jit(start)(keys)
    begin = time.perf_counter()
    compiled = jax.jit(step).lower(keys, state, origins).compile()
    compile_s = time.perf_counter() - begin
    state = jax.block_until_ready(compiled(keys, state, origins))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        state = jax.block_until_ready(compiled(keys, state, origins))
        times.append(time.perf_counter() - begin)
    return compile_s, statistics.median(times)


def main() -> None:
    """Measures, prints a table and appends one row per configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--cells", type=int, default=293)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench/train.jsonl"))
    args = parser.parse_args()
    data, cfg = random_city(args.cells), ForecasterConfig(hidden=args.hidden)
    _, single = measure(data, cfg, 1, args.batch, args.repeats)
    timings = []
    for seeds in args.seeds:
        compile_s, step_s = measure(data, cfg, seeds, args.batch, args.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        timings.append(Timing(seeds, compile_s, step_s, single, peak))
    show(timings, args)
    append(timings, args)


def show(timings: list[Timing], args: argparse.Namespace) -> None:
    """Prints the timings."""
    device = jax.devices()[0].device_kind
    title = f"PU-GAT+ training step, batch {args.batch}, {args.cells} cells, hidden {args.hidden}, {device}"
    table = Table("seeds", "compile s", "step s", "seeds x single s", "ratio", "peak MB", title=title)
    for row in timings:
        apart = row.seeds * row.single_s
        cells = (row.compile_s, row.step_s, apart, apart / row.step_s, row.peak_memory_mb)
        table.add_row(str(row.seeds), *(f"{value:.2f}" for value in cells))
    Console().print(table)


def append(timings: list[Timing], args: argparse.Namespace) -> None:
    """Adds one JSON line per timing."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = {"device": jax.devices()[0].device_kind, "platform": jax.default_backend(), "host": platform.processor()}
    sizes = {"batch": args.batch, "cells": args.cells, "hidden": args.hidden, "jax": jax.__version__}
    with args.out.open("a") as file:
        for row in timings:
            file.write(json.dumps({"bench": "train", **row._asdict(), **sizes, **device}) + "\n")


if __name__ == "__main__":
    main()
