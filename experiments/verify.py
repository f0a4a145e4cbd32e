"""Recomputes what a trained system promises, on fresh data and rollouts, and says whether each promise is kept.

Fresh means: the test part of the checkpoint's recording for forecasts and p-values, and new SUMO episodes of that part
for the drift certificate.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich
from rich.markup import escape
from rich.table import Table

from data.errors import DataError
from data.loader import TrafficDataset
from experiments.cli.main import start
from experiments.cli.reading import read
from experiments.control import PRETRAINED
from experiments.evaluation import incident_log
from experiments.stages import agent_road
from experiments.stages.system import city_days
from sim.city_road import vehicles_per_hour
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.keeping import kept_recording, kept_road
from stream_jax import pipeline
from stream_jax.checkpoint import System
from stream_jax.conformal.bootstrap import BootstrapInterval, block_bootstrap, ratio_of_totals
from stream_jax.rl import bounds, lyapunov, lycon_wrl_plus, replay, verification
from stream_jax.system import open_system
from stream_jax.task import LOCAL

BLOCK = 24  # steps of a bootstrap block: six hours
P_LEVELS = (0.01, 0.05)
SEARCH_POINTS = 10_000
SEARCH_RADIUS = 10.0  # of the joint state, in its units
SEEDS = 700_000  # first seed of the fresh episodes


DESCRIPTION = """\
Recomputes what a trained system promises and says of each promise whether it is kept. Forecasts and p-values are
checked on the test part of the checkpoint's recording, the drift certificate in new SUMO episodes of that part.
The exit code is 0 if every promise is kept, 1 if one is not, and 2 if nothing can be said.

  stream-jax verify                               the pretrained system
  stream-jax verify --checkpoint DIR              yours
  stream-jax verify --episodes 0                  without SUMO
"""


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    """What is checked."""

    checkpoint: Path = PRETRAINED
    """folder of a trained system"""
    episodes: int = 8
    """fresh SUMO episodes for the certificate; 0 leaves it out"""
    level: Literal[tuple(DEMAND_LEVELS)] = "heavy"  # type: ignore[valid-type]
    """demand in these episodes"""
    workers: int = 2
    """SUMO processes that run at the same time"""
    cache: Path = Path("runs/verify")
    """where networks and trips are written"""


class Promise(NamedTuple):
    """One line of the verdict."""

    name: str
    promised: str
    found: str
    kept: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdicts; 0 if every promise is kept, 1 if not, 2 if it cannot be told."""
    args = read(VerifyOptions, DESCRIPTION, argv, "verify")
    if args.episodes < 0 or args.workers < 1:
        raise DataError(f"--episodes {args.episodes} --workers {args.workers}: give 0 or more and 1 or more.")
    console = rich.get_console()
    try:
        dataset = kept_recording(args.checkpoint)
        trained = open_system(args.checkpoint, dataset.manifest["content_hash"])
        promises = [*city_promises(trained, dataset), lipschitz_promise(trained)]
        if args.episodes:
            promises += drift_promises(trained, dataset, args)
    except (ValueError, OSError) as error:
        console.print(f"[bold red]error:[/] {escape(' '.join(str(error).split()))}", soft_wrap=True)
        return 2
    table = Table(
        "promise", "promised", "found", "verdict", title=f"{args.checkpoint} ({dataset.manifest['data']} data)"
    )
    for one in promises:
        table.add_row(*one[:3], "[green]kept[/]" if one.kept else "[red]NOT KEPT[/]")
    console.print(table)
    return 0 if all(one.kept for one in promises) else 1


