"""The controller is legal whatever it is told or shown, and it does what NEMA actuation promises."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest

from sim.errors import RoadError
from sim.nema import (
    GREEN,
    RED,
    YELLOW,
    Detectors,
    NemaConfig,
    Plan,
    advance,
    advance_sequence,
    decode_action,
    lights,
    start,
    start_sequence,
)

COMPATIBLE = {(1, 5), (1, 6), (2, 5), (2, 6), (3, 7), (3, 8), (4, 7), (4, 8)}  # NEMA numbers; everything else conflicts
MIN_GREEN = [5, 7, 5, 7, 5, 7, 5, 7]
ACTUATED, FIXED = NemaConfig(), NemaConfig(fixed_time=True)


class Record(NamedTuple):
    light: np.ndarray  # [T, I, 8] shown in second t
    calls: np.ndarray  # [T, I, 8] occupied just before it
    front_wait: np.ndarray  # [T, I, 8]
    plan: Plan  # [T, I, 8], [T, I]


def detectors(occupied, front_wait=None):
    occupied = np.atleast_2d(np.asarray(occupied, bool))
    wait = np.zeros(occupied.shape) if front_wait is None else np.atleast_2d(front_wait)
    return Detectors(occupied, wait, *3 * [np.zeros(occupied.shape)])


@functools.cache
def random_run(has_all_phases=True, sequence=False, seconds=2500, size=40, seed=0):
    """Random plans each minute; each phase's detector flips now and then; who stands at red waits."""
    rng = np.random.default_rng(seed)
    exists = np.ones((size, 8), bool) if has_all_phases else rng.random((size, 8)) < 0.7
    flips = rng.uniform(0.002, 0.3, (size, 8))
    occupied, wait = rng.random((size, 8)) < 0.5, np.zeros((size, 8))
    state, step = (start_sequence(exists), advance_sequence) if sequence else (start(exists), advance)
    rows = []
    for second in range(seconds):
        if second % 60 == 0:
            plan = decode_action(rng.uniform(-1.3, 1.3, (size, 9)))
        state = step(state, detectors(occupied, wait), plan, exists)
        light = lights(state, exists)
        rows.append((light, occupied & exists, wait, plan.max_green, plan.guard))
        occupied = occupied ^ (rng.random((size, 8)) < flips)
        wait = np.where(occupied & (light == RED), wait + 1, 0.0)
    light, calls, front, green, guard = (np.array(column) for column in zip(*rows, strict=True))
    return Record(light, calls, front, Plan(green, guard))


def run_lengths(row):
    """[(colour, first second, length)] of one phase's lights, the unfinished last run left out."""
    edges = np.flatnonzero(np.diff(row)) + 1
    bounds = np.concatenate([[0], edges])
    return [(row[a], a, b - a) for a, b in itertools.pairwise(bounds)]


def shows(occupied, seconds, plan, cfg=ACTUATED, front_wait=None):
    """Lights [seconds, 8] of one intersection under constant detectors."""
    exists = np.ones((1, 8), bool)
    state, rows = start(exists), []
    for _ in range(seconds):
        state = advance(state, detectors(occupied, front_wait), plan, exists, cfg)
        rows.append(lights(state, exists)[0])
    return np.array(rows)


def called(*phases):
    """Detectors of NEMA phases by their number."""
    return np.isin(np.arange(1, 9), phases)


def plan_of(left, through, guard=85.0):
    return Plan(np.tile([float(left), float(through)], (1, 4)), np.full(1, guard))


@pytest.mark.parametrize("has_all_phases", [True, False])
def test_conflicting_phases_are_never_lit_together_and_two_seconds_of_red_lie_between_them(has_all_phases):
    light = random_run(has_all_phases).light
    is_lit = light != RED
    # Lit now or in either of the two seconds before: the all-red must have passed.
    was_lit = is_lit.copy()
    was_lit[1:] |= is_lit[:-1]
    was_lit[2:] |= is_lit[:-2]
    for p in range(1, 9):
        for q in range(1, 9):
            if p != q and (p, q) not in COMPATIBLE and (q, p) not in COMPATIBLE:
                assert not (is_lit[..., p - 1] & was_lit[..., q - 1]).any(), (p, q)
    assert (light == GREEN).any(0).mean() > 0.6  # and it is not dark for that


def test_every_green_lasts_its_minimum_and_every_yellow_three_seconds():
    light = random_run().light
    for intersection in range(light.shape[1]):
        for phase in range(8):
            runs = run_lengths(light[:, intersection, phase])
            for (colour, first, length), (following, _, _) in itertools.pairwise(runs):
                if colour == GREEN:
                    assert length >= MIN_GREEN[phase] or first == 0
                    assert following == YELLOW
                elif colour == YELLOW:
                    assert length == 3 and following == RED
                else:
                    assert following == GREEN and (length >= 2 or first == 0)


