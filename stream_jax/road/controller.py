"""The look-ahead signal controller: the stage that serves most weight per second goes next.

Every second each signal compares its legal stages by the weight of the vehicles that they can serve, divided by the
seconds that pass until then, lost seconds of a change included (Lämmer & Helbing, 2008; the generalised cμ rule).
Weight grows with waiting. When somebody was called for too long, or all needs together would fill a long cycle, turns
are taken instead: whoever was called first goes next, whatever the prices are, and each green lasts its share of a
cycle of bounded length, so that nobody starves. Legal by construction: a green ends after its minimum, then
come yellow, all-red and the next stage; links that stay green through a change are not interrupted.

`advance` is a pure function of arrays, vmapped over signals: it drives SUMO once a second and compiled roads alike.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.road.tables import MOST_STAGES, PRICES, Seen, Tables

RED, GREEN, YELLOW = 0, 1, 2


def _fixed(default: Any) -> Any:
    """A field that a compiled program is made for."""
    return dataclasses.field(default=default, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LookaheadConfig:
    """The few numbers of the controller, tuned once and the same on every network.

    Numbers are leaves of a pytree: trying others compiles nothing anew.
    """

    yellow_s: int = _fixed(3)
    all_red_s: int = _fixed(2)
    startup_s: float = 1.0  # lost at the beginning of a green, beyond the clearance
    headway_s: float = 2.0  # seconds that a vehicle of a queue takes to cross the stop line
    wait_scale_s: float = 90.0  # waiting this long doubles a vehicle's weight
    hysteresis: float = 1.1  # another stage must be better than the present one by this factor
    yield_weight: float = 0.6  # what a vehicle counts where it has to yield
    near_s: float = 15.0  # vehicles that arrive so soon count as need
    here_s: float = 4.0  # and those that arrive so soon call their movement, as those do that wait
    gap_s: float = 3.0  # a green in its turn ends when nobody arrives so soon
    overdue_s: float = 50.0  # turns are taken when a movement was called for so long without green
    full_s: float = 80.0  # or when a cycle that serves everybody's need would be longer
    cycle_s: float = 90.0  # into which the needs of all stages are fitted while turns are taken
    fair_s: float = 20.0  # a movement that waited so long before its green may keep its share of the cycle
    patience: float = 0.0  # 1: in turns the wait of the oldest driver counts as well, 0: time without green alone
    phase_range: float = 4.0  # price 1 multiplies a weight by this, price -1 divides it
    wait_range: float = 4.0  # the same for the weight of waiting
    horizons_s: tuple[float, ...] = _fixed((2, 4, 6, 9, 12, 15, 19, 24, 30, 40, 50, 60))


class LookaheadState(NamedTuple):
    """What every signal shows, and for how long."""

    stage: Array  # [I] int32, the stage that is green or being cleared
    target: Array  # [I] int32, the stage after the clearance
    colour: Array  # [I] int32 GREEN, YELLOW, or RED for the all-red after yellow
    timer: Array  # [I] s shown of this colour
    age: Array  # [I, M] s of the movement's green, 0 if it has none
    called: Array  # [I, M] s that somebody has wanted the movement without green, or had until its green began


def start(tables: Tables) -> LookaheadState:
    """All signals green in their first stage."""
    signals, _, movements = tables.serves.shape
    nothing, none = jnp.zeros(signals, jnp.int32), jnp.zeros((signals, movements), jnp.float32)
    return LookaheadState(nothing, nothing, nothing + GREEN, jnp.zeros(signals), none, none)


@jax.jit
def advance(
    state: LookaheadState, seen: Seen, prices: Array, tables: Tables, cfg: LookaheadConfig
) -> tuple[LookaheadState, Array]:
    """All signals one second later, and what the movements show in the coming second.

    Args:
        prices: [I, 9] in [-1, 1], clipped: the price of the vehicles of each phase, then of waiting; 0 as tuned.

    Returns:
        The new state, and the colour of each movement [I, M]: RED, GREEN or YELLOW.
    """
    chex.assert_rank([seen.eta, prices, tables.serves], [3, 2, 3])
    chex.assert_axis_dimension(prices, 1, PRICES)
    return jax.vmap(_advance, in_axes=(0, 0, 0, 0, None))(state, seen, prices, tables, cfg)


def _advance(
    state: LookaheadState, seen: Seen, prices: Array, tables: Tables, cfg: LookaheadConfig
) -> tuple[LookaheadState, Array]:
    """One signal; the axis I is gone."""
    state = _clear(state, cfg)
    green = tables.serves[state.stage] & (state.colour == GREEN) | _stays(state, tables)
    needs = _needs(seen, tables, cfg)
    called = jnp.where(green, state.called, jnp.where(needs.wanted, state.called + 1.0, 0.0))
    state = state._replace(age=jnp.where(green, state.age, 0.0), called=called)
    rate = _rates(state, seen, prices, tables, green, cfg)
    target = _choose(state, rate, needs, green, tables, cfg)
    leaves = (state.colour == GREEN) & (target != state.stage)
    state = state._replace(
        target=jnp.where(leaves, target, state.target),
        colour=jnp.where(leaves, YELLOW, state.colour),
        timer=jnp.where(leaves, 0.0, state.timer) + 1.0,
    )
    now = tables.serves[state.stage] & (state.colour == GREEN) | _stays(state, tables)
    shown = jnp.where(now, GREEN, jnp.where(tables.serves[state.stage] & (state.colour == YELLOW), YELLOW, RED))
    called = jnp.where(green & ~now, 0.0, state.called)
    return state._replace(age=jnp.where(now, state.age + 1.0, 0.0), called=called), shown


def _clear(state: LookaheadState, cfg: LookaheadConfig) -> LookaheadState:
    """Ends yellows and all-reds that have been shown long enough."""
    is_yellow_over = (state.colour == YELLOW) & (state.timer >= cfg.yellow_s)
    to_red = is_yellow_over & (cfg.all_red_s > 0)
    to_green = is_yellow_over & (cfg.all_red_s == 0) | (state.colour == RED) & (state.timer >= cfg.all_red_s)
    return state._replace(
        stage=jnp.where(to_green, state.target, state.stage),
        colour=jnp.where(to_red, RED, jnp.where(to_green, GREEN, state.colour)),
        timer=jnp.where(to_red | to_green, 0.0, state.timer),
    )


def _stays(state: LookaheadState, tables: Tables) -> Array:
    """[M] movements that keep their green through the change that is under way."""
    return tables.serves[state.stage] & tables.serves[state.target] & (state.colour != GREEN)


class _Needs(NamedTuple):
    """What the vehicles of each movement ask for; all fields [M]."""

    wanted: Array  # somebody wants it now
    flows: Array  # somebody reaches its stop line very soon
    seconds: Array  # of green that those need who wait and come soon
    oldest: Array  # s that the one who has waited longest has waited
    is_open: Array  # there is room behind the stop line


def _needs(seen: Seen, tables: Tables, cfg: LookaheadConfig) -> _Needs:
    is_it = seen.movement[..., None] == jnp.arange(tables.phase.shape[0])  # [L, K, M]
    near = seen.count * (seen.eta <= cfg.near_s)
    seconds = (is_it * near[..., None]).sum(1).max(0) * cfg.headway_s
    is_here = (seen.count > 0) & ((seen.eta <= cfg.here_s) | (seen.waited > 0))
    is_close = (seen.count > 0) & (seen.eta <= cfg.gap_s)
    wanted, flows = ((is_it & of[..., None]).any((0, 1)) for of in (is_here, is_close))
    oldest = (is_it * (seen.waited * (seen.count > 0))[..., None]).max((0, 1))
    return _Needs(wanted, flows, seconds, oldest, seen.room >= 1.0)


def _rates(
    state: LookaheadState, seen: Seen, prices: Array, tables: Tables, green: Array, cfg: LookaheadConfig
) -> Array:
    """[S] the weight that each stage serves per second from now on, over the best of the horizons."""
    prices = jnp.clip(prices, -1.0, 1.0)
    value = (cfg.phase_range ** prices[tables.phase])[seen.movement]  # [L, K]
    urgency = (seen.waited / cfg.wait_scale_s) ** 2 * cfg.wait_range ** prices[-1]
    weight = seen.count * value * (1.0 + urgency)  # [L, K]

    places = seen.count.shape[1]
    before = seen.count @ jnp.triu(jnp.ones((places, places)))  # [L, K] vehicles of the lane up to and with this place
    fits = before <= seen.room[seen.movement]
    nobody, everybody = jnp.uint32(0), jnp.uint32(2**MOST_STAGES - 1)
    held = jnp.where(fits, ~_bits(tables.serves)[seen.movement], everybody)  # [L, K] bit s: stage s holds it back
    held = _running(jnp.bitwise_or, jnp.where(seen.count > 0, held, nobody), nobody)  # or somebody in front of it
    yields = _bits(tables.yields)[seen.movement]
    stages = jnp.arange(tables.serves.shape[0], dtype=jnp.uint32)[:, None, None]
    share = weight * jnp.where(yields >> stages & 1, cfg.yield_weight, 1.0) * (1 - (held >> stages & 1))  # [S, L, K]

    ready = _running(jnp.maximum, seen.eta - before * cfg.headway_s, -jnp.inf)  # nobody leaves before he is there
    lost = cfg.yellow_s + cfg.all_red_s + cfg.startup_s
    front = seen.movement[:, 0]
    goes_on = (green[front] & tables.serves[:, front])[..., None]  # [S, L, 1] lanes that stay green through the change
    horizons = jnp.asarray(cfg.horizons_s, jnp.float32)

    def served(by: Array, begins: Array | float) -> Array:
        leaves = before * cfg.headway_s + jnp.maximum(ready, begins)
        in_time = (leaves.reshape(-1, 1) <= horizons).astype(jnp.float32)  # [L * K, T]
        return by.reshape(by.shape[0], -1) @ in_time

    # A change commits the signal to its lost time and a minimum green.
    is_present = jnp.arange(tables.serves.shape[0])[:, None] == state.stage
    spent = jnp.where(is_present, horizons, jnp.maximum(horizons, lost + tables.min_green.max()))
    rate = served(jnp.where(goes_on, share, 0.0), 0.0) / horizons + served(jnp.where(goes_on, 0.0, share), lost) / spent
    return rate.max(1)


def _bits(by_stage: Array) -> Array:
    """[M] what is true of each movement, one bit for each stage. Args: by_stage [S, M] bool."""
    place = jnp.arange(by_stage.shape[0], dtype=jnp.uint32)[:, None]
    return (by_stage.astype(jnp.uint32) << place).sum(0, dtype=jnp.uint32)


def _running(join: Callable[[Array, Array], Array], values: Array, neutral: Array | float) -> Array:
    """`join` of all values up to each place, along the last axis, in log2 steps: faster than XLA's own scans here."""
    step = 1
    while step < values.shape[-1]:
        shifted = jnp.pad(values[..., :-step], ((0, 0), (step, 0)), constant_values=neutral)
        values, step = join(values, shifted), 2 * step
    return values


