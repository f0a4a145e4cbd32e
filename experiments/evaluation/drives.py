"""Evaluates a way of driving the signals over episodes: run or read back, scored, summarised with intervals.

A method is a session to open and, if something learned acts in it, a `step_fn`; everything else is the same for all.
Safety is the share of episodes without a single violating control step (Section 5.4, whose violations per episode are
that same indicator); violating steps are counted apart.
"""

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import scipy.stats
from rich.console import Console
from rich.markup import escape

from data.spark_etl import shards
from experiments.evaluation import results
from sim.loop import Episode, StepFn, run_episodes
from sim.nema import SignalDriver
from sim.network import Network
from sim.scenario import demand_files
from sim.session import Scenario, Session, SessionConfig
from stream_jax import store
from stream_jax.task import Limits, constraint_values, costs, physical_state, traffic_reward
from stream_jax.types import RoadMeasurement

CONFIDENCE = 0.95
MEDIANS = ("longest_wait", "travel_time")  # which a gridlock moves less than the mean
PAIRED = ("safety", "reward", "travel_time", "violating_steps")  # compared with another method hour by hour
Scores = dict[int, dict[str, float]]  # of one seed, by the episode's place among the scenarios
NOTHING: Scores = {}


class Method(NamedTuple):
    """Something that drives the signals."""

    name: str
    make_session: Callable[[], Session]  # picklable: it is called in another process
    step_fn: StepFn | None = None  # actions of all environments at once; None: action 0, whatever the driver does of it
    version: str = ""  # changes with what it does, so that episodes of an earlier version are not read back

    @property
    def folder(self) -> str:
        """Name of the folder of its episodes."""
        return f"{self.name}-{self.version}" if self.version else self.name


def without_learning(name: str, network: Network, make_driver: Callable[[], SignalDriver]) -> Method:
    """A method that is a signal driver alone."""
    return Method(name, functools.partial(open_session, network, make_driver))


def open_session(
    network: Network, make_driver: Callable[[], SignalDriver], cfg: SessionConfig | None = None
) -> Session:
    """A session with a driver of its own."""
    return Session(network, make_driver(), cfg)


