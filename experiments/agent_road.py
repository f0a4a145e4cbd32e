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
from experiments import evaluation
from experiments.baselines.control import default_plan
from experiments.road import CityRoad, draw_scenarios
from sim import loop as sim_loop
from sim.loop import Tick, run_episodes
from sim.network import Network
from sim.session import Scenario
from stream_jax.rl.constraints import physical_state
from stream_jax.rl.lycon_wrl_plus import Collect, Decision, Episode, PolicyStep
from stream_jax.rl.reward import traffic_reward
from stream_jax.rl.state import ACTIONS, advance_clock
from stream_jax.types import Certificate, CityView, RoadMeasurement

CONTROL_S = 60


class CityDays(NamedTuple):
    """What the city says after each step of its recording."""

    view: CityView  # leaves [L, ...]
    clock: np.ndarray  # [L, 4]
    bin_s: int


class Moments(NamedTuple):
    """The views and clocks of one episode's control steps."""

    view: CityView  # leaves [T + 1, ...]
    clock: np.ndarray  # [T + 1, 5]


class Driver:
    """A `step_fn` that asks a policy and keeps what was decided, episode by episode."""

    def __init__(self, policy_step: PolicyStep, scenarios: Sequence[Scenario], days: CityDays, offset: int = 0) -> None:
        self.policy_step, self.scenarios, self.days, self.offset = policy_step, scenarios, days, offset
        self.moments = [moments(scenario, days) for scenario in scenarios]
        self.decisions: list[list[Decision]] = [[] for _ in scenarios]

    def __call__(self, tick: Tick) -> np.ndarray:
        """Actions [E, I, 9] of all environments; idle rows are computed and ignored."""
        episode = np.maximum(tick.episode, 0)
        for place in np.flatnonzero(tick.begins):
            self.decisions[episode[place]] = []
        plans = np.stack([self._plan(index, tick.road.queue.shape[1]) for index in episode])
        now = [
            jax.tree.map(lambda leaf, k=k: leaf[k], self.moments[i]) for i, k in zip(episode, tick.step, strict=True)
        ]
        seen = jax.tree.map(lambda *rows: np.stack(rows), *now)
        seeds = np.array([self.scenarios[index].seed - self.offset for index in episode])
        made = self.policy_step(seeds, tick.step, physical_rows(tick.road), seen.view, plans, seen.clock)
        for place in np.flatnonzero(tick.active):
            self.decisions[episode[place]].append(jax.tree.map(lambda leaf, p=place: leaf[p], made))
        return np.asarray(made.action)

    def _plan(self, index: int, signals: int) -> np.ndarray:
        """The action in force: the last one of the episode, or the default plan of the warm-up."""
        made = self.decisions[index]
        return np.asarray(made[-1].action) if made else np.zeros((signals, ACTIONS), np.float32)


