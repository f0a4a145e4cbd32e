"""Draws an hour of trips: departures are Poisson, goals follow the shares of the hour, routes are those of a table.

The same law as `sim/demand.py`, as a function of a key and of arrays.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.road.world import Hour


class Demand(NamedTuple):
    """Who wants to go where; T pieces of the hour, O origins, D goals, V views of the network."""

    rate: Array  # [T, O] trips a second
    goal: Array  # [T, O, D] probability of each goal
    start_s: Array  # [T] each piece
    end_s: Array  # [T]
    hop: Array  # [O, D, V] int32 first hop of the route, -1 if there is none or it meets no signal
    most: Array  # [N] zeros, as many as there can be trips: later ones would be left out
    closed: Array  # [X] int32 lane
    closed_from: Array  # [X] s
    closed_to: Array  # [X] s


def draw_hour(key: Array, demand: Demand) -> Hour:
    """An hour's trips, sorted by origin and departure."""
    demand = jax.tree.map(jnp.asarray, demand)
    total_key, piece_key, time_key, goal_key, view_key = jax.random.split(key, 5)
    trips, origins = demand.most.shape[0], demand.rate.shape[1]
    mean = (demand.rate * (demand.end_s - demand.start_s)[:, None]).reshape(-1)  # [T * O]
    total = jax.random.poisson(total_key, mean.sum())
    cell = _pick(jax.random.uniform(piece_key, (trips,)), jnp.cumsum(mean)[None] / mean.sum())
    piece, origin = cell // origins, cell % origins
    low, high = demand.start_s[piece], demand.end_s[piece]
    depart = low + jax.random.uniform(time_key, (trips,)) * (high - low)
    goal = _pick(jax.random.uniform(goal_key, (trips,)), jnp.cumsum(demand.goal, -1)[piece, origin])
    view = jax.random.randint(view_key, (trips,), 0, demand.hop.shape[2])
    hop = demand.hop[origin, goal, view]
    is_trip = (jnp.arange(trips) < total) & (hop >= 0)
    origin = jnp.where(is_trip, origin, origins)
    order = jnp.lexsort((depart, origin))
    first = jnp.searchsorted(origin[order], jnp.arange(origins + 1)).astype(jnp.int32)
    closures = demand.closed, demand.closed_from, demand.closed_to
    return Hour(depart[order], jnp.maximum(hop[order], 0), first, *closures)


def _pick(uniform: Array, cumulative: Array) -> Array:
    """[N] the first place at which the cumulative shares [N or 1, D] exceed a uniform number [N]."""
    return jnp.minimum((cumulative <= uniform[:, None]).sum(1), cumulative.shape[1] - 1)
