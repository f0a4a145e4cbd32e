"""One SUMO session behind a small protocol: begin an episode, step it, receive; in a process of its own or in ours."""

import contextlib
import multiprocessing
import multiprocessing.connection
import signal
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sim.errors import RoadError
from sim.session import Scenario, Session
from stream_jax.task import ACTIONS
from stream_jax.types import RoadMeasurement

POLL_S = 0.5
GRACE_S = 5.0  # to end by itself before it is killed


class Reply(NamedTuple):
    """What a session has to say: one measurement, or all of a whole episode."""

    roads: list[RoadMeasurement]
    actions: list[np.ndarray]  # of a whole episode
    step: int  # control step that comes next, counted from the end of the warm-up
    totals: dict[str, float] | None  # not None when the episode is over
    greens: list[np.ndarray]  # [I, 8] seconds of green of each phase, for each control step after the warm-up


class EpisodeFailure(NamedTuple):
    """Why an episode did not go on."""

    reason: str


class InProcess:
    """A session in this process; a crash of SUMO would be a crash of ours."""

    def __init__(self, make_session: Callable[[], Session]) -> None:
        self.make_session = make_session
        self.session: Session | None = None
        self.pending: Reply | EpisodeFailure | None = None

    @property
    def is_busy(self) -> bool:
        return self.pending is not None

    def begin(self, scenario: Scenario, whole: bool) -> None:
        """Starts an episode; `whole` runs it to its end under the default plan."""
        self.pending = self._guarded(self._begin, scenario, whole)

    def step(self, action: np.ndarray) -> None:
        self.pending = self._guarded(self._step, action)

    def has_reply(self) -> bool:
        return self.pending is not None

    def receive(self) -> Reply | EpisodeFailure:
        reply, self.pending = self.pending, None
        return reply or EpisodeFailure("no episode was begun")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()

    def _begin(self, scenario: Scenario, whole: bool) -> Reply:
        if self.session is None:
            self.session = self.make_session()
        if whole:
            return whole_episode(self.session, scenario)
        return Reply([self.session.reset(scenario, warm_up=False)], [], self.session.control_step, None, [])

    def _step(self, action: np.ndarray) -> Reply:
        if self.session is None:
            raise RoadError("no episode was begun")
        return one_step(self.session, action)

    def _guarded(self, act: Callable[..., Reply], *args: object) -> Reply | EpisodeFailure:
        try:
            return act(*args)
        except Exception:
            failure = EpisodeFailure(traceback.format_exc(limit=-3))
            with contextlib.suppress(Exception):  # a session that failed may fail to close; the next one starts anew
                self.close()
            self.session = None
            return failure


class Process:
    """A session in a spawned process, which is replaced when it dies, hangs or fails."""

    def __init__(self, make_session: Callable[[], Session], timeout_s: float) -> None:
        self.make_session, self.timeout_s = make_session, timeout_s
        self.is_busy, self.since = False, 0.0
        self._start()

    def begin(self, scenario: Scenario, whole: bool) -> None:
        """Starts an episode; `whole` runs it to its end under the default plan."""
        self._send((scenario, whole))

    def step(self, action: np.ndarray) -> None:
        self._send(action)

    def has_reply(self) -> bool:
        """Whether `receive` will return at once: there is a reply, or there will never be one."""
        return self.pipe.poll() or not self.process.is_alive() or self._is_late()

    def receive(self) -> Reply | EpisodeFailure:
        """The reply, or why there is none; then a new process stands ready."""
        while not self.has_reply():
            multiprocessing.connection.wait([self.pipe, self.process.sentinel], timeout=POLL_S)
        self.is_busy = False
        try:
            reply = self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            reply = None
        if isinstance(reply, Reply):
            return reply
        reason = reply.reason if reply else "its process was silent for too long" if self._is_late() else self._death()
        self.close()
        self._start()
        return EpisodeFailure(reason)

    def close(self) -> None:
        """Ends the process: asked first, then killed; always reaped."""
        self.pipe.close()
        if not self.is_busy:  # it waits for a message, and the closed pipe tells it to end
            self.process.join(GRACE_S)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.make_session), daemon=True)
        self.process.start()
        theirs.close()
        self.is_busy = False

    def _send(self, message: object) -> None:
        self.is_busy, self.since = True, time.monotonic()
        with contextlib.suppress(OSError):  # it is dead; receive will find out
            self.pipe.send(message)

    def _is_late(self) -> bool:
        return time.monotonic() - self.since > self.timeout_s

    def _death(self) -> str:
        self.process.join(GRACE_S)
        return f"its process ended with exit code {self.process.exitcode}"


def wait_any(workers: list[InProcess | Process]) -> list[InProcess | Process]:
    """Waits until at least one of the workers has a reply; returns all that have."""
    others = [worker for worker in workers if isinstance(worker, Process)]
    while not (ready := [worker for worker in workers if worker.has_reply()]):
        handles = [handle for worker in others for handle in (worker.pipe, worker.process.sentinel)]
        multiprocessing.connection.wait(handles, timeout=POLL_S)
    return ready


def whole_episode(session: Session, scenario: Scenario) -> Reply:
    """An episode under the default plan: action 0 at every step."""
    roads, actions, greens = [session.reset(scenario)], [], []
    rest = np.zeros((len(roads[0].wait), ACTIONS), np.float32)
    while not session.done:
        roads.append(session.step(rest))
        actions.append(rest)
        greens.append(session.green)
    return Reply(roads, actions, session.control_step, session.totals(), greens)


def one_step(session: Session, action: np.ndarray) -> Reply:
    """One control step."""
    road = session.step(action)
    is_warm = session.control_step > 0
    totals = session.totals() if session.done else None
    return Reply([road], [], session.control_step, totals, [session.green] * is_warm)


def _serve(pipe: multiprocessing.connection.Connection, make_session: Callable[[], Session]) -> None:
    """The life of a worker: answers messages until the pipe closes, so it never outlives its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    worker = InProcess(make_session)
    with contextlib.closing(worker), contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv()
            worker.step(message) if isinstance(message, np.ndarray) else worker.begin(*message)
            pipe.send(worker.receive())
