"""Seconds to score and test one step of a city, and to score and test a whole day at once, on random residuals.

    python experiments/bench/detect.py [--cells 293] [--calibration 40000] [--out results/bench/scoring.jsonl]

One step is what a live controller waits for: context, flow, p-values against sorted calibration scores, and BY over all
cells. A day is 96 such steps in one call; the ratio says what the batch saves.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from stream_jax.flows import crfn_by
from stream_jax.flows.context import FlowData, FlowStep, Neighbours, step_at

DAY = 96


class Timing(NamedTuple):
    """One measured call."""

    call: str  # "step" or "day"
    steps: int
    compile_s: float
    call_s: float  # median over the repeats
    step_s: float  # the same per step


def random_day(cells: int) -> FlowData:
    """Normal residuals of a day on a square grid with up to eight neighbours per cell."""
    rng = np.random.default_rng(0)
    side = int(np.ceil(np.sqrt(cells)))
    row, column = np.divmod(np.arange(cells), side)
    near = (abs(row[:, None] - row) <= 1) & (abs(column[:, None] - column) <= 1) & ~np.eye(cells, dtype=bool)
    order = np.argsort(~near, axis=1, kind="stable")[:, :8]
    neighbours = Neighbours(jnp.asarray(order, jnp.int32), jnp.asarray(np.take_along_axis(near, order, 1)))
    z = jnp.asarray(rng.normal(size=(DAY, cells, 1)), jnp.float32)
    angle = 2 * np.pi * np.arange(DAY) / DAY
    clock = jnp.asarray(np.stack([np.sin(angle), np.cos(angle), np.zeros(DAY), np.ones(DAY)], 1), jnp.float32)
    return FlowData(z, jnp.ones((DAY, cells), bool), jnp.full_like(z, 0.3), clock, neighbours)


def build(
    cells: int, calibration_size: int, cfg: crfn_by.FlowConfig
) -> tuple[crfn_by.FlowParams, crfn_by.Calibration, FlowData]:
    """An untrained flow, which costs as much as a trained one, with random calibration scores."""
    data = random_day(cells)
    params = crfn_by.init_params(jax.random.key(0), data, cfg)
    scores = jnp.sort(jnp.abs(jax.random.normal(jax.random.key(1), (calibration_size,))))
    return params, crfn_by.Calibration(scores, scores.mean(), scores.std(), jnp.asarray(calibration_size)), data


def measure(name: str, steps: int, call: Callable, arguments: tuple, repeats: int) -> Timing:
    """Compile time and median run time of one call."""
    begin = time.perf_counter()
    compiled = jax.jit(call).lower(*arguments).compile()
    compile_s = time.perf_counter() - begin
    jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    median = statistics.median(times)
    return Timing(name, steps, compile_s, median, median / steps)


def run(args: argparse.Namespace) -> list[Timing]:
    """Both calls on the same day."""
    cfg = crfn_by.FlowConfig()
    params, calibration, data = build(args.cells, args.calibration, cfg)
    call = lambda params, calibration, data: crfn_by.detect(  # noqa: E731
        calibration, crfn_by.judge(params, data, cfg), cfg
    )
    one = step_at(data, DAY // 2, cfg.context.lags)

    def live(params: crfn_by.FlowParams, calibration: crfn_by.Calibration, step: FlowStep, carried: jax.Array) -> Any:
        judged, carried = crfn_by.step_judge(params.network, step, carried, cfg)
        return crfn_by.detect(calibration, judged, cfg), carried

    return [
        measure("step", 1, live, (params, calibration, one, jnp.zeros_like(one.z)), args.repeats),
        measure("day", DAY, call, (params, calibration, data), args.repeats),
    ]


def main() -> None:
    """Measures, prints a table and appends one row per call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=293)
    parser.add_argument("--calibration", type=int, default=40_000, help="calibration scores to rank against")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/bench/scoring.jsonl"))
    args = parser.parse_args()
    timings = run(args)
    show(timings, args)
    append(timings, args)


def show(timings: list[Timing], args: argparse.Namespace) -> None:
    """Prints the timings."""
    device = jax.devices()[0].device_kind
    title = f"CRFN-BY, {args.cells} cells against {args.calibration:,} calibration scores, {device}"
    table = Table("call", "compile s", "call ms", "per step ms", title=title)
    for row in timings:
        table.add_row(row.call, f"{row.compile_s:.2f}", f"{1e3 * row.call_s:.2f}", f"{1e3 * row.step_s:.3f}")
    Console().print(table)


def append(timings: list[Timing], args: argparse.Namespace) -> None:
    """Adds one JSON line per timing."""
    args.out.parent.mkdir(parents=True, exist_ok=True)
    device = {"device": jax.devices()[0].device_kind, "platform": jax.default_backend(), "host": platform.processor()}
    sizes = {"cells": args.cells, "calibration": args.calibration, "jax": jax.__version__}
    with args.out.open("a") as file:
        for row in timings:
            file.write(json.dumps({"bench": "detect", **row._asdict(), **sizes, **device}) + "\n")


if __name__ == "__main__":
    main()
