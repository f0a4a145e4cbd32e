"""Runs episodes in parallel SUMO processes around one injected `step_fn`, or entirely inside the processes.

Every tick the observations of all processes are stacked and handed to `step_fn` once: one device round trip, whatever
the number of processes. A process that dies, hangs or fails is replaced and its episode starts again; what is finished
is never lost. SUMO is one per process, hence processes and not threads; spawned, because JAX must not be forked.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sim.session import Scenario, Session
from sim.workers import EpisodeFailure, InProcess, Process, Reply, wait_any
from stream_jax.types import RoadMeasurement, on_host

MakeSession = Callable[[], Session]  # must be picklable: a function of a module, or a partial of one


class Tick(NamedTuple):
    """What `step_fn` sees: one row per environment; rows that are not active hold an earlier measurement."""

    road: RoadMeasurement  # fields [E, ...]
    active: np.ndarray  # [E] bool
    begins: np.ndarray  # [E] bool: the first step of an episode, so forget what was carried
    step: np.ndarray  # [E] int, control step since the end of the warm-up, negative within it
    episode: np.ndarray  # [E] int, index in the list of scenarios


StepFn = Callable[[Tick], np.ndarray]  # -> actions [E, I, 9]


class Episode(NamedTuple):
    """A finished episode, or one that failed as often as it was tried."""

    index: int  # in the list of scenarios
    scenario: Scenario
    road: RoadMeasurement | None  # fields [T + 1, ...], first the end of the warm-up; None if it failed
    action: np.ndarray | None  # [T, I, 9] after the warm-up
    totals: dict[str, float]
    failure: str | None
    green: np.ndarray | None = None  # [T, I, 8] seconds that each phase was green, after the warm-up


def run_episodes(
    make_session: MakeSession,
    scenarios: Sequence[Scenario],
    step_fn: StepFn | None = None,
    workers: int = 2,
    *,
    retries: int = 2,
    timeout_s: float = 900.0,
    console: Console | None = None,
    title: str = "episodes",
) -> Iterator[Episode]:
    """Yields every scenario's episode as it ends, in the order of ending.

    Args:
        step_fn: actions of all environments at once; without it the whole episode runs inside its process under the
            default plan (action 0), with no round trip.
        workers: number of environments E, a process each; 0 is one environment in this process.
        retries: how often an episode is begun again before it is reported as failed.
        timeout_s: a process that is silent for so long counts as dead.
        console: shows a progress bar, when it is a terminal.
    """
    pool: list[InProcess | Process] = [InProcess(make_session)] if workers == 0 else []
    pool += [Process(make_session, timeout_s) for _ in range(workers)]
    bar = _progress(console)
    with bar, contextlib.ExitStack() as stack:
        for worker in pool:
            stack.callback(worker.close)
        task = bar.add_task(title, total=len(scenarios))
        for episode in _Run(pool, scenarios, step_fn, retries).episodes():
            bar.advance(task)
            yield episode


class _Run:
    """The state of one call of `run_episodes`: which environment drives which episode, and what it has seen."""

    def __init__(
        self, pool: list[InProcess | Process], scenarios: Sequence[Scenario], step_fn: StepFn | None, retries: int
    ) -> None:
        self.pool, self.scenarios, self.step_fn, self.retries = pool, scenarios, step_fn, retries
        self.waiting = list(range(len(scenarios)))[::-1]
        self.tries = [0] * len(scenarios)
        self.episode = [-1] * len(pool)  # index of the scenario, -1 when idle
        self.roads: list[list[RoadMeasurement]] = [[] for _ in pool]
        self.actions: list[list[np.ndarray]] = [[] for _ in pool]
        self.greens: list[list[np.ndarray]] = [[] for _ in pool]
        self.step = [0] * len(pool)
        self.begins = [False] * len(pool)
        self.last: RoadMeasurement | None = None  # fills the rows of environments that have nothing to say

    def episodes(self) -> Iterator[Episode]:
        """Ticks until every scenario has its episode."""
        for place in range(len(self.pool)):
            self._begin(place)
        while any(index >= 0 for index in self.episode):
            for place, reply in self._replies():
                if (finished := self._receive(place, reply)) is not None:
                    yield finished
            self._act()

    def _begin(self, place: int) -> None:
        """Gives an idle environment its next episode."""
        self.roads[place], self.actions[place], self.greens[place], self.step[place] = [], [], [], 0
        self.episode[place] = self.waiting.pop() if self.waiting else -1
        if self.episode[place] >= 0:
            self.tries[self.episode[place]] += 1
            self.pool[place].begin(self.scenarios[self.episode[place]], whole=self.step_fn is None)

    def _replies(self) -> Iterator[tuple[int, Reply | EpisodeFailure]]:
        """Waits for every environment that is in the middle of an episode; for a starting one only if all are."""
        busy = [place for place, worker in enumerate(self.pool) if worker.is_busy]
        stepping = [place for place in busy if self.roads[place]]
        if self.step_fn is None or not stepping:
            yield from self._first_replies(busy)
            return
        for place in stepping:
            yield place, self.pool[place].receive()
        for place in busy:
            if place not in stepping and self.pool[place].has_reply():
                yield place, self.pool[place].receive()

    def _first_replies(self, busy: list[int]) -> Iterator[tuple[int, Reply | EpisodeFailure]]:
        """Whatever comes first."""
        ready = wait_any([self.pool[place] for place in busy]) if busy else []
        for place in busy:
            if self.pool[place] in ready:
                yield place, self.pool[place].receive()

    def _receive(self, place: int, reply: Reply | EpisodeFailure) -> Episode | None:
        """Keeps a measurement; returns the episode if it is over, one way or the other."""
        index = self.episode[place]
        if isinstance(reply, EpisodeFailure):
            if self.tries[index] <= self.retries:
                self.waiting.append(index)
                result = None
            else:
                result = Episode(index, self.scenarios[index], None, None, {}, reply.reason)
            self._begin(place)
            return result
        self.begins[place] = not self.roads[place]
        # Of a warm-up only its end is kept.
        self.roads[place] = reply.roads if reply.step <= 0 else self.roads[place] + reply.roads
        self.last, self.step[place] = reply.roads[-1], reply.step
        self.greens[place] += reply.greens
        if reply.totals is None:
            return None
        actions = self.actions[place] if self.step_fn else reply.actions
        road = RoadMeasurement(*(on_host(np.stack(field)) for field in zip(*self.roads[place], strict=True)))
        green = np.stack(self.greens[place])
        self._begin(place)
        return Episode(index, self.scenarios[index], road, np.stack(actions), reply.totals, None, green)

    def _act(self) -> None:
        """One call of `step_fn` for all environments that wait for an action."""
        acting = [bool(roads) and not worker.is_busy for roads, worker in zip(self.roads, self.pool, strict=True)]
        if self.step_fn is None or not any(acting):
            return
        latest = [roads[-1] if roads else self.last for roads in self.roads]
        road = RoadMeasurement(*(on_host(np.stack(field)) for field in zip(*latest, strict=True)))
        active, step = np.array(acting), np.array(self.step)
        tick = Tick(road, active, active & np.array(self.begins), step, np.array(self.episode))
        actions = np.asarray(self.step_fn(tick))
        for place in np.flatnonzero(active):
            if step[place] >= 0:
                self.actions[place].append(actions[place])
            self.pool[place].step(actions[place])


def _progress(console: Console | None) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_hidden = console is None or not console.is_terminal
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=is_hidden, transient=True)