def moments(scenario: Scenario, days: CityDays) -> Moments:
    """What is known at each control step: the view after the last complete step of the city, and the clock."""
    passed = CONTROL_S * np.arange(scenario.duration_s // CONTROL_S + 1) // days.bin_s
    latest = np.clip(scenario.first_step - 1 + passed, 0, len(days.clock) - 1)
    view = jax.tree.map(lambda leaf: np.asarray(leaf)[latest], days.view)
    return Moments(view, clocks(scenario, days.clock, days.bin_s))


def clocks(scenario: Scenario, clock: np.ndarray, bin_s: int) -> np.ndarray:
    """The state's clock at every control step, [T + 1, 5]. Args: clock [L, 4] of the recording's steps."""
    shown = [np.append(clock[scenario.first_step], 0.0).astype(np.float32)]
    for _ in range(scenario.duration_s // CONTROL_S):
        shown.append(np.asarray(_next_clock(shown[-1], bin_s)))
    return np.stack(shown)


def collector(
    road: CityRoad,
    days: CityDays,
    part: str,
    vehicles_per_hour: float,
    folder: Path,
    workers: int,
    console: Console | None = None,
    offset: int = 0,
) -> Collect:
    """Drives episodes of a part of the recording; an episode that keeps failing ends the run with its reason.

    Args:
        offset: added to the episodes' seeds, so that learners of different seeds meet different days.
    """
    make_session = partial(evaluation.open_session, road.network, default_plan.driver)

    def collect(policy_step: PolicyStep, num_episodes: int, seed: int) -> list[Episode]:
        first = offset + seed
        scenarios = draw_scenarios(road, part, vehicles_per_hour, range(first, first + num_episodes), folder)
        driver = Driver(policy_step, scenarios, days, offset)
        done: dict[int, Episode] = {}
        for one in run_episodes(make_session, scenarios, driver, workers, console=console, title="  episodes"):
            if one.failure is not None:
                raise ValueError(f"An episode failed repeatedly: {one.failure.strip().splitlines()[-1]}")
            done[one.index] = as_episode(one.road, stacked(driver.decisions[one.index]), driver.moments[one.index])
        return [done[index] for index in range(num_episodes)]

    return collect


def rebuilt(episode: sim_loop.Episode, decisions: Path, days: CityDays) -> Episode:
    """An evaluated episode as the learner would have kept it. Args: decisions: the file that `agent_method` wrote."""
    return as_episode(episode.road, read_decisions(decisions), moments(episode.scenario, days))


def as_episode(road: RoadMeasurement, made: Decision, known: Moments) -> Episode:
    """What the learner keeps of an episode. Args: made: leaves [T, ...]."""
    first = np.zeros_like(made.action[:1])
    after = RoadMeasurement(*(field[1:] for field in road))
    return Episode(
        x=physical_rows(road),
        view=known.view,
        clock=known.clock,
        plan=np.concatenate([first, made.action]),
        proposed=made.proposed,
        log_prob=made.log_prob,
        certificate=made.certificate,
        traffic=np.asarray(_traffic(after)),
    )


def agent_method(
    name: str, policy_step: PolicyStep, road: CityRoad, scenarios: Sequence[Scenario], days: CityDays, folder: Path
) -> evaluation.Method:
    """A learned controller as a method; what it decided in an episode is written beside the episode."""
    todo = [i for i, one in enumerate(scenarios) if not evaluation.episode_file(folder, i, one).exists()]
    driver = Driver(policy_step, [scenarios[i] for i in todo], days)
    length = scenarios[0].duration_s // CONTROL_S

    def step_fn(tick: Tick) -> np.ndarray:
        action = driver(tick)
        for place in np.flatnonzero(tick.active & (tick.step == length - 1)):
            index = int(tick.episode[place])
            save_decisions(decision_file(folder, todo[index], scenarios[todo[index]]), driver.decisions[index])
        return action

    return evaluation.Method(name, partial(evaluation.open_session, road.network, default_plan.driver), step_fn)


def decision_file(folder: Path, index: int, scenario: Scenario) -> Path:
    """Where the decisions of an episode are kept."""
    return folder / "decisions" / f"{index:03d}-{evaluation.scenario_digest(scenario)}.npz"


def save_decisions(path: Path, decisions: list[Decision]) -> None:
    """Writes the decisions of one episode, whole or not at all."""
    made = stacked(decisions)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    flat = {name: getattr(made, name) for name in ("action", "proposed", "log_prob")}
    shards.write_arrays(draft, **flat, **made.certificate._asdict())
    draft.replace(path)


def read_decisions(path: Path) -> Decision:
    """Leaves [T, ...]."""
    arrays = shards.read_arrays(path)
    certificate = Certificate(*(arrays[name] for name in Certificate._fields))
    return Decision(arrays["action"], arrays["proposed"], arrays["log_prob"], certificate)


def stacked(decisions: list[Decision]) -> Decision:
    """One episode's decisions, leaves [T, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *decisions)


def adjacency(network: Network) -> np.ndarray:
    """Row-normalised neighbourhood of the signals, [I, I]; a signal without neighbours has a row of zeros."""
    count = len(network.ids)
    linked = np.zeros((count, count), np.float32)
    for row, others in enumerate(network.neighbours):
        linked[row, others[others >= 0]] = 1.0
    return linked / np.maximum(linked.sum(1, keepdims=True), 1.0)


_each_physical = jax.jit(jax.vmap(physical_state))
_traffic = jax.jit(jax.vmap(partial(traffic_reward, control_s=float(CONTROL_S))))
_next_clock = jax.jit(lambda clock, bin_s: advance_clock(clock, float(CONTROL_S), bin_s))


def physical_rows(road: RoadMeasurement) -> np.ndarray:
    """x of stacked measurements, [E, I, 10]."""
    return np.asarray(_each_physical(jax.tree.map(jnp.asarray, road)))
