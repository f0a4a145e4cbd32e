"""Makes a compiled road of any network and the routes through it, and says what it cannot represent.

A route becomes the stop lines that it crosses, with the seconds in between at the speed limits. What lies between two
signals, junctions without signals included, is a way of so many seconds that holds so many vehicles.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import sumolib
from jax import Array
from sumolib.net import Net

from sim.closures import closing_lane
from sim.compiled_lanes import MOST_PLACES, conflicts, lane_phases, storage, turns, ways_on
from sim.errors import RoadError
from sim.eyes import Ways, read_ways
from sim.network import Network
from sim.routes import read_departures
from sim.session import Scenario
from sim.stages import OWN_MIN_GREEN_S, Programs, Stages, read_stages
from stream_jax.road.world import MOVES, Hour, Road
from stream_jax.types import on_host

CLOSURES = 4  # of an hour


class Compiled(NamedTuple):
    """A road, and where the routes and lanes of SUMO are in it."""

    road: Road
    stages: Stages
    hops: dict[str, int]  # edges of a route -> its first hop, -1 where it meets no signal
    origins: dict[str, int]  # first edge of a route -> origin
    lanes: dict[str, int]  # lane at a stop line -> lane
    left_out: tuple[str, ...]  # what is not represented, in sentences


class _Hop(NamedTuple):
    movement: int
    travel: float
    tail: float
    is_last: bool


def compile_road(
    network: Network, routes: Iterable[str], programs: Programs = "nema", own_min_green_s: float = OWN_MIN_GREEN_S
) -> Compiled:
    """A road for these routes.

    Args:
        routes: edges of each, separated by spaces; repeated ones count once.
        programs: as `sim.stages.read_stages` has it, so that the stages are those that drive SUMO.
        own_min_green_s: likewise.
    """
    stages = read_stages(network, programs, own_min_green_s)
    net = sumolib.net.readNet(str(network.net_file), withInternal=True)
    way = read_ways(network.net_file)
    if stages.tables.serves.shape[2] > MOVES:
        raise RoadError(f"a signal has more than {MOVES} movements, which a compiled road cannot number")
    rows = [sorted({link.lane for link in links}) for links in network.links]
    most = max(map(len, rows))
    lanes = {lane: signal * most + row for signal, of in enumerate(rows) for row, lane in enumerate(of)}
    hops, first, origins = _hops(dict.fromkeys(routes), stages, way)
    if not hops:
        raise RoadError(f"no route through {network.net_file} meets a signal")
    shape, movements = len(rows) * most, len(rows) * stages.tables.phase.shape[1]
    pocket, behind, pocket_s, siblings = storage(net, network, lanes, shape)
    candidates, exits = ways_on(network, stages, lanes, movements, shape)
    of_signal = stages.tables.phase.shape[1]
    road = Road(
        tables=stages.tables,
        base=on_host(np.arange(shape, dtype=np.int32) // most * of_signal),
        phase=on_host(lane_phases(network, stages, lanes, shape)),
        pocket=on_host(pocket),
        behind=on_host(behind),
        pocket_s=on_host(pocket_s),
        siblings=on_host(siblings),
        candidates=on_host(candidates),
        exits=on_host(exits),
        conflicts=on_host(conflicts(net, network, stages)),
        turn=on_host(turns(network, stages)),
        hop_movement=on_host(np.array([hop.movement for hop in hops] + [0], np.int32)),
        hop_travel=on_host(np.array([hop.travel for hop in hops] + [0.0], np.float32)),
        hop_is_last=on_host(np.array([hop.is_last for hop in hops] + [True])),
        hop_tail=on_host(np.array([hop.tail for hop in hops] + [0.0], np.float32)),
        origin_signal=on_host(np.array([hops[hop].movement for hop in origins.values()], np.int32) // of_signal),
    )
    told = _left_out(network, stages, pocket, behind, first, way, net)
    return Compiled(road, stages, first, {edge: k for k, edge in enumerate(origins)}, lanes, told)


def hour_of(compiled: Compiled, network: Network, scenario: Scenario) -> Hour:
    """The trips and closures of a scenario of SUMO's, as the compiled road lives through them."""
    trips = read_departures(scenario.route_file)
    unknown = {edges for _, edges in trips} - compiled.hops.keys()
    if unknown:
        raise RoadError(f"{scenario.route_file} has routes that the road was not compiled for: {min(unknown)}")
    known = [
        (compiled.origins[edges.split(" ", 1)[0]], depart - scenario.begin_s, compiled.hops[edges])
        for depart, edges in trips
        if compiled.hops[edges] >= 0
    ]
    known.sort(key=lambda trip: trip[:2])
    origin, depart, hop = (np.array(column) for column in zip(*known, strict=True))
    closed = [(compiled.lanes[closing_lane(network, one)], one.start_s, one.end_s) for one in scenario.incidents]
    closed = (closed + [(compiled.road.lanes, 0.0, 0.0)] * CLOSURES)[: max(CLOSURES, len(closed))]
    lane, begin, end = (np.array(column) for column in zip(*closed, strict=True))
    first = np.searchsorted(origin, np.arange(len(compiled.origins) + 1))
    return Hour(
        jnp.asarray(depart, jnp.float32),
        jnp.asarray(hop, jnp.int32),
        jnp.asarray(first, jnp.int32),
        jnp.asarray(lane, jnp.int32),
        jnp.asarray(begin, jnp.float32),
        jnp.asarray(end, jnp.float32),
    )


