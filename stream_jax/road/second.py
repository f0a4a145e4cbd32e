"""One second of a compiled road: who crosses a stop line, who enters which lane, who halts.

A vehicle crosses at a moment, not in a second: as soon as it is there, the stop line is free again after the one before
it, and the light allows. Moments are carried on to the next stop line, so travel times are continuous in saturation
flows, travel times and lost times; only vehicles are whole (a fluid would lose the last one). A lane takes at most one
vehicle a second.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from stream_jax.road.controller import GREEN, YELLOW
from stream_jax.road.world import MOVES, NEVER, Drivers, Lanes, Road, RoadState, WorldConfig

FREE_MPS = 13.9  # speed at which vehicles come to the end of a queue
PLACE_M = 7.5  # of lane that a standing vehicle takes
REACH_BACK_S = PLACE_M / FREE_MPS  # a queue's next place is reached sooner than the one before it by this


class Rules(NamedTuple):
    """What holds for a control step: the drivers' numbers by movement and lane."""

    headway: Array  # [Q] s
    open: Array  # [L] bool: vehicles may enter
    bias: Array  # [L] vehicles
    back: Array  # [L] int32 s until the place that one left is free at the lane's beginning


class _Crossing(NamedTuple):
    """Who is first in each lane, and what becomes of him."""

    moment: Array  # [L] s
    can: Array  # [L] bool
    has_light: Array  # [L] bool
    target: Array  # [L] int32 lane that he drives into, L: none
    forced: Array  # [L] bool
    yields: Array  # [L] bool: he may go, but waits for a gap
    shut_in: Array  # [L] bool: he cannot reach the stop line for those who overflow the pocket beside


def rules(road: Road, drivers: Drivers, state: RoadState, cfg: WorldConfig) -> Rules:
    """What holds from now on for a control step."""
    hour, lanes = state.hour, jnp.arange(road.lanes)
    is_closed = (hour.closed[:, None] == lanes) & (hour.closed_from <= state.now)[:, None]
    is_closed = (is_closed & (state.now < hour.closed_to)[:, None]).any(0)
    is_kerb = jnp.zeros(road.lanes + 1).at[road.candidates[:, 0]].max(1.0 * (road.candidates[:, 1] < road.lanes))
    back = (road.pocket + road.behind) * drivers.hole_s
    return Rules(
        headway=drivers.headway_s[road.turn.reshape(-1)],
        open=~is_closed,
        bias=drivers.kerb * is_kerb[:-1],
        back=jnp.clip(back, 0, cfg.control_s - 1).astype(jnp.int32),
    )


