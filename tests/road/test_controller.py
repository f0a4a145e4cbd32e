"""The look-ahead controller is legal whatever it sees and whatever the prices are, and nobody starves."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_jax.road.controller import GREEN, RED, YELLOW, LookaheadConfig, advance, start
from stream_jax.road.tables import Seen, make_tables

CFG = LookaheadConfig()
NO_ALL_RED = LookaheadConfig(all_red_s=0)
# NEMA: ring 1 is phases 0..3, ring 2 is 4..7; the barrier lies between {0, 1, 4, 5} and {2, 3, 6, 7}.
PAIRS = [(0, 4), (0, 5), (1, 4), (1, 5), (2, 6), (2, 7), (3, 6), (3, 7)]
NEMA_MIN = np.array([5.0, 7.0] * 4)
SIGNALS, PLACES = 16, 6


class Record(NamedTuple):
    shown: np.ndarray  # [T, M]
    stage: np.ndarray  # [T]


def nema_tables(signals=1):
    served = np.zeros((8, 8), bool)
    for stage, pair in enumerate(PAIRS):
        served[stage, list(pair)] = True
    copies = [served] * signals
    return make_tables(copies, [served & False] * signals, [np.arange(8)] * signals, [NEMA_MIN] * signals)


def tables_of(served, min_green=5.0, yields=None):
    served = np.asarray(served, bool)
    moves = served.shape[1]
    yields = np.zeros_like(served) if yields is None else np.asarray(yields, bool)
    return make_tables([served], [yields], [np.arange(moves) % 8], [np.full(moves, min_green)])


def view(waiting, movements, eta=0.0, waited=0.0, room=99.0):
    """One lane a movement. Args: waiting: vehicles in the lane of each movement."""
    waiting = np.asarray(waiting)
    count = (np.arange(PLACES) < waiting[:, None]).astype(np.float32)[None]
    movement = np.broadcast_to(np.arange(movements)[None, :, None], count.shape).astype(np.int32)
    full = np.ones(count.shape, np.float32)
    eta = full * np.reshape(np.broadcast_to(eta, movements), (1, -1, 1)).astype(np.float32)
    waited = full * np.reshape(np.broadcast_to(waited, movements), (1, -1, 1)).astype(np.float32)
    return Seen(eta, count, waited, movement, np.broadcast_to(np.float32(room), (1, movements)).copy())


def drive(tables, views, prices=None, cfg=CFG):
    """Shows [T, M] of one signal, and its stages [T]."""
    told = np.zeros((1, 9), np.float32) if prices is None else prices
    tables = jax.tree.map(jax.numpy.asarray, tables)
    state, shown, stages = start(tables), [], []
    for seen in views:
        state, colours = advance(state, seen, told, tables, cfg)
        shown.append(np.asarray(colours[0]))
        stages.append(int(state.stage[0]))
    return Record(np.array(shown), np.array(stages))


def random_tables(rng):
    """Half of the signals are NEMA, half have random stages."""
    tables = []
    for _ in range(SIGNALS // 2):
        served = rng.random((rng.integers(2, 12), 8)) < 0.4
        served[0] |= ~served.any(0)  # every movement is served somewhere
        tables.append((served, served & (rng.random(served.shape) < 0.3), np.full(8, rng.integers(3, 10))))
        nema = nema_tables()
        tables.append((nema.serves[0], nema.yields[0], NEMA_MIN))
    served, yields, least = zip(*tables, strict=True)
    return make_tables(list(served), list(yields), [np.arange(8)] * SIGNALS, list(least))


@functools.lru_cache(maxsize=2)
def random_run(seed, cfg=CFG, seconds=300):
    """Queues that grow at random and shrink when served, under prices that jump every minute. Shows [T, I, M]."""
    rng = np.random.default_rng(seed)
    tables = random_tables(rng)
    queue, waited, rows = np.zeros((SIGNALS, 8)), np.zeros((SIGNALS, 8)), []
    rate = rng.uniform(0.01, 0.3, (SIGNALS, 8))
    state = start(tables)
    for second in range(seconds):
        if second % 60 == 0:
            prices = rng.uniform(-1.5, 1.5, (SIGNALS, 9)).astype(np.float32)
        queue = np.minimum(queue + (rng.random(queue.shape) < rate), PLACES)
        waited = np.where(queue > 0, waited + 1, 0.0)
        views = [view(*row, waited=wait) for *row, wait in zip(queue, [8] * SIGNALS, waited, strict=True)]
        seen = Seen(*(np.concatenate(field) for field in zip(*views, strict=True)))
        seen = seen._replace(room=np.where(rng.random((SIGNALS, 8)) < 0.05, 0.0, 99.0).astype(np.float32))
        state, colours = advance(state, seen, prices, tables, cfg)
        rows.append(np.asarray(colours))
        go = (rows[-1] == GREEN) & (rng.random(queue.shape) < 0.5)
        queue, waited = np.maximum(queue - go, 0), np.where(go, 0.0, waited)
    return tables, np.array(rows)


def runs(row):
    """[(colour, first second, length)], the unfinished last run left out."""
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(row)) + 1])
    return [(row[a], a, b - a) for a, b in itertools.pairwise(bounds)]


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_what_is_lit_together_belongs_to_one_stage_and_conflicts_are_two_seconds_of_red_apart(seed):
    tables, shown = random_run(seed)
    for signal in range(SIGNALS):
        stages = tables.serves[signal][: tables.stages[signal]]
        together = (stages[:, :, None] & stages[:, None]).any(0)  # [M, M] movements that some stage serves together
        lit = shown[:, signal] != RED
        assert all((stages >= row).all(1).any() for row in lit)
        before = lit.copy()
        before[1:] |= lit[:-1]
        before[2:] |= lit[:-2]
        assert not (lit[:, :, None] & before[:, None] & ~together).any()


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_every_green_lasts_its_minimum_and_ends_in_three_seconds_of_yellow(seed):
    tables, shown = random_run(seed)
    for signal, movement in np.ndindex(SIGNALS, 8):
        for (colour, first, length), (following, _, _) in itertools.pairwise(runs(shown[:, signal, movement])):
            if colour == GREEN:
                assert following == YELLOW and (length >= tables.min_green[signal, movement] or first == 0)
            elif colour == YELLOW:
                assert length == 3 and following == RED
            else:
                assert following == GREEN and (length >= 2 or first == 0)


def test_random_queues_make_signals_change_often():
    _, shown = random_run(0)
    assert (np.diff(shown == GREEN, axis=0) != 0).sum() > 20 * SIGNALS


@settings(max_examples=8, deadline=None)
@given(prices=st.lists(st.floats(-1, 1), min_size=9, max_size=9), heavy=st.integers(0, 7))
def test_a_lone_driver_is_served_against_any_prices_and_any_queue(prices, heavy):
    tables = jax.tree.map(jax.numpy.asarray, nema_tables())
    told = np.array([prices], np.float32)
    waiting = np.zeros(8)
    waiting[heavy] = PLACES  # never becomes shorter
    lone = (heavy + 2) % 8  # the other side of the barrier
    waiting[lone] = 1
    state, first = start(tables), None
    for second in range(200):
        waited = np.full(8, float(second))
        state, colours = advance(state, view(waiting, 8, waited=waited), told, tables, CFG)
        if colours[0, lone] == GREEN:
            first = second
            break
    # Overdue after 50 s; the queue's share of the cycle is at most 6 vehicles of 2 s; then 5 s of clearance.
    assert first is not None and first <= 50 + 12 + 5 + 2


@settings(max_examples=3, deadline=None)
@given(prices=st.lists(st.floats(-1, 1), min_size=9, max_size=9))
def test_on_a_full_road_everybody_has_a_turn(prices):
    # Eight queues that never become shorter, of six vehicles each.
    record = drive(nema_tables(), [view(np.full(8, PLACES), 8, waited=30.0)] * 600, np.array([prices], np.float32))
    is_red = (record.shown != GREEN)[150:]
    longest = max(_longest_run(column) for column in is_red.T)
    # Turns begin when somebody was called for 50 s. At worst the other seven go before, each alone: 12 s and 6 s lost.
    assert longest <= CFG.overdue_s + 8 * (PLACES * CFG.headway_s + 6.0)


def _longest_run(flags):
    return max((len(list(group)) for value, group in itertools.groupby(flags) if value), default=0)


def test_with_patience_the_oldest_driver_decides_whose_turn_it_is():
    # Movement 1 was called first; in movement 2 somebody has waited through an earlier green.
    tables = tables_of(np.eye(3))
    seen = view([5, 5, 5], 3, waited=[0.0, 60.0, 90.0])
    second = lambda cfg: next(stage for stage in drive(tables, [seen] * 60, cfg=cfg).stage if stage != 0)  # noqa: E731
    same = dataclasses.replace(CFG, wait_scale_s=1e6, overdue_s=1.0)  # waits weigh nothing but turns
    assert second(same) == 1 and second(dataclasses.replace(same, patience=1.0)) == 2


def test_a_green_in_its_turn_ends_when_nobody_comes():
    # Everybody is overdue; movement 0 has vehicles far away only, so its green ends with its minimum.
    tables = tables_of(np.eye(3))
    far, here = view([5, 5, 5], 3, eta=[12.0, 0.0, 0.0], waited=60.0), view([5, 5, 5], 3, waited=60.0)
    assert (drive(tables, [here] * 9).stage == 0).all()
    assert drive(tables, [far] * 12).stage[-1] != 0


def test_without_all_red_the_next_stage_follows_the_yellow_at_once():
    _, shown = random_run(3, cfg=NO_ALL_RED)
    assert (shown != RED).any(2).all()


def test_the_longer_queue_goes_first():
    tables = tables_of(np.eye(3))
    record = drive(tables, [view([0, 2, 5], 3)] * 12)
    assert record.stage[-1] == 2


def test_a_price_turns_the_choice():
    tables = tables_of(np.eye(3))
    prices = np.zeros((1, 9), np.float32)
    prices[0, 1] = 1.0  # four times the weight: 8 against 5
    record = drive(tables, [view([0, 2, 5], 3)] * 12, prices)
    assert record.stage[-1] == 1


def test_a_stage_into_a_full_link_is_passed_over():
    tables = tables_of(np.eye(3))
    record = drive(tables, [view([0, 2, 5], 3, room=[99.0, 99.0, 0.0])] * 12)
    assert record.stage[-1] == 1


def test_a_movement_that_two_stages_serve_is_no_reason_to_change_between_them():
    # Movement 0 is green in both; nobody wants movement 2, so stage 0 stays although stage 1 serves 0 as well.
    tables = tables_of([[1, 1, 0], [1, 0, 1]])
    record = drive(tables, [view([5, 1, 0], 3)] * 40)
    assert (record.stage == 0).all()


def test_links_that_are_green_before_and_after_a_change_are_not_interrupted():
    tables = tables_of([[1, 1, 0], [1, 0, 1]])
    record = drive(tables, [view([5, 0, 5], 3)] * 30)
    assert record.stage[-1] == 1 and (record.shown[:, 0] == GREEN).all()


def test_a_platoon_that_comes_soon_holds_the_green():
    # Two vehicles reach the green stop line in 4 s; a change and back costs more than the one who waits is worth.
    tables = tables_of(np.eye(2))
    seen = view([4, 1], 2, eta=[4.0, 0.0])
    record = drive(tables, [seen] * 20)
    assert (record.stage[:10] == 0).all()


def test_a_signal_without_stages_never_changes():
    tables = make_tables([np.zeros((0, 2), bool)], [np.zeros((0, 2), bool)], [np.zeros(2, int)], [np.full(2, 5.0)])
    record = drive(tables, [view([5, 5], 2)] * 10)
    assert (record.stage == 0).all() and (record.shown == RED).all()


def test_more_stages_than_can_be_compared_are_refused():
    with pytest.raises(ValueError, match="33 stages"):
        tables_of(np.ones((33, 2)))


def test_one_second_traces_once():
    tables = jax.tree.map(jax.numpy.asarray, nema_tables())
    traced = jax.jit(chex.assert_max_traces(advance.__wrapped__, n=1), static_argnames="cfg")
    state, prices = start(tables), np.zeros((1, 9), np.float32)
    for queue in (1, 2, 3):
        state, _ = traced(state, view(np.full(8, queue), 8), prices, tables, cfg=CFG)