def joined(hours: Sequence[Hour]) -> Hour:
    """Several hours as one batch: shorter lists of trips are filled up behind their end."""
    most, closures = (max(getattr(hour, name).shape[0] for hour in hours) for name in ("depart", "closed"))

    def filled(field: Array, length: int, value: float) -> np.ndarray:
        return np.concatenate([np.asarray(field), np.full(length - len(field), value, field.dtype)])

    def stacked(name: str, length: int, value: float) -> Array:
        return on_host(np.stack([filled(getattr(hour, name), length, value) for hour in hours]))

    return Hour(
        depart=stacked("depart", most, 0),
        hop=stacked("hop", most, 0),
        first=on_host(np.stack([np.asarray(hour.first) for hour in hours])),
        closed=stacked("closed", closures, 2**30),
        closed_from=stacked("closed_from", closures, 0),
        closed_to=stacked("closed_to", closures, 0),
    )


def _hops(routes: Iterable[str], stages: Stages, way: Ways) -> tuple[list[_Hop], dict[str, int], dict[str, int]]:
    """All hops, the first of each route, and the first hop of the first route from each origin."""
    hops: list[_Hop] = []
    first: dict[str, int] = {}
    origins: dict[str, int] = {}
    wide = stages.tables.phase.shape[1]
    for route in routes:
        edges, seconds, begin = route.split(), 0.0, len(hops)
        for edge, after in itertools.pairwise(edges):
            seconds += way.length[edge] / way.speed[edge]
            place = stages.movement_of.get((edge, after))
            if place is not None:
                hops.append(_Hop(place[0] * wide + place[1], seconds, 0.0, False))
                seconds = 0.0
            seconds += way.inside.get((edge, after), 0.0) / way.speed[edge]
        seconds += way.length[edges[-1]] / way.speed[edges[-1]]
        first[route] = begin if len(hops) > begin else -1
        if len(hops) > begin:
            hops[-1] = hops[-1]._replace(tail=seconds, is_last=True)
            origins.setdefault(edges[0], begin)
    return hops, first, origins


def _left_out(
    network: Network, stages: Stages, pocket: np.ndarray, behind: np.ndarray, first: dict[str, int], way: Ways, net: Net
) -> tuple[str, ...]:
    """What is not represented, said rather than guessed."""
    told = []
    free = [name for name, count in zip(network.ids, stages.tables.stages, strict=True) if count == 0]
    if free:
        told.append(f"{len(free)} signals have nothing to choose and are always green: {', '.join(free[:5])}")
    away = sum(hop < 0 for hop in first.values())
    if away:
        told.append(f"{away} of {len(first)} routes meet no signal; their vehicles are left out")
    full = int((pocket + behind >= MOST_PLACES).sum())
    if full:
        told.append(f"{full} lanes are longer than the {MOST_PLACES} vehicles that they can hold")
    crossed = {turn for route in first for turn in itertools.pairwise(route.split()) if turn not in stages.movement_of}
    nodes = {node.getID() for edge, _ in crossed if _gives_way(node := net.getEdge(edge).getToNode())}
    if nodes:
        told.append(f"{len(nodes)} junctions without signals cost no time and never fill, such as {min(nodes)}")
    return tuple(told)


def _gives_way(node: sumolib.net.node.Node) -> bool:
    """Whether ways cross or join here."""
    return len(node.getIncoming()) > 1 and len(node.getOutgoing()) > 0