def evaluate(
    method: Method,
    scenarios: Sequence[Scenario],
    folder: Path,
    workers: int = 2,
    console: Console | None = None,
    on_episode: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Episodes of all scenarios, in their order; those found in `folder` are read and not run again.

    Episodes that failed are named on the console and left out; running again tries them again.
    """
    paths = [episode_file(folder, i, scenario) for i, scenario in enumerate(scenarios)]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    todo = [scenarios[i] for i in missing]
    for episode in run_episodes(
        method.make_session, todo, method.step_fn, workers, console=console, title=f"  {method.name}"
    ):
        if episode.failure is None:
            save_episode(paths[missing[episode.index]], episode)
        elif console is not None:
            last = episode.failure.strip().splitlines()[-1]
            console.print(f"[yellow]warning:[/] {method.name}, episode {missing[episode.index]} failed: {escape(last)}")
        on_episode()
    return [read_episode(path, i, scenarios[i]) for i, path in enumerate(paths) if path.exists()]


def score(episode: Episode, limits: Limits, control_s: float = 60.0) -> dict[str, float]:
    """The numbers of one episode; the warm-up does not count."""
    road = RoadMeasurement(*(field[1:] for field in episode.road))
    x = jax.vmap(physical_state)(road)  # [T, I, 10]
    cost = np.asarray(jax.vmap(lambda one: costs(one, limits))(x))  # [T, C]
    value = jax.tree.map(np.asarray, jax.vmap(lambda one: constraint_values(one, limits))(x))  # by name, [T]
    over = zip(limits.names, (cost > 0).sum(axis=0), strict=True)
    return {
        "reward": float(jax.vmap(lambda one: traffic_reward(one, control_s))(road).mean()),
        "safety": float(not (cost > 0).any()),
        "violating_steps": float((cost > 0).any(axis=1).sum()),
        **{f"steps_over_{name}": float(steps) for name, steps in over},
        "violation": float(cost.sum(axis=1).mean()),
        **{rule.mean_metric: float(value[name].mean()) for name, _, rule in limits.bounds},
        **{rule.max_metric: float(value[name].max()) for name, _, rule in limits.bounds if rule.max_metric},
        "travel_time": float(episode.totals["mean_travel_time_s"]),
        "teleports": float(episode.totals["teleports"]),
    }


def summarise(drives: Sequence[Scores], limits: Limits, references: Mapping[str, Scores] | None = None) -> list[dict]:
    """One row per metric: mean over episodes with a 95 % interval (Wilson's for safety, Student's else).

    What varies is the hour: seeds of a method meet the same hours and do much the same in them, or the very same where
    they kept what they began with. Intervals are therefore over hours, each the mean of its seeds.

    Args:
        drives: scores of every seed.
        references: what to pair with hour by hour, by the name that ends the metrics' names.
    """
    limit = {metric: limit for _, limit, rule in limits.bounds for metric in (rule.mean_metric, rule.max_metric)}
    hours, episodes = hourly(drives), sum(len(scores) for scores in drives)

    def row(metric: str, value: float, bounds: tuple[float, float], count: int = len(hours)) -> dict:
        found = {"metric": metric, "value": float(value), "lower": bounds[0], "upper": bounds[1], "hours": count}
        of = metric.removesuffix("_median")
        return found | {"episodes": episodes} | ({"limit": limit[of]} if of in limit else {})

    rows = []
    for name in next(iter(hours.values())):
        values = np.array([one[name] for one in hours.values()])
        bounds = shared_wilson(values, episodes) if name == "safety" else results.student(values)
        rows.append(row(name, np.mean([one[name] for scores in drives for one in scores.values()]), bounds))
    for name in MEDIANS:
        value, low, high = median([one[name] for one in hours.values()])
        rows.append(row(f"{name}_median", value, (low, high)))
    for reference, theirs in (references or {}).items():
        both = hours.keys() & theirs.keys()
        for name in PAIRED if both else ():
            gap = np.array([hours[hour][name] - theirs[hour][name] for hour in sorted(both)])
            rows.append(row(f"{name}_minus_{reference}", gap.mean(), results.student(gap), len(gap)))
    return rows


def hourly(drives: Sequence[Scores]) -> Scores:
    """Scores of each hour, mean over the seeds that finished it."""
    hours = sorted({hour for scores in drives for hour in scores})
    found = {hour: [scores[hour] for scores in drives if hour in scores] for hour in hours}
    return {hour: {name: float(np.mean([o[name] for o in of])) for name in of[0]} for hour, of in found.items()}


def in_hindsight(drives: Sequence[Scores]) -> Scores:
    """Of each hour the drive with the fewest violating steps, and of those the one with the best reward.

    Nobody could have chosen so before the hour was over: it says how much there is to win, and is no controller.
    """
    hours = sorted({hour for scores in drives for hour in scores})
    found = {hour: [scores[hour] for scores in drives if hour in scores] for hour in hours}
    return {hour: min(of, key=lambda one: (one["violating_steps"], -one["reward"])) for hour, of in found.items()}


def by_hour(episodes: Sequence[Episode], limits: Limits) -> Scores:
    """Scores by the episode's place among the scenarios: those that failed have none."""
    return {episode.index: score(episode, limits) for episode in episodes}


def shared_wilson(shares: np.ndarray, trials: int) -> tuple[float, float]:
    """Wilson's interval of the mean of each hour's share, for the number of episodes that they are worth (Kish, 1965).

    All of them if seeds agree within an hour no more than between hours; as many as hours if they always agree, or if
    nothing can be told because all shares are 0 or all are 1.
    """
    share, hours = float(np.mean(shares)), len(shares)
    spread = float(np.var(shares, ddof=1)) if hours > 1 else 0.0
    worth = hours * share * (1.0 - share) / spread if spread > 0 else 0.0
    effective = min(max(worth, hours), trials)
    return wilson(share * effective, effective)


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; it holds the share, also at 0 and 1, where rounding could leave it out."""
    z = scipy.stats.norm.ppf(0.5 + CONFIDENCE / 2)
    share, spread = successes / trials, z**2 / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * np.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return float(min(max(centre - half, 0.0), share)), float(max(min(centre + half, 1.0), share))


def median(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval between order statistics, whatever the law; the whole range if too few."""
    ordered, count = np.sort(np.asarray(values)), len(values)
    low = int(scipy.stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5)) - 1
    return float(np.median(ordered)), float(ordered[max(low, 0)]), float(ordered[min(count - 1 - low, count - 1)])


def episode_file(folder: Path, index: int, scenario: Scenario) -> Path:
    """Where an evaluated episode is kept."""
    return folder / f"{index:03d}-{scenario_digest(scenario)}.npz"


def scenario_digest(scenario: Scenario) -> str:
    """Names a scenario by its trips and incidents, so that what was computed for another is never taken for it."""
    first, *others = (path.read_bytes() for path in demand_files(scenario))
    own = (scenario.begin_s, scenario.scale, *others)  # nothing of it is said of a city's trips
    parts = (first, scenario.incidents, scenario.warmup_s, scenario.duration_s, scenario.seed)
    return store.key("episode", *parts, *(own if own != (0, 1.0) else ()))


def take_over(source: Path, target: Path) -> None:
    """Makes the episodes of one controller those of another that acts alike; what the other has already stays."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.npz"):
        if not (target / path.name).exists():
            with store.whole_file(target / path.name) as draft:
                shutil.copyfile(path, draft)


def save_episode(path: Path, episode: Episode) -> None:
    """Writes an episode, whole or not at all."""
    totals = {f"total_{name}": np.asarray(float(value)) for name, value in episode.totals.items()}
    shown = {} if episode.green is None else {"green": episode.green}
    first = np.asarray(episode.scenario.first_step)  # of the recording, in which the episode begins
    shards.write_arrays(path, action=episode.action, first_step=first, **shown, **episode.road._asdict(), **totals)


def read_episode(path: Path, index: int, scenario: Scenario) -> Episode:
    """Reads an episode back."""
    arrays = shards.read_arrays(path)
    road = RoadMeasurement(*(arrays[name] for name in RoadMeasurement._fields))
    totals = {name.removeprefix("total_"): value.item() for name, value in arrays.items() if name.startswith("total_")}
    return Episode(index, scenario, road, arrays["action"], totals, None, arrays.get("green"))
