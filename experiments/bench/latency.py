"""Milliseconds per control tick, stage by stage and end to end, beside the paper's latency table (tab:runtime).

    python experiments/bench/latency.py [--ticks 300] [--cells 293] [--trace DIR] [--rival SCRIPT]

Weights are random: latency does not depend on training. Every stage is compiled alone and timed in turn, so that a busy
moment hits all of them; the total is the whole tick compiled as one function with its state donated, which is what a
controller waits for, and need not be the stages' sum. A rival is a script that is called as `SCRIPT --json FILE` and
leaves {"results": {workload: {variant: {"median_ms": ..., "p95_ms": ...}}}}; it takes turns with us.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.bench.train import random_city
from experiments.evaluation import results
from experiments.tables import paper
from stream_jax import pipeline
from stream_jax.conformal import intervals
from stream_jax.flows import context, crfn_by
from stream_jax.flows import streaming as flow_streaming
from stream_jax.gnn import streaming as forecast_streaming
from stream_jax.gnn.attention import neighbour_table
from stream_jax.gnn.inputs import Scaler
from stream_jax.gnn.pu_gat_plus import ForecasterParams, init_params
from stream_jax.pipeline import CityObservation, Observation, PipelineState, SystemConfig, SystemParams
from stream_jax.rl import agent as agents
from stream_jax.rl.aggregation import Aggregator, city_view, distances_km, square_weights
from stream_jax.rl.state import CLOCK, make_state
from stream_jax.task import physical_state
from stream_jax.types import ConformalState, Forecast, ForecastData, RoadMeasurement

CALIBRATION = 40_000  # scores that a p-value is ranked against
ORIGIN = 400  # step of the random city after which ticks begin
CELL_M = 1000.0  # of the random city's grid
WARM_UP = 20
TOTAL, BETWEEN = "Total", "Tick between city steps"


class Bench(NamedTuple):
    """A system ready to tick."""

    params: SystemParams
    graph: pipeline.CityTables
    state: PipelineState
    observation: Observation
    act_fn: pipeline.ActFn
    cfg: SystemConfig


def build(cells: int, side: int, cfg: SystemConfig) -> Bench:
    """A random system over a grid city, with side x side intersections."""
    data = random_city(cells)
    adjacency = grid_adjacency(side)
    params, conformal = random_system(data, adjacency, cfg)
    state = pipeline.start(jax.random.key(0), params, conformal, data, ORIGIN, cfg)
    row = jax.tree.map(lambda leaf: leaf[ORIGIN + 1], data.series)
    num = side**2
    each, zero = jnp.full(num, 5.0), jnp.zeros(())
    road = RoadMeasurement(jnp.ones((num, 8)), each, each, each, each, each, zero, zero, zero)
    observation = Observation(road, CityObservation(*row), jnp.array(True), jnp.zeros(CLOCK))
    act_fn = pipeline.controller(adjacency, cfg.agent)
    return Bench(params, pipeline.city_tables(data.graph), state, observation, act_fn, cfg)


def random_system(data: ForecastData, adjacency: jax.Array, cfg: SystemConfig) -> tuple[SystemParams, ConformalState]:
    """Untrained networks with calibrations of the usual sizes."""
    keys = jax.random.split(jax.random.key(0), 6)
    cells, features = data.series.values.shape[1:]
    horizon, per_day = cfg.forecaster.horizon, cfg.forecaster.profile.steps_per_day
    scaler = Scaler(jnp.full(features, 10.0), jnp.ones(features), jnp.full((per_day, cells, features), 2.0))
    recent = forecast_streaming.empty(ForecasterParams(None, scaler), cfg.forecaster).recent
    shared = (recent, scaler, neighbour_table(data.graph))
    network = init_params(keys[0], shared, jnp.array([cfg.forecaster.history]), cfg.forecaster)
    z = jnp.zeros((1, cells, 1))
    steps = context.FlowData(z, z[..., 0] == 0, z + 1.0, jnp.zeros((1, 4)), context.neighbour_table(data.graph))
    scores = jnp.sort(jnp.abs(jax.random.normal(keys[2], (CALIBRATION,))))
    ranked = crfn_by.Calibration(scores, jnp.zeros(()), jnp.ones(()), jnp.array(CALIBRATION, jnp.int32))
    num = adjacency.shape[0]
    centres = jax.random.uniform(keys[3], (num, 2), maxval=float(data.graph.position.max()))
    weights = square_weights(data.graph.position, CELL_M, centres, 2.0 * CELL_M)
    correlation = jnp.exp(-distances_km(data.graph.position) / 3.0)
    aggregator = Aggregator(weights, correlation, jnp.ones((num, horizon)), jnp.full(num, 50.0))
    agent = agents.init(keys[4], adjacency, cfg.agent)._replace(fitted=jnp.array(True), margin=jnp.array(0.01))
    params = SystemParams(
        ForecasterParams(network, scaler),
        jnp.ones((horizon, cells)),
        crfn_by.init_params(keys[1], steps, cfg.flow),
        ranked,
        aggregator,
        agent,
    )
    shape = (cfg.conformal.rolling_steps, horizon, cells)
    errors = jax.random.normal(keys[5], shape)
    cluster = jnp.arange(cells) % cfg.conformal.num_clusters
    even = Forecast(jnp.zeros(shape), jnp.ones(shape))
    return params, intervals.calibrate(even, errors, jnp.ones(shape, bool), cluster, cfg.conformal)


def grid_adjacency(side: int) -> jax.Array:
    """Who is next to whom on a square grid, rows summing to 1. [I, I]"""
    row, column = np.divmod(np.arange(side**2), side)
    near = abs(row[:, None] - row) + abs(column[:, None] - column) == 1
    return jnp.asarray(near / np.maximum(near.sum(1, keepdims=True), 1), jnp.float32)


def stages(bench: Bench) -> dict[str, tuple[Callable[..., Any], tuple]]:
    """Every stage as a function and its arguments, under the paper's name where it has one."""
    params, graph, state, seen, _, cfg = bench
    city, latest = state.city, state.latest
    label, observed = seen.city.values[:, 0], seen.city.observed[:, 0]

    def forecast(params: SystemParams, stream: Any, city: CityObservation, graph: Any) -> tuple[Any, Forecast]:
        stream = forecast_streaming.observe(params.forecaster, stream, *city, cfg.forecaster)
        return stream, forecast_streaming.forecast(params.forecaster, stream, graph.forecast, cfg.forecaster)

    def score(params: SystemParams, residual: Any, label: Any, observed: Any, clock: Any, graph: Any) -> tuple:
        residual, step = flow_streaming.observe(residual, label, observed, clock, params.factor, graph.flow, cfg.scale)
        return residual, crfn_by.step_judge(params.flow.network, step, residual.carried, cfg.flow)

    def aggregate(params: SystemParams, said: pipeline.CityInfo) -> Any:
        found = said.detection
        return city_view(params.aggregator, *said.forecast, found.p_value, found.rejected, found.score > 0)

    def act(params: SystemParams, state: PipelineState, seen: Observation) -> Any:
        x = physical_state(seen.road)
        rl_state = make_state(x, state.latest.view, state.action, seen.clock, cfg.agent.state)
        return bench.act_fn(params.agent, rl_state, state.action, state.key)

    return {
        "PU-GAT+ forecasting": (forecast, (params, city.stream, seen.city, graph)),
        "Flow scoring": (score, (params, city.residual, label, observed, seen.city.clock, graph)),
        "BY thresholding": (
            lambda params, judged: crfn_by.detect(params.calibration, judged, cfg.flow),
            (params, crfn_by.Judged(latest.detection.score, jnp.ones_like(latest.detection.score), observed)),
        ),
        "Conformal intervals": (
            lambda *given: intervals.update(*given, cfg.conformal),
            (city.conformal, latest.forecast, label, observed),
        ),
        "Spatial aggregation": (aggregate, (params, latest)),
        "RL action selection": (act, (params, state, seen)),
    }