def pass_second(
    road: Road,
    drivers: Drivers,
    rule: Rules,
    state: RoadState,
    shown: Array,
    noise: Array,
    second: Array,
    cfg: WorldConfig,
) -> tuple[RoadState, Array]:
    """The road one second later.

    Args:
        shown: [I, M] colour of each movement in this second.
        noise: [O + L] normal, of the travel time of whoever enters from each origin or lane.
        second: [] int32 of the control step.

    Returns:
        The new state, and which vehicles halt [C, L].
    """
    now, lanes, size = state.now, state.lanes, road.lanes
    yellow = jnp.where(shown == YELLOW, state.yellow + 1.0, 0.0)
    best, has_room = _best_lanes(road, rule, state, second, cfg)
    cross = _cross(road, drivers, rule, state, shown, yellow, best, has_room, cfg)
    first = lanes.vehicle[0] // MOVES
    head = lanes.ready[0]

    was_first = state.hour.first[:-1] + state.due
    next_depart = state.hour.depart[jnp.minimum(was_first, state.hour.depart.shape[0] - 1)]
    state = state._replace(due=state.due + ((was_first < state.hour.first[1:]) & (next_depart < now + 1.0)))
    depart, hop, is_due = _departing(state)
    move = road.hop_movement[hop]
    target = jnp.concatenate([jnp.where(is_due & has_room[move], best[move], size), cross.target])
    rank = jnp.arange(1, target.shape[0] + 1)  # from the road before from outside; one vehicle a second
    winner = jnp.zeros(size + 1, jnp.int32).at[target].max(rank)
    is_taken = (winner[target] == rank) & (target < size)

    # Whoever enters: his next hop, and when he could reach its stop line.
    after = jnp.concatenate([hop, jnp.minimum(first + 1, road.hop_movement.shape[0] - 1)])
    begins = jnp.concatenate([jnp.maximum(depart, now), cross.moment + drivers.late_s * (head < now)])
    travel = road.hop_travel[after] * jnp.maximum(drivers.time_factor * (1.0 + drivers.time_spread * noise), 0.5)
    comes = Lanes(
        ready=begins + travel,
        vehicle=after * MOVES + road.hop_movement[after] % road.tables.phase.shape[1],
        wait=jnp.concatenate([jnp.floor(jnp.maximum(now - depart, 0.0)), jnp.zeros(size)]),
    )
    who = jnp.maximum(winner[:-1] - 1, 0)
    comes = Lanes(*(field[who] for field in comes))
    is_new = winner[:-1] > 0

    is_over = cross.can & road.hop_is_last[first]
    is_gone = is_taken[road.origins :] | is_over
    inserted = is_taken[: road.origins]
    shifted = _without_first(lanes, is_gone)
    moved = _inserted(shifted, comes, is_new)
    state, halts = _bands(road, drivers, state, moved, cross, is_gone, now)

    begins_red = ~cross.has_light & ~cross.yields & (head < now + 1.0)
    free = jnp.where(is_gone, cross.moment + rule.headway[road.base + lanes.vehicle[0] % MOVES], state.free)
    lost = drivers.startup_s + jnp.where(cross.shut_in, road.pocket_s, 0.0)
    free = jnp.where(begins_red, jnp.maximum(free, now + 1.0 + lost), free)
    tail = jnp.clip(second + 1 + (cross.moment - now + road.hop_tail[first]).astype(jnp.int32), 0, cfg.leaving_s - 1)
    leaving = state.leaving.at[jnp.where(is_over, tail, cfg.leaving_s)].add(1.0, mode="drop")
    left = state.left + is_gone
    outside = jnp.where(inserted, jnp.maximum(now - depart, 0.0), 0.0)
    delay = jnp.where(is_gone, cross.moment - head, 0.0).sum() + outside.sum()
    state = state._replace(
        now=now + 1.0,
        lanes=moved._replace(wait=moved.wait + halts),
        entered=state.entered + is_new,
        left=left,
        left_at=state.left_at.at[second].set(left),
        free=free,
        inside=cross.yields & (state.inside | is_gone),
        stuck=jnp.where(is_gone | ~halts[0], 0.0, state.stuck + 1.0),
        yellow=yellow,
        inserted=state.inserted + inserted,
        leaving=leaving,
        finished=state.finished + state.leaving[second],
        teleports=state.teleports + (cross.forced & is_gone).sum(),
        delay=state.delay + delay,
    )
    return state, halts


def _best_lanes(road: Road, rule: Rules, state: RoadState, second: Array, cfg: WorldConfig) -> tuple[Array, Array]:
    """[Q] the emptiest lane of each movement that has room, and whether there is one."""
    back_then = jnp.mod(second - 1 - rule.back, cfg.control_s)
    left_then = jnp.take_along_axis(state.left_at, back_then[None], 0)[0]
    taken = state.entered - left_then  # what stands or is not yet known to be gone at the lane's beginning
    over = jnp.append(jnp.maximum(taken - road.pocket, 0), 0)
    together = over[:-1] + over[road.siblings].sum(1)
    has_room = (taken < road.pocket + road.behind) & ((road.behind == 0) | (together < road.behind)) & rule.open
    score = jnp.where(has_room, state.entered - state.left + rule.bias, NEVER)
    score = jnp.append(score, 2 * NEVER)[road.candidates]  # [Q, K]
    place = score.argmin(1)
    return jnp.take_along_axis(road.candidates, place[:, None], 1)[:, 0], score.min(1) < NEVER


def _cross(
    road: Road,
    drivers: Drivers,
    rule: Rules,
    state: RoadState,
    shown: Array,
    yellow: Array,
    best: Array,
    has_room: Array,
    cfg: WorldConfig,
) -> _Crossing:
    """Whether the first of each lane crosses in this second, and when."""
    now, lanes = state.now, state.lanes
    head, move = lanes.ready[0], road.base + lanes.vehicle[0] % MOVES
    is_there = head < NEVER
    is_uncontrolled = (road.tables.stages == 0)[:, None]
    is_green = (shown == GREEN) | is_uncontrolled
    is_ending = (shown == YELLOW) & (yellow <= drivers.yellow_s + 1e-3)
    light = (2 * is_green + is_ending).reshape(-1)[move]  # 2: green, 1: those who roll may still go
    yields, waits = _waits_for_others(road, drivers, state, is_green, move, head)
    # Who waited for a gap crosses when the others stop.
    has_light = (light == 2) & ~(waits & state.inside) | (light == 1) & (state.moves | yields | (head > now - 1.0))

    # Who overflowed a pocket stands in the way of all who came later on the same lane upstream.
    place = jnp.minimum(road.pocket, lanes.ready.shape[0] - 1)
    last = jnp.take_along_axis(lanes.ready, place[None], 0)[0]
    is_over = (road.behind > 0) & (last - road.pocket * REACH_BACK_S <= now)
    over = jnp.append(jnp.where(is_over, last, NEVER), NEVER)
    is_shut_in = over[road.siblings].min(1) < head
    forced = is_there & (state.stuck >= cfg.teleport_s)
    moment = jnp.maximum(jnp.maximum(head, state.free), now)
    moment = jnp.where(forced, jnp.maximum(now, jnp.minimum(moment, now + 0.5)), moment)
    can = is_there & (moment < now + 1.0) & (has_light & ~is_shut_in | forced)
    hop = lanes.vehicle[0] // MOVES
    after = road.hop_movement[jnp.minimum(hop + 1, road.hop_movement.shape[0] - 1)]
    fits = has_room[after] | forced & (
        jnp.append(state.entered - state.left, 0)[best[after]] < lanes.ready.shape[0] - 1
    )
    target = jnp.where(can & ~road.hop_is_last[hop] & fits, best[after], road.lanes)
    return _Crossing(
        moment,
        can,
        has_light & ~is_shut_in & (fits | road.hop_is_last[hop]),
        target,
        forced,
        (light == 2) & waits,
        is_shut_in,
    )


