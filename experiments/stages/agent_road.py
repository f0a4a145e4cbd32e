"""The road as LyCon-WRL+ meets it: episodes driven by a policy, with the city's forecasts and detections in its state.

Algorithm 1, "Collect trajectories". What the city says does not depend on the signals, so its views are computed once
for the whole recording by the trained upstream models and looked up by the moment of the episode.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from data.spark_etl import shards
from experiments.evaluation import drives as evaluation
from sim import loop as sim_loop
from sim.city_road import CityRoad, draw_scenarios
from sim.drivers import DRIVERS
from sim.loop import Tick, run_episodes
from sim.network import Network
from sim.session import Scenario
from stream_jax import live
from stream_jax.rl.agent import Decision
from stream_jax.rl.episodes import Episode
from stream_jax.rl.learning import Collect, PolicyStep
from stream_jax.rl.state import advance_clock
from stream_jax.task import ACTIONS, ActionSpace, physical_state, traffic_reward
from stream_jax.types import Certificate, CityView, RoadMeasurement

CONTROL_S = live.CONTROL_S


class CityDays(NamedTuple):
    """What the city says after each step of its recording."""

    view: CityView  # leaves [L, ...]
    clock: np.ndarray  # [L, 4]
    bin_s: int


class Site(NamedTuple):
    """Where controllers are learned and evaluated, and with what."""

    road: CityRoad
    days: CityDays
    vehicles_per_hour: float  # while learning
    workers: int  # SUMO processes side by side
    console: Console | None
    action: ActionSpace  # what they tell the signals


class Moments(NamedTuple):
    """The views and clocks of one episode's control steps."""

    view: CityView  # leaves [T + 1, ...]
    clock: np.ndarray  # [T + 1, 5]


class Driver:
    """A `step_fn` that asks a policy and keeps what was decided, episode by episode.

    The policy drives the warm-up too, of which only the plan in force at its end is kept.
    """

    def __init__(self, policy_step: PolicyStep, scenarios: Sequence[Scenario], days: CityDays, offset: int = 0) -> None:
        self.policy_step, self.scenarios, self.days, self.offset = policy_step, scenarios, days, offset
        self.known = [moments(scenario, days, warm_up=True) for scenario in scenarios]
        self.decisions: list[list[Decision]] = [[] for _ in scenarios]  # after the warm-up
        self.in_force: dict[int, np.ndarray] = {}  # by episode, [I, 9]
        self.first: dict[int, np.ndarray] = {}  # in force when the warm-up ended

    def __call__(self, tick: Tick) -> np.ndarray:
        """Actions [E, I, 9] of all environments; idle rows are computed and ignored."""
        episode = np.maximum(tick.episode, 0)
        default = np.zeros((tick.road.queue.shape[1], ACTIONS), np.float32)
        for index in episode[tick.begins]:
            self.decisions[index], self.in_force[index] = [], default
        plans = np.stack([self.in_force.get(index, default) for index in episode])
        seen = [self._at(index, step) for index, step in zip(episode, tick.step, strict=True)]
        view, clock = jax.tree.map(lambda *rows: np.stack(rows), *seen)
        seeds = np.array([self.scenarios[index].seed - self.offset for index in episode])
        made = self.policy_step(seeds, tick.step, physical_rows(tick.road), view, plans, clock)
        for place in np.flatnonzero(tick.active):
            self._keep(episode[place], tick.step[place], jax.tree.map(lambda leaf, p=place: leaf[p], made))
        return np.asarray(made.action)

    def episode(self, index: int, road: RoadMeasurement) -> Episode:
        """A finished episode as the learner keeps it."""
        known = moments(self.scenarios[index], self.days)
        return as_episode(road, stacked(self.decisions[index]), known, self.first[index])

    def _at(self, index: int, step: int) -> Moments:
        row = step + self.scenarios[index].warmup_s // CONTROL_S
        return jax.tree.map(lambda leaf: leaf[row], self.known[index])

    def _keep(self, index: int, step: int, made: Decision) -> None:
        if step == 0:
            self.first[index] = self.in_force[index]
        if step >= 0:
            self.decisions[index].append(made)
        self.in_force[index] = np.asarray(made.action)