def measure(bench: Bench, ticks: int) -> dict[str, np.ndarray]:
    """Milliseconds of every call, by component: the stages, the whole tick, and a tick without a city step."""
    compiled = {name: (jax.jit(call), given) for name, (call, given) in stages(bench).items()}
    tick = jax.jit(pipeline.tick, static_argnums=(4, 5), donate_argnums=2)
    carried = {name: jax.tree.map(jnp.copy, bench.state) for name in (TOTAL, BETWEEN)}
    spent = {name: [] for name in (*compiled, *carried)}
    for _ in range(WARM_UP + ticks):
        for name, (call, given) in compiled.items():
            begin = time.perf_counter()
            jax.block_until_ready(call(*given))
            spent[name].append(time.perf_counter() - begin)
        for name in carried:
            seen = bench.observation._replace(arrived=jnp.array(name == TOTAL))
            begin = time.perf_counter()
            done = tick(bench.params, bench.graph, carried[name], seen, bench.cfg, bench.act_fn)
            carried[name] = jax.block_until_ready(done)[0]
            spent[name].append(time.perf_counter() - begin)
    return {name: 1000.0 * np.array(times[WARM_UP:]) for name, times in spent.items()}


def rows_of(spent: dict[str, np.ndarray]) -> list[dict]:
    """Median, 95th percentile and share of the whole tick, a row each."""
    whole = float(np.median(spent[TOTAL]))
    rows = []
    for name, times in spent.items():
        median = float(np.median(times))
        values = {"ms": median, "p95_ms": float(np.quantile(times, 0.95)), "share": median / whole}
        rows += [{"component": name, "metric": metric, "value": value} for metric, value in values.items()]
    return rows