def _waits_for_others(
    road: Road, drivers: Drivers, state: RoadState, is_green: Array, move: Array, head: Array
) -> tuple[Array, Array]:
    """[L] whether the first has to yield where he goes, and whether somebody comes now."""
    signals, movements = road.turn.shape
    stage = state.signal.stage
    yields = jnp.take_along_axis(road.tables.yields, stage[:, None, None], 1)[:, 0]  # [I, M]
    goes = (is_green & ~yields).reshape(-1)[move] & (head < state.now + drivers.gap_s)
    goes = goes.reshape(signals, -1, 1) & (move.reshape(signals, -1, 1) % movements == jnp.arange(movements))
    is_met = (road.conflicts & goes.any(1)[:, None]).any(2)  # [I, M]
    return yields.reshape(-1)[move], (yields & is_met).reshape(-1)[move]


def _departing(state: RoadState) -> tuple[Array, Array, Array]:
    """[O] when the first who waits at each origin wanted to depart, his hop, and whether there is one."""
    hour = state.hour
    trip = jnp.minimum(hour.first[:-1] + state.inserted, hour.depart.shape[0] - 1)
    return hour.depart[trip], hour.hop[trip], state.inserted < state.due


def _without_first(lanes: Lanes, is_gone: Array) -> Lanes:
    """The lanes after their first vehicle left."""

    def moved_up(field: Array, nothing: float) -> Array:
        return jnp.where(is_gone, jnp.concatenate([field[1:], jnp.full_like(field[:1], nothing)]), field)

    return Lanes(moved_up(lanes.ready, NEVER), moved_up(lanes.vehicle, 0), moved_up(lanes.wait, 0))


def _inserted(lanes: Lanes, comes: Lanes, is_new: Array) -> Lanes:
    """The lanes after a vehicle came, behind all who are ready before it."""
    place = jnp.where(is_new, (lanes.ready <= comes.ready).sum(0), lanes.ready.shape[0])
    rows = jnp.arange(lanes.ready.shape[0])[:, None]

    def joined(field: Array, one: Array) -> Array:
        behind = jnp.concatenate([field[:1], field[:-1]])
        return jnp.where(rows < place, field, jnp.where(rows == place, one, behind))

    return Lanes(*(joined(*pair) for pair in zip(lanes, comes, strict=True)))


def _bands(
    road: Road, drivers: Drivers, state: RoadState, lanes: Lanes, cross: _Crossing, is_gone: Array, now: Array
) -> tuple[RoadState, Array]:
    """Which vehicles of the queues halt: not those between the wave of starting and the wave of stopping again."""
    step = 1.0 / drivers.wave_s
    begins = cross.has_light & ~state.moves
    is_rolling = cross.has_light | (state.front > 0)
    front = jnp.where(begins, 0.0, state.front) + step * is_rolling - is_gone
    stop = jnp.where(cross.has_light, 0.0, state.stop + step * is_rolling - is_gone)
    is_over = (stop >= front) | (front < 0) & ~cross.has_light
    front, stop = jnp.where(is_over, 0.0, jnp.maximum(front, 0.0)), jnp.where(is_over, 0.0, jnp.maximum(stop, 0.0))
    rows = jnp.arange(lanes.ready.shape[0])[:, None]
    is_there = lanes.ready - rows * REACH_BACK_S <= now + 1.0
    halts = is_there & ~((rows >= stop) & (rows < front))
    return state._replace(front=front, stop=stop, moves=cross.has_light), halts
