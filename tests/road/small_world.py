"""One signal with a few lanes, and hours of trips through it, for laws that are checked by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.road.controller import GREEN, RED, LookaheadState, start
from stream_jax.road.env import World
from stream_jax.road.tables import make_tables
from stream_jax.road.world import Controller, Hour, Road, WorldConfig, usual_drivers

LANES = 2  # each with its own movement, origin and way out
TRAVEL = 20.0
PLACES = 12
NOBODY = np.full(1, LANES, np.int32), np.zeros(1, np.float32), np.zeros(1, np.float32)


def one_signal(pocket: int = PLACES, behind: int = 0) -> Road:
    """Two lanes, whose vehicles cross one stop line and leave; stage k serves lane k."""
    serves = np.eye(LANES, dtype=bool)
    tables = make_tables([serves], [serves & False], [np.arange(LANES)], [np.full(LANES, 5.0)])
    whole = lambda *values: np.array(values, np.int32)  # noqa: E731
    siblings = [[1], [0]] if behind else [[LANES], [LANES]]
    return Road(
        tables=tables,
        base=whole(0, 0),
        phase=whole(0, 1),
        pocket=whole(pocket, pocket),
        behind=whole(behind, behind),
        pocket_s=np.full(LANES, 5.0, np.float32),
        siblings=np.array(siblings, np.int32),
        candidates=np.array([[0, LANES], [1, LANES]], np.int32),
        exits=np.full((LANES, 1), LANES, np.int32),
        conflicts=np.zeros((1, LANES, LANES), bool),
        turn=np.zeros((1, LANES), np.int32),
        hop_movement=whole(0, 1, 0),
        hop_travel=np.array([TRAVEL, TRAVEL, 0.0], np.float32),
        hop_is_last=np.array([True, True, True]),
        hop_tail=np.array([3.0, 3.0, 0.0], np.float32),
        origin_signal=whole(0, 0),
    )


def hour_of(departures: list[list[float]]) -> Hour:
    """Args: departures: in s, of each lane's trips."""
    first = np.cumsum([0, *map(len, departures)])
    hop = np.repeat(np.arange(len(departures)), list(map(len, departures)))
    depart = np.concatenate([*departures, [0.0]])  # never empty
    return Hour(depart.astype(np.float32), np.append(hop, 0).astype(np.int32), first.astype(np.int32), *NOBODY)


def timed(spans: list[tuple[int, int]], cycle: int) -> Controller:
    """Green for lane k within spans[k] of each cycle, red else, without yellow: exact, to compare with by hand."""

    def advance(state: LookaheadState, seen: object, action: object, tables: object) -> tuple:
        second = jnp.mod(state.timer, cycle)
        shown = [jnp.where((second >= low) & (second < high), GREEN, RED) for low, high in spans]
        return state._replace(timer=state.timer + 1.0), jnp.stack(shown, -1)

    return Controller(start, advance)


def exact_drivers(**changes: float) -> object:
    """Drivers without any chance in them."""
    values = {"time_spread": 0.0, "time_factor": 1.0, "late_s": 0.0, "kerb": 0.0} | changes
    return usual_drivers()._replace(**{name: jnp.asarray(value, jnp.float32) for name, value in values.items()})


def drive(road: Road, hour: Hour, controller: Controller, drivers: object, minutes: int) -> tuple:
    """The states after each control step, and what was measured in it."""
    world = World(road, WorldConfig(), controller)

    def one(state: object, key: object) -> tuple:
        state, measured = world.drive(key, state, jnp.zeros((1, 9)), drivers)
        return state, (state, measured)

    return jax.lax.scan(one, world.begin(hour), jax.random.split(jax.random.key(0), minutes))[1]