def moments(scenario: Scenario, days: CityDays, warm_up: bool = False) -> Moments:
    """What is known at each control step: the view after the last complete step of the city, and the clock."""
    before = scenario.warmup_s // CONTROL_S if warm_up else 0
    steps = np.arange(-before, scenario.duration_s // CONTROL_S + 1)
    latest = np.clip(scenario.first_step - 1 + CONTROL_S * steps // days.bin_s, 0, len(days.clock) - 1)
    view = jax.tree.map(lambda leaf: np.asarray(leaf)[latest], days.view)
    return Moments(view, clocks(scenario, days.clock, days.bin_s, before))


def clocks(scenario: Scenario, clock: np.ndarray, bin_s: int, before: int = 0) -> np.ndarray:
    """The state's clock at every control step, [before + T + 1, 5]. Args: clock [L, 4] of the recording's steps."""
    whole = -(-before * CONTROL_S // bin_s)  # steps of the city in which the first control step lies
    start = np.append(clock[max(scenario.first_step - whole, 0)], 0.0).astype(np.float32)
    late = whole * bin_s - before * CONTROL_S
    shown = [np.asarray(advance_clock(start, late, bin_s)) if late else start]
    for _ in range(before + scenario.duration_s // CONTROL_S):
        shown.append(np.asarray(_next_clock(shown[-1], bin_s)))
    return np.stack(shown)


def collector(site: Site, part: str, folder: Path, offset: int = 0, busiest: float = 1.0) -> Collect:
    """Drives episodes of a part of the recording; an episode that keeps failing ends the run with its reason.

    Args:
        folder: of the trips.
        offset: added to the episodes' seeds, so that learners of different seeds meet different days.
        busiest: share of the busy hours to draw from, see `draw_scenarios`.
    """
    make_session = partial(evaluation.open_session, site.road.network, DRIVERS[site.action.name])

    def collect(policy_step: PolicyStep, num_episodes: int, seed: int) -> list[Episode]:
        first = offset + seed
        seeds = range(first, first + num_episodes)
        scenarios = draw_scenarios(site.road, part, site.vehicles_per_hour, seeds, folder, busiest)
        driver = Driver(policy_step, scenarios, site.days, offset)
        done: dict[int, Episode] = {}
        drive = partial(run_episodes, console=site.console, title="  episodes")
        for one in drive(make_session, scenarios, driver, site.workers):
            if one.failure is not None:
                raise ValueError(f"An episode failed repeatedly: {one.failure.strip().splitlines()[-1]}")
            done[one.index] = driver.episode(one.index, one.road)
        return [done[index] for index in range(num_episodes)]

    return collect


def rebuilt(episode: sim_loop.Episode, decisions: Path, days: CityDays) -> Episode:
    """An evaluated episode as the learner would have kept it. Args: decisions: the file that `agent_method` wrote."""
    made, first = read_decisions(decisions)
    return as_episode(episode.road, made, moments(episode.scenario, days), first)


def as_episode(road: RoadMeasurement, made: Decision, known: Moments, first: np.ndarray) -> Episode:
    """What the learner keeps of an episode. Args: made: leaves [T, ...]; first [I, 9] in force before the first."""
    after = RoadMeasurement(*(field[1:] for field in road))
    return Episode(
        x=physical_rows(road),
        view=known.view,
        clock=known.clock,
        plan=np.concatenate([first[None], made.action]),
        proposed=made.proposed,
        log_prob=made.log_prob,
        certificate=made.certificate,
        traffic=np.asarray(_traffic(after)),
    )


def agent_method(
    name: str, policy_step: PolicyStep, site: Site, scenarios: Sequence[Scenario], folder: Path
) -> evaluation.Method:
    """A learned controller as a method; what it decided in an episode is written beside the episode."""
    todo = [i for i, one in enumerate(scenarios) if not evaluation.episode_file(folder, i, one).exists()]
    driver = Driver(policy_step, [scenarios[i] for i in todo], site.days)
    length = scenarios[0].duration_s // CONTROL_S

    def step_fn(tick: Tick) -> np.ndarray:
        action = driver(tick)
        for place in np.flatnonzero(tick.active & (tick.step == length - 1)):
            index = int(tick.episode[place])
            path = decision_file(folder, todo[index], scenarios[todo[index]])
            save_decisions(path, driver.decisions[index], driver.first[index])
        return action

    make_session = partial(evaluation.open_session, site.road.network, DRIVERS[site.action.name])
    return evaluation.Method(name, make_session, step_fn)


def decision_file(folder: Path, index: int, scenario: Scenario) -> Path:
    """Where the decisions of an episode are kept."""
    return folder / "decisions" / f"{index:03d}-{evaluation.scenario_digest(scenario)}.npz"


def save_decisions(path: Path, decisions: list[Decision], first: np.ndarray) -> None:
    """Writes the decisions of one episode, and the plan in force before them, whole or not at all."""
    made = stacked(decisions)
    flat = {name: getattr(made, name) for name in ("action", "proposed", "log_prob")}
    shards.write_arrays(path, first=first, **flat, **made.certificate._asdict())


def read_decisions(path: Path) -> tuple[Decision, np.ndarray]:
    """Leaves [T, ...], and the plan [I, 9] in force before the first."""
    arrays = shards.read_arrays(path)
    certificate = Certificate(*(arrays[name] for name in Certificate._fields))
    return Decision(arrays["action"], arrays["proposed"], arrays["log_prob"], certificate), arrays["first"]


def stacked(decisions: list[Decision]) -> Decision:
    """One episode's decisions, leaves [T, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *decisions)


def adjacency(network: Network) -> np.ndarray:
    """Row-normalised neighbourhood of the signals, [I, I]; a signal without neighbours has a row of zeros."""
    return live.adjacency(network.neighbours)


_each_physical = jax.jit(jax.vmap(physical_state))
_traffic = jax.jit(jax.vmap(partial(traffic_reward, control_s=float(CONTROL_S))))
_next_clock = jax.jit(lambda clock, bin_s: advance_clock(clock, float(CONTROL_S), bin_s))


def physical_rows(road: RoadMeasurement) -> np.ndarray:
    """x of stacked measurements, [E, I, 10]."""
    return np.asarray(_each_physical(jax.tree.map(jnp.asarray, road)))
