"""Episodes in parallel: complete, repeatable, one call of step_fn a tick, and unharmed by the death of a process."""

import functools
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from sim.demand import DemandConfig
from sim.loop import Tick, run_episodes
from sim.nema import NemaController
from sim.network import Network
from sim.session import Scenario, Session
from stream_jax.task import Limits, costs, physical_state
from stream_jax.types import RoadMeasurement
from tests.small_road import RATE, SHORT, default_session, small_network, small_scenario

STEPS = SHORT.duration_s // 60


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return small_network(tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def scenarios(grid, tmp_path_factory) -> list[Scenario]:
    folder = tmp_path_factory.mktemp("trips")
    return [small_scenario(grid, folder, seed) for seed in range(3)]


class DiesOnce(NemaController):
    """Kills its own process in mid-episode, unless a file says that it did so before."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark, self.seconds = mark, 0

    def update(self, detectors, plan):
        self.seconds += 1
        if self.seconds == 150 and not self.mark.exists():
            self.mark.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update(detectors, plan)


class Refuses(NemaController):
    """Fails in every episode."""

    def update(self, detectors, plan):
        raise ValueError("this driver refuses to drive")


def fragile_session(network: Network, mark: Path) -> Session:
    return Session(network, DiesOnce(mark))


def hanging_session(network: Network) -> Session:
    time.sleep(3600)


def refusing_session(network: Network) -> Session:
    return Session(network, Refuses())


class Recorder:
    """A step_fn that answers with the default plan and remembers what it was asked."""

    def __init__(self, size: int = 4) -> None:
        self.ticks: list[Tick] = []
        self.size = size

    def __call__(self, tick: Tick) -> np.ndarray:
        self.ticks.append(tick)
        return np.zeros((len(tick.active), self.size, 9), np.float32)


def assert_same_roads(first: RoadMeasurement, second: RoadMeasurement) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_default_plan_gives_one_trajectory_however_it_is_run(grid, scenarios):
    make = functools.partial(default_session, grid)
    alone = {e.index: e for e in run_episodes(make, scenarios, workers=0)}
    recorder = Recorder()
    parallel = {e.index: e for e in run_episodes(make, scenarios, recorder, workers=2)}
    assert alone.keys() == parallel.keys() == {0, 1, 2}
    for index, episode in alone.items():
        assert episode.failure is None and episode.action.shape == (STEPS, 4, 9)
        assert episode.road.queue.shape == (STEPS + 1, 4, 8)
        assert episode.totals == parallel[index].totals
        assert_same_roads(episode.road, parallel[index].road)
    asked = sum(int(tick.active.sum()) for tick in recorder.ticks)
    assert asked == 3 * (STEPS + 1)  # a minute of warm-up is driven too
    assert sum(int(tick.begins.sum()) for tick in recorder.ticks) == 3
    assert all(tick.road.queue.shape == (2, 4, 8) for tick in recorder.ticks)
    for tick in recorder.ticks:
        np.testing.assert_array_equal(tick.begins[tick.active], tick.step[tick.active] == -1)
    assert multiprocessing.active_children() == []


def test_an_episode_survives_the_death_of_its_process(grid, scenarios, tmp_path):
    mark = tmp_path / "died"
    make = functools.partial(fragile_session, grid, mark)
    episodes = {e.index: e for e in run_episodes(make, scenarios[:2], Recorder(), workers=2)}
    assert mark.exists()
    unharmed = {e.index: e for e in run_episodes(functools.partial(default_session, grid), scenarios[:2], workers=0)}
    assert episodes.keys() == {0, 1}
    for index, episode in episodes.items():
        assert episode.failure is None
        assert_same_roads(episode.road, unharmed[index].road)
    assert multiprocessing.active_children() == []


def test_an_episode_that_always_fails_is_reported_and_the_others_go_on(grid, scenarios):
    episodes = list(run_episodes(functools.partial(refusing_session, grid), scenarios[:2], workers=0, retries=1))
    assert sorted(e.index for e in episodes) == [0, 1]
    assert all(e.road is None and "refuses to drive" in e.failure for e in episodes)


def test_a_process_that_is_silent_for_too_long_is_killed_and_its_episode_reported(grid, scenarios):
    make = functools.partial(hanging_session, grid)
    (episode,) = run_episodes(make, scenarios[:1], workers=1, retries=0, timeout_s=1.0)
    assert "silent for too long" in episode.failure
    assert multiprocessing.active_children() == []


def test_leaving_early_ends_the_processes(grid, scenarios):
    running = run_episodes(functools.partial(default_session, grid), scenarios, workers=1)
    assert next(running).failure is None
    running.close()
    assert multiprocessing.active_children() == []


def test_half_the_demand_violates_no_throughput(grid, tmp_path):
    # Erratum 45: served counts relative to arrivals, so a quiet road is no violation.
    cfg = DemandConfig(warmup_s=300, duration_s=300)
    make = functools.partial(default_session, grid)
    full, half = ([small_scenario(grid, tmp_path, 0, RATE * share, cfg=cfg)] for share in (1.0, 0.5))
    (busy,), (quiet,) = (list(run_episodes(make, demand, workers=0)) for demand in (full, half))
    assert quiet.totals["vehicles"] < 0.7 * busy.totals["vehicles"]
    for step in range(1, 6):
        x = physical_state(RoadMeasurement(*(field[step] for field in quiet.road)))
        assert costs(x, Limits())[2] == 0.0