def city_promises(trained: System, dataset: TrafficDataset) -> list[Promise]:
    """Coverage of the intervals and uniformity of the null p-values over the test part, run live."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(dataset.num_folds - 1))
    first, last = dataset.part("test", dataset.num_folds - 1)
    begun = pipeline.start(jax.random.key(0), trained.params, trained.conformal, data, first - 1, trained.config)
    series = jax.tree.map(lambda leaf: leaf[first:last], data.series)
    tables = pipeline.city_tables(data.graph)
    _, said = pipeline.observe_series(trained.params, tables, begun.city, series, trained.config)
    near, _ = incident_log.surroundings(dataset)
    return [
        coverage_promise(trained, said, data.series, first, last),
        *p_value_promises(said, ~near[first:last]),
    ]


def coverage_promise(
    trained: System, said: pipeline.CityInfo, series: pipeline.TrafficSeries, first: int, last: int
) -> Promise:
    """Share of targets inside their intervals, all horizons, against the target within its bootstrap interval."""
    horizon, target = trained.config.forecaster.horizon, trained.config.forecaster.targets[0]
    rows = jnp.arange(last - first - horizon)
    ahead = first + rows[:, None] + 1 + jnp.arange(horizon)
    label, seen = series.values[ahead, :, target], series.observed[ahead, :, target]  # [W, H, N]
    lower, upper = said.interval.lower[rows], said.interval.upper[rows]
    inside = (label >= lower) & (label <= upper) & seen
    wanted = 1.0 - trained.config.conformal.target
    found = _share(inside.sum((1, 2)), seen.sum((1, 2)))
    return Promise("coverage", f"{wanted:.0%}", _shown(found), bool(found.upper >= wanted))


def p_value_promises(said: pipeline.CityInfo, normal: np.ndarray) -> list[Promise]:
    """P(p <= t) <= t where no incident was logged; cells of a step move together, so whole blocks are resampled."""
    tested = jnp.asarray(normal) & (said.detection.score != 0)
    promises = []
    for level in P_LEVELS:
        small = (said.detection.p_value <= level) & tested
        found = _share(small.sum(1), tested.sum(1))
        promises.append(
            Promise(f"null p-values at {level:g}", f"at most {level:g}", _shown(found), bool(found.lower <= level))
        )
    return promises


def lipschitz_promise(trained: System) -> Promise:
    """A random search for a slope of L above its bound on the ball."""
    cfg, params = trained.config.agent.lyapunov, trained.params.agent.lyapunov
    signals = trained.params.aggregator.weights.shape[0]
    bound = bounds.lipschitz_on_ball(params, SEARCH_RADIUS, signals, cfg)
    draw, length = jax.random.split(jax.random.key(0))
    points = jax.random.normal(draw, (SEARCH_POINTS, signals, LOCAL))
    radius = SEARCH_RADIUS * jax.random.uniform(length, (SEARCH_POINTS, 1, 1))
    points = radius * points / jnp.linalg.norm(points, axis=(1, 2), keepdims=True)
    slope = jax.jit(lambda xs: jax.lax.map(jax.grad(lambda x: lyapunov.value(params, x, cfg)), xs, batch_size=256))
    steepest = float(jnp.linalg.norm(slope(points), axis=(1, 2)).max())
    return Promise(
        "Lipschitz bound of L", f"slope ≤ {bound:.4g}", f"steepest of 10⁴: {steepest:.4g}", steepest <= bound
    )


def drift_promises(trained: System, dataset: TrafficDataset, args: VerifyOptions) -> list[Promise]:
    """The drift certificate on fresh episodes of the frozen controller."""
    demand = DemandConfig(bin_s=dataset.manifest["bin_s"])
    road, factor = kept_road(args.checkpoint, len(trained.params.aggregator.weights), dataset, demand, args.cache)
    rate = vehicles_per_hour(DEMAND_LEVELS[args.level], len(road.network.ids), factor)
    days = city_days(trained, dataset)
    site = agent_road.Site(road, days, rate, args.workers, rich.get_console(), trained.config.agent.action)
    collect = agent_road.collector(site, "test", args.cache)
    agent, cfg = trained.params.agent, trained.config.agent
    adjacency = jnp.asarray(agent_road.adjacency(road.network))
    step = lycon_wrl_plus.policy_step(jax.random.key(0), agent, adjacency, cfg, explore=False)
    row = verification.verify(agent, replay.stack(collect(step, args.episodes, SEEDS)), adjacency, cfg)
    covered = Promise(
        "conformal margin",
        f"covers {1 - cfg.margin_alpha:.0%} of steps",
        f"{row['margin_coverage']:.1%}",
        row["margin_coverage"] >= 1 - cfg.margin_alpha - 0.05,
    )
    return [
        Promise("drift identity", "holds on every rollout", str(row["identity_holds"]), bool(row["identity_holds"])),
        *([covered] if cfg.margin == "conformal" else []),  # a mean margin promises nothing about single steps
        Promise(
            "drift certificate",
            f"mean violation ≤ {cfg.target:g}",
            f"realised {row['violation']:.4f}, bound {row['bound']:.4g}: {row['verdict']}",
            row["verdict"] == "certified",
        ),
    ]


def _share(hits: jax.Array, counts: jax.Array) -> BootstrapInterval:
    sums = jnp.stack([hits, counts], axis=1).astype(jnp.float32)
    return block_bootstrap(jax.random.key(0), sums, ratio_of_totals, BLOCK)


def _shown(found: BootstrapInterval) -> str:
    return f"{float(found.estimate):.4f} [{float(found.lower):.4f}, {float(found.upper):.4f}]"


if __name__ == "__main__":
    sys.exit(start("verify"))