def green_starts(light, ring):
    """[(second, phase)] at which one ring of one intersection turns green."""
    is_green = np.pad(light[:, 4 * ring : 4 * ring + 4] == GREEN, ((1, 0), (0, 0)))
    return [(int(t), int(p)) for t, p in np.argwhere(is_green[1:] & ~is_green[:-1])]


def test_a_ring_keeps_its_order_and_skips_only_phases_that_nobody_called():
    record = random_run()
    skipped_any = 0
    for intersection in range(record.light.shape[1]):
        light, calls = record.light[:, intersection], record.calls[:, intersection]
        for ring in range(2):
            starts = green_starts(light, ring)
            for (_, phase), (second, following) in itertools.pairwise(starts):
                chosen = second - 5  # the first yellow second: three of yellow, two of red before the green
                between = [(phase + k) % 4 for k in range(1, (following - phase) % 4)]
                assert not any(calls[chosen, 4 * ring + p] for p in between)
                skipped_any += len(between)
                assert following != phase
    assert skipped_any > 100


def test_both_rings_cross_the_barrier_in_the_same_second():
    light = random_run().light
    crossings = 0
    for intersection in range(light.shape[1]):
        sides = [[(t, p // 2) for t, p in green_starts(light[:, intersection], ring)] for ring in range(2)]
        changes = [[t for (_, before), (t, after) in itertools.pairwise(ring) if before != after] for ring in sides]
        assert changes[0] == changes[1]
        crossings += len(changes[0])
    assert crossings > 500


def test_a_green_ends_at_its_maximum_counted_from_the_conflicting_call():
    # 2 and 6 rest 40 s in green with traffic and without call; then 4 is called: 50 s more, yellow in second 90.
    exists, plan = np.ones((1, 8), bool), plan_of(30, 50)
    state, rows = start(exists), []
    for second in range(120):
        occupied = called(2, 6) if second < 40 else called(2, 4, 6)
        state = advance(state, detectors(occupied), plan, exists)
        rows.append(lights(state, exists)[0])
    light = np.array(rows)
    assert (light[:90, [1, 5]] == GREEN).all()
    assert (light[90:93, [1, 5]] == YELLOW).all() and (light[93:95] == RED).all()
    assert light[95, 3] == GREEN


def test_no_green_outlives_the_maxima_of_its_side_while_everybody_is_calling():
    rng = np.random.default_rng(3)
    plan = decode_action(rng.uniform(-1, 1, (30, 9)))._replace(guard=np.full(30, 1e9))
    exists, state, rows = np.ones((30, 8), bool), start(np.ones((30, 8), bool)), []
    for _ in range(1500):
        state = advance(state, detectors(exists), plan, exists)
        rows.append(lights(state, exists))
    light, longest = np.array(rows), np.ceil(plan.max_green)
    for intersection in range(30):
        for phase in range(8):
            greens = [length for colour, first, length in run_lengths(light[:, intersection, phase]) if colour == GREEN]
            own, other = longest[intersection, phase], 0.0
            if phase % 2:  # a side lasts as long as its longer ring: left, clearance, through
                ring_s = [longest[intersection, p - 1] + 5 + longest[intersection, p] for p in (phase, (phase + 4) % 8)]
                other = max(ring_s[1] - ring_s[0], 0.0)
            assert set(greens[1:]) == {own + other}  # the first green began without its left


def test_the_guard_cuts_conflicting_greens_after_ten_seconds():
    # A driver of phase 4 has waited 90 s: longer than a guard of 85 s, not than one of 115 s.
    waits = np.where(called(4), 90.0, 0.0)
    light = shows(called(2, 4, 6), 60, plan_of(30, 50, guard=85.0), front_wait=waits)
    assert (light[:10, [1, 5]] == GREEN).all() and (light[10, [1, 5]] == YELLOW).all()
    patient = shows(called(2, 4, 6), 60, plan_of(30, 50, guard=115.0), front_wait=waits)
    assert (patient[:50, [1, 5]] == GREEN).all() and (patient[50, [1, 5]] == YELLOW).all()


def test_nobody_waits_much_longer_than_the_guard_at_the_stop_line():
    record = random_run()
    # From the guard on: 10 s and 5 s clearance in each of the at most four greens that come first in ring order
    # (second phase of this side, then the waiting side's first phase), each perhaps held by the other ring: 4 x 15 s;
    # the guard itself may be lowered by at most 115 - 45 = 70 s in mid-wait, which only helps.
    assert record.front_wait.max() <= 115 + 60
    assert record.front_wait.max() > 45


def test_an_empty_green_gaps_out_at_its_minimum():
    light = shows(called(4), 20, plan_of(30, 70))
    assert (light[:7, [1, 5]] == GREEN).all() and (light[7, [1, 5]] == YELLOW).all()
    assert light[12, 3] == GREEN and light[12, 7] == GREEN  # 8 enters with 4 though nobody called it


def test_at_a_barrier_an_empty_ring_waits_for_the_busy_one():
    # 6 is busy until its maximum of 50 s; 2 is empty and stays green with it.
    light = shows(called(4, 6), 60, plan_of(30, 50))
    assert (light[:50, [1, 5]] == GREEN).all() and (light[50, [1, 5]] == YELLOW).all()


def test_without_conflicting_call_the_green_rests():
    light = shows(called(2, 5 + 1), 400, plan_of(5, 7))
    assert (light[:, [1, 5]] == GREEN).all()


def test_a_lone_left_turn_is_served_while_the_compatible_through_stays_green():
    light = shows(called(1), 30, plan_of(30, 70))
    assert (light[:, 5] == GREEN).all()
    assert light[7, 1] == YELLOW and (light[12:, 0] == GREEN).all()


def test_fixed_time_gives_the_exact_cycle():
    # 2, 6 first: 20 s; then 3, 4, 1, 2 with 10, 20, 10, 20 s and 5 s after each: the cycle is 80 s.
    light = shows(called(), 400, plan_of(10, 20), FIXED)
    begins = {1: 65, 2: 80, 3: 25, 4: 40}
    for phase, first in begins.items():
        length = 10 if phase % 2 else 20
        for ring in (0, 4):
            row = light[first:, phase - 1 + ring]
            expected = np.zeros(80, int)
            expected[:length], expected[length : length + 3] = GREEN, YELLOW
            np.testing.assert_array_equal(row[:240], np.tile(expected, 3))


def test_fixed_time_rings_of_unequal_length_meet_at_the_barrier():
    # Ring 1 needs 10 + 5 + 20, ring 2 needs 16 + 5 + 20 s a side: phases 2 and 4 wait 6 s, the cycle is 2 * 46 s.
    plan = Plan(np.array([[10.0, 20.0, 10.0, 20.0, 16.0, 20.0, 16.0, 20.0]]), np.full(1, 85.0))
    light = shows(called(), 600, plan, FIXED)
    np.testing.assert_array_equal(light[100:300], light[192:392])
    greens = (light[100:192] == GREEN).sum(0)
    np.testing.assert_array_equal(greens, [10, 26, 10, 26, 16, 20, 16, 20])


def test_a_phase_that_does_not_exist_is_never_lit_and_the_others_are_served():
    light, calls = random_run(has_all_phases=False).light, random_run(has_all_phases=False).calls
    exists = np.random.default_rng(0).random((40, 8)) < 0.7  # the run's first draw
    assert not (light != RED)[:, ~exists].any()
    is_asked = calls.sum(0) > 100
    assert (light == GREEN).any(0)[is_asked].all()


def test_a_phase_sequence_shows_one_green_at_a_time_in_order_of_the_calls():
    record = random_run(sequence=True)
    assert ((record.light != RED).sum(-1) <= 1).all()
    for intersection in range(record.light.shape[1]):
        is_green = np.pad(record.light[:, intersection] == GREEN, ((1, 0), (0, 0)))
        starts = [(int(t), int(p)) for t, p in np.argwhere(is_green[1:] & ~is_green[:-1])]
        for (_, phase), (second, following) in itertools.pairwise(starts):
            between = [(phase + k) % 8 for k in range(1, (following - phase) % 8)]
            assert not record.calls[second - 5, intersection, between].any()


def test_the_zero_action_is_the_default_plan_and_the_ends_are_the_limits():
    plan = decode_action(np.zeros((1, 9)))
    assert plan.max_green[0].tolist() == [30.0, 70.0] * 4 and plan.guard[0] == 85.0
    low, high = decode_action(np.full((1, 9), -7.0)), decode_action(np.ones((1, 9)))
    np.testing.assert_allclose(low.max_green[0], MIN_GREEN)
    np.testing.assert_allclose(high.max_green[0], 120.0)
    assert low.guard[0] == 45.0 and high.guard[0] == 115.0
    # Half way up is the geometric mean: sqrt(30 * 120) = 60; half way down sqrt(70 * 7) = 22.136.
    np.testing.assert_allclose(decode_action(np.full((1, 9), 0.5)).max_green[0, 0], 60.0)
    np.testing.assert_allclose(decode_action(np.full((1, 9), -0.5)).max_green[0, 1], 22.1359, rtol=1e-5)


def test_greens_of_a_program_of_its_own_are_all_alike():
    is_nema = np.array([True, False])
    for value in (-1.0, -0.4, 0.0, 0.7, 1.0):
        nema, own = decode_action(np.full((2, 9), value), is_nema).max_green
        np.testing.assert_array_equal(nema, decode_action(np.full((1, 9), value)).max_green[0])
        assert len(set(own.tolist())) == 1
    assert decode_action(np.zeros((2, 9)), is_nema).max_green[1, 0] == 45.0
    np.testing.assert_allclose(decode_action(np.full((2, 9), -1.0), is_nema).max_green[1], 7.0)


def test_an_action_with_nan_or_of_the_wrong_shape_is_refused():
    with pytest.raises(RoadError, match="NaN"):
        decode_action(np.full((2, 9), np.nan))
    with pytest.raises(RoadError, match="shape"):
        decode_action(np.zeros((2, 8)))