def run_rival(script: Path, python: str, console: Console) -> dict[str, dict]:
    """Median and 95th percentile of the rival's variants, {} when it cannot run."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "rival.json"
        done = subprocess.run([python, script, "--json", answer], check=False, capture_output=True, text=True)
        if done.returncode or not answer.exists():
            console.print(f"The rival {script} failed and is left out: {done.stderr.strip()[-300:]}")
            return {}
        found = json.loads(answer.read_text())["results"]
    return {
        f"{workload}, {variant}": timing
        for workload, variants in found.items()
        for variant, timing in variants.items()
        if "median_ms" in timing
    }


def rival_rows(rounds: list[dict[str, dict]]) -> list[dict]:
    """The best round of each variant: noise on a shared machine only adds."""
    best: dict[str, dict] = {}
    for found in rounds:
        for name, timing in found.items():
            if name not in best or timing["median_ms"] < best[name]["median_ms"]:
                best[name] = timing
    metrics = {"ms": "median_ms", "p95_ms": "p95_ms"}
    return [
        {"component": name, "metric": metric, "value": timing[field]}
        for name, timing in best.items()
        for metric, field in metrics.items()
    ]


def show(title: str, rows: list[dict], console: Console) -> None:
    """Prints the components beside the paper's milliseconds."""
    table = Table("component", "paper ms", "median ms", "p95 ms", title=title)
    reported = paper.TABLES["latency"].rows
    for name in dict.fromkeys(row["component"] for row in rows):
        values = {row["metric"]: row["value"] for row in rows if row["component"] == name}
        theirs = f"{reported[name][0]:.1f}" if name in reported else ""
        table.add_row(name, theirs, f"{values['ms']:.2f}", f"{values['p95_ms']:.2f}")
    console.print(table)


def best_round(rounds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The round with the fastest whole tick."""
    return min(rounds, key=lambda spent: float(np.median(spent[TOTAL])))


def main() -> None:
    """Measures, prints a table and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", type=int, default=300)
    parser.add_argument("--cells", type=int, default=293)
    parser.add_argument("--side", type=int, default=4, help="intersections along one side of the road grid")
    parser.add_argument("--rounds", type=int, default=1, help="turns; the best one is kept, of us and of the rival")
    parser.add_argument("--trace", type=Path, help="folder for a jax.profiler trace of some ticks")
    parser.add_argument("--rival", type=Path, help="script to take turns with")
    parser.add_argument("--rival-python", default=sys.executable, help="interpreter of the rival's environment")
    parser.add_argument("--out", type=Path, default=Path("results/bench/latency.jsonl"))
    args = parser.parse_args()
    console = Console()
    bench = build(args.cells, args.side, SystemConfig())
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(measure(bench, args.ticks))
        if args.rival is not None:
            theirs.append(run_rival(args.rival, args.rival_python, console))
    if args.trace is not None:
        with jax.profiler.trace(str(args.trace)):
            measure(bench, 10)
    made = {"stream_jax": rows_of(best_round(ours)), "rival": rival_rows(theirs)}
    for name, rows in made.items():
        if rows:
            show(f"{name}, one tick on {jax.devices()[0].device_kind}", rows, console)
    common = {"dataset": "bench", "stage": "latency", "cells": args.cells, "intersections": args.side**2}
    common |= {"ticks": args.ticks, "device": jax.devices()[0].device_kind, "jax": jax.__version__}
    common |= {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    results.write_rows(args.out, [common | {"method": name} | row for name, rows in made.items() for row in rows])


if __name__ == "__main__":
    main()
