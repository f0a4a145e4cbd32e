"""Controllers without learning: every light is legal, and each decides as its rule says."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from experiments.methods.control import (
    default_plan,
    fixed_time,
    guarded_max_pressure,
    max_pressure,
    splits,
    static_plan,
    switching,
    webster,
)
from sim.nema import CONFLICT, GREEN, MIN_GREEN, RED, YELLOW, Detectors, decode_action
from sim.network import GridConfig, Network, build_grid

NOTHING = np.zeros((4, 8))
DRIVERS = {
    "max_pressure": max_pressure.driver,
    "guarded_max_pressure": guarded_max_pressure.driver,
    "splits": splits.driver,
    "static_plan": functools.partial(static_plan.driver, 20.0, 45.0),
    "default_plan": default_plan.driver,
    "fixed_time": fixed_time.driver,
    "webster": lambda: webster.driver(np.full((4, 8), 200.0), np.ones((4, 8))),
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return build_grid(GridConfig(size=2), Path(tmp_path_factory.mktemp("net")))


def seen(**fields: np.ndarray) -> Detectors:
    """Detectors of four intersections that see nothing but what is given."""
    blank = dict.fromkeys(Detectors._fields, NOTHING) | {"occupied": NOTHING > 0}
    return Detectors(**(blank | fields))


def at(phase: int, value: float) -> np.ndarray:
    """[4, 8] with a value at one NEMA phase (1..8) of every intersection."""
    array = NOTHING.copy()
    array[:, phase - 1] = value
    return array


def drive(driver, grid: Network, seconds: int, rng: np.random.Generator) -> np.ndarray:
    """Lights [seconds, 4, 8] under detectors that change at random every few seconds."""
    driver.reset(grid)
    plan, lights = decode_action(np.zeros((4, 9))), []
    for second in range(seconds):
        if second % 5 == 0:
            queue = rng.poisson(2.0, (4, 8)).astype(float)
            wait, beyond = rng.uniform(0, 90, (4, 8)) * (queue > 0), rng.poisson(1.0, (4, 8))
            detectors = Detectors(queue > 0, wait, queue, beyond, queue + 1)
        lights.append(driver.update(detectors, plan).copy())
    return np.stack(lights)


@pytest.mark.parametrize("name", DRIVERS)
def test_lights_are_legal_under_random_traffic(grid, name):
    light = drive(DRIVERS[name](), grid, 600, np.random.default_rng(0))
    lit = light != RED
    clash = lit[..., :, None] & lit[..., None, :] & CONFLICT
    assert not clash.any()
    for before, after in itertools.pairwise(light):
        assert (after[before == GREEN] != RED).all()  # never from green to red without yellow
        assert (after[before == RED] != YELLOW).all()
        assert (after[before == YELLOW] != GREEN).all()
    runs = [lengths(light[:, signal, phase], YELLOW) for signal in range(4) for phase in range(8)]
    assert {length for found in runs for length in found} == {3}
    cleared = np.stack([lit[second : second + 2].any(axis=0) for second in range(len(lit) - 1)])  # two dark seconds
    for second in range(2, len(light)):
        starts = (light[second] == GREEN) & (light[second - 1] != GREEN)
        rivals = (CONFLICT & cleared[second - 2][:, None, :]).any(-1)
        assert not (starts & rivals).any()


def lengths(row: np.ndarray, value: int) -> list[int]:
    """Lengths of the whole runs of a value, without one cut off by the end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], row == value, [False]]).astype(int)))
    return [int(stop - start) for start, stop in zip(edges[::2], edges[1::2], strict=True) if stop < len(row)]


def test_a_nema_intersection_has_the_eight_legal_pairs(grid):
    stages = switching.stages_of(grid)[0]
    pairs = {tuple(np.flatnonzero(stage) + 1) for stage in stages}
    assert pairs == {(1, 5), (1, 6), (2, 5), (2, 6), (3, 7), (3, 8), (4, 7), (4, 8)}


def test_a_phase_of_both_stages_stays_green_while_the_other_is_cleared(grid):
    stages = switching.stages_of(grid)
    state = switching.started(stages)  # (1, 5)
    wanted = (at(1, 1) + at(6, 1)).astype(bool)
    shown = []
    for _ in range(7):
        state = switching.switch(state, wanted, np.ones(4, bool))
        shown.append(switching.lights(state)[0])
    shown = np.stack(shown)
    np.testing.assert_array_equal(shown[:, 0], [GREEN] * 7)
    np.testing.assert_array_equal(shown[:, 4], [YELLOW] * 3 + [RED] * 4)
    np.testing.assert_array_equal(shown[:, 5], [RED] * 5 + [GREEN] * 2)


def test_max_pressure_takes_the_pair_that_relieves_most(grid):
    # Phase 4 holds 9 but feeds a queue of 8: pressure 1. Phases 2 and 5 press with 3 + 2 = 5.
    detectors = seen(queue=at(4, 9.0) + at(2, 3.0) + at(5, 2.0), downstream=at(4, 8.0))
    chosen = max_pressure.best_stage(switching.stages_of(grid), at(1, 1) + at(6, 1) > 0, detectors, np.inf)
    np.testing.assert_array_equal(chosen, at(2, 1) + at(5, 1) > 0)