def _choose(
    state: LookaheadState, rate: Array, needs: _Needs, green: Array, tables: Tables, cfg: LookaheadConfig
) -> Array:
    """The stage to show next, the present one included."""
    stages = jnp.arange(tables.serves.shape[0])
    ends = green & ~tables.serves  # [S, M]
    is_allowed = (stages < tables.stages) & (~ends | (state.age >= tables.min_green)).all(1)
    candidates = is_allowed & _takes_turns(state, needs, green, tables, cfg)
    rate = jnp.where(stages == state.stage, rate * cfg.hysteresis + 1e-6, rate)
    best = jnp.where(candidates, rate, -1.0).argmax()
    return jnp.where(candidates.any() & (tables.stages > 0), best, state.stage).astype(jnp.int32)


def _takes_turns(state: LookaheadState, needs: _Needs, green: Array, tables: Tables, cfg: LookaheadConfig) -> Array:
    """[S] the stages whose turn it may be: all of them, unless the signal is full or somebody is overdue.

    Then a green keeps its share of the cycle while vehicles flow, and after it the movement goes next that was called
    first. With `patience` it is the one whose oldest driver has waited longest, perhaps through an earlier green.
    Movements beside it may begin and end as the rates want, but nobody who came out of turn may keep a share.
    """
    need = needs.seconds
    waits = jnp.where((need > 0) & needs.is_open & ~green, jnp.maximum(state.called, cfg.patience * needs.oldest), 0.0)
    first = waits.argmax()
    whole = jnp.where(need > 0, need + jnp.where(green, state.age, 0.0), 0.0)  # what a green needs from its beginning
    by_stage = jnp.zeros(len(tables.serves)).at[tables.home].max(whole)  # [S]
    lost = (cfg.yellow_s + cfg.all_red_s + cfg.startup_s) * (by_stage > 0).sum()
    share = (by_stage * jnp.minimum(1.0, (cfg.cycle_s - lost) / jnp.maximum(by_stage.sum(), 1e-6)))[tables.home]
    is_full = (waits[first] > cfg.overdue_s) | (by_stage.sum() + lost > cfg.full_s)

    before = waits[first] - state.age  # how long the first in line had waited when each green began
    right = jnp.where(waits[first] > cfg.cycle_s, before, jnp.minimum(before, cfg.fair_s))
    is_kept = green & needs.flows & needs.is_open & (state.age < share) & (state.called >= right)
    keeps = (tables.serves | ~is_kept).all(1)
    return ~is_full | jnp.where(is_kept.any(), keeps, tables.serves[:, first] | (waits[first] == 0))
