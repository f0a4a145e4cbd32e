"""What the signals of a compiled road see: the same `Seen` that SUMO's vehicles give them."""

import jax.numpy as jnp
from jax import Array

from stream_jax.road.second import REACH_BACK_S
from stream_jax.road.tables import Seen
from stream_jax.road.world import MOVES, NEVER, Road, RoadState, WorldConfig

ROOMY = 99.0  # room behind a stop line near which nobody stands


def look(road: Road, state: RoadState, cfg: WorldConfig) -> Seen:
    """What every signal sees now. Places farther back hold several vehicles, with their mean seconds."""
    signals = road.turn.shape[0]
    places, now = min(sum(cfg.places), state.lanes.ready.shape[0]), state.now
    ready, vehicle, wait = (field[:places] for field in state.lanes)
    rows = jnp.arange(places)[:, None]
    eta = jnp.maximum(ready - now, rows * REACH_BACK_S)
    is_seen = eta < cfg.reach_s

    def grouped(field: Array) -> Array:
        """[K, L] sums over the vehicles of each place."""
        sums, row = [], 0
        for size in cfg.places:
            sums.append(field[row : row + size].sum(0))
            row += size
        return jnp.stack(sums)

    count = grouped(1.0 * is_seen)
    several = jnp.maximum(count, 1.0)
    starts = [min(sum(cfg.places[:k]), places - 1) for k in range(len(cfg.places))]
    moves = jnp.stack([vehicle[row] for row in starts]) % MOVES

    def by_signal(field: Array) -> Array:
        """[K, L] -> [I, lanes, K]."""
        return field.reshape(field.shape[0], signals, -1).transpose(1, 2, 0)

    return Seen(
        eta=by_signal(grouped(jnp.where(is_seen, eta, 0.0)) / several),
        count=by_signal(count),
        waited=by_signal(grouped(jnp.where(is_seen, wait, 0.0)) / several),
        movement=by_signal(moves),
        room=_room(road, state),
    )


def _room(road: Road, state: RoadState) -> Array:
    """[I, M] vehicles that fit between the stop line and the end of the shortest queue behind it."""
    rows = jnp.arange(state.lanes.ready.shape[0])[:, None]
    length = (state.lanes.ready - rows * REACH_BACK_S <= state.now).sum(0)  # [L] vehicles that have reached their queue
    free = jnp.where(length > road.pocket, (road.pocket + road.behind - length).astype(jnp.float32), ROOMY)
    free = jnp.append(jnp.where(road.behind > 0, free, ROOMY), -NEVER)[road.exits].max(1)  # [Q]
    return jnp.where(free < 0, ROOMY, free).reshape(road.turn.shape)