def test_max_pressure_stays_where_nothing_is_gained(grid):
    green = at(3, 1) + at(8, 1) > 0
    chosen = max_pressure.best_stage(switching.stages_of(grid), green, seen(), np.inf)
    np.testing.assert_array_equal(chosen, green)


def test_the_guard_serves_the_longest_wait_with_its_better_partner(grid):
    # Phase 3 waits 61 s, so only (3, 7) and (3, 8) count; 7 presses more than 8.
    detectors = seen(queue=at(2, 20.0) + at(3, 1.0) + at(7, 4.0) + at(8, 2.0), front_wait=at(3, 61.0))
    green = at(2, 1) + at(6, 1) > 0
    chosen = max_pressure.best_stage(switching.stages_of(grid), green, detectors, 60.0)
    np.testing.assert_array_equal(chosen, at(3, 1) + at(7, 1) > 0)
    unguarded = max_pressure.best_stage(switching.stages_of(grid), green, detectors, np.inf)
    np.testing.assert_array_equal(unguarded, green)


def test_max_pressure_decides_every_ten_seconds(grid):
    driver = max_pressure.driver()
    driver.reset(grid)
    plan = decode_action(np.zeros((4, 9)))
    lights = [driver.update(seen(queue=at(4, 5.0) + at(8, 5.0)), plan)[0] for _ in range(30)]
    # It starts in (1, 5): ten seconds of green, three of yellow, two of red, then (4, 8) for as long as it presses.
    assert [int(light[0]) for light in lights[:16]] == [GREEN] * 10 + [YELLOW] * 3 + [RED] * 3
    assert [int(light[3]) for light in lights] == [RED] * 15 + [GREEN] * 15


def test_fixed_timing_repeats_every_ninety_seconds(grid):
    light = drive(fixed_time.driver(), grid, 400, np.random.default_rng(1))
    starts = np.flatnonzero((light[1:, 0, 1] == GREEN) & (light[:-1, 0, 1] != GREEN))
    assert len(starts) >= 3
    assert set(np.diff(starts)) == {90}


def test_webster_by_hand():
    # Loads of ring 1: 0.1 + 0.2 | 0.05 + 0.15, of ring 2 half of each. Critical sides 0.3 and 0.2, total 0.5; lost
    # time 20 s: cycle (1.5 x 20 + 5) / 0.5 = 70 s, of which 50 s are green: 30 s and 20 s. Minimum greens of a side are
    # 5 + 7, so ring 1 shares 18 s spare as 1:2 (11 s, 19 s) and 8 s spare as 1:3 (7 s, 13 s); ring 2 the same.
    load = np.array([[0.1, 0.2, 0.05, 0.15, 0.05, 0.1, 0.025, 0.075]])
    green = webster.greens(1800.0 * load, np.ones((1, 8)))
    np.testing.assert_allclose(green, [[11.0, 19.0, 7.0, 13.0, 11.0, 19.0, 7.0, 13.0]])


def test_webster_stays_finite_beyond_saturation():
    green = webster.greens(np.full((1, 8), 1800.0), np.ones((1, 8)))
    np.testing.assert_allclose(green.reshape(2, 4).sum(axis=1) + 20.0, 150.0)


def test_a_static_plan_ignores_what_it_is_told(grid):
    short, long = decode_action(np.full((4, 9), -1.0)), decode_action(np.ones((4, 9)))
    busy = Detectors(np.ones((4, 8), bool), NOTHING, NOTHING + 5, NOTHING, NOTHING + 5)
    shown = []
    for plan in (short, long):
        driver = static_plan.driver(20.0, 45.0)
        driver.reset(grid)
        shown.append([driver.update(busy, plan) for _ in range(200)])
    np.testing.assert_array_equal(*shown)


def test_splits_follow_the_vehicles_and_fill_a_bounded_cycle():
    load = np.random.default_rng(0).poisson(3.0, (4, 8)).astype(float)
    greens = splits.ring_greens(load)
    rings = greens.reshape(4, 2, 4).sum(-1) + 4 * splits.LOST_S
    np.testing.assert_allclose(rings, splits.CYCLE_S)
    sides = greens.reshape(4, 2, 2, 2).sum(-1)
    np.testing.assert_allclose(sides[:, 0], sides[:, 1])  # both rings reach the barrier together
    assert (greens >= MIN_GREEN - 1e-9).all()
    assert splits.ring_greens(load + at(2, 9.0))[0, 1] > greens[0, 1]
    own = splits.sequence_greens(load, NOTHING == 0)
    np.testing.assert_allclose(own.sum(1) + 8 * splits.LOST_S, splits.CYCLE_S)


def test_splits_keep_half_of_what_was_there(grid):
    driver = splits.driver()
    driver.reset(grid)
    plan, before, now = decode_action(np.zeros((4, 9))), seen(present=at(2, 12.0)), seen(present=at(4, 12.0))
    for _ in range(splits.MEAN_S):
        driver.update(before, plan)
    green = []
    for _ in range(2 * splits.MEAN_S):
        driver.update(now, plan)
        green.append(driver._plan.max_green[0, [1, 3]])
    assert green[0][0] > MIN_GREEN[1] + 20 and green[0][1] > MIN_GREEN[3] + 20  # both: half now, half the mean
    assert green[-1][0] < MIN_GREEN[1] + 1 and green[-1][1] > 60
