"""The lanes of a compiled road: what each holds, which movements it serves, and who crosses whose way."""

import itertools

import numpy as np
import sumolib
from sumolib.net import Net

from sim.approaches import ways
from sim.eyes import PLACE_M
from sim.network import Network
from sim.stages import Stages
from stream_jax.road.world import LEFT, RIGHT, STRAIGHT

MOST_PLACES = 64  # vehicles of one lane between two signals; longer lanes hold no more
TURNS = {"s": STRAIGHT, "r": RIGHT, "R": RIGHT, "l": LEFT, "L": LEFT, "t": LEFT}


def storage(
    net: Net, network: Network, lanes: dict[str, int], size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Room of each lane at and before its stop edge, seconds along the stop edge, and who begins from the same lane."""
    pocket, behind, seconds = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.float32)
    source: dict[str, list[int]] = {}
    for name, lane in lanes.items():
        here = net.getLane(name)
        pocket[lane] = np.clip(int(here.getLength() / PLACE_M), 1, MOST_PLACES)
        seconds[lane] = here.getLength() / here.getSpeed()
        before = _lane_before(network, here)
        while before is not None:
            if behind[lane] == 0:
                source.setdefault(before.getID(), []).append(lane)
            behind[lane] += max(int(before.getLength() / PLACE_M), 1)
            before = _lane_before(network, before)
    behind = np.minimum(behind, MOST_PLACES - pocket)
    beside = {lane: [other for other in of if other != lane] for of in source.values() for lane in of}
    siblings = np.full((size, max([1, *map(len, beside.values())])), size, np.int32)
    for lane, others in beside.items():
        siblings[lane, : len(others)] = others
    return pocket, behind, seconds, siblings


def _lane_before(network: Network, lane: sumolib.net.lane.Lane) -> sumolib.net.lane.Lane | None:
    """The lane upstream, of the same approach, from which most reach this one; None where an approach begins."""
    edge = lane.getEdge()
    approach = network.approach_of.get(edge.getID())
    found = [
        connection.getFromLane()
        for before in ways(edge.getIncoming())
        if network.approach_of.get(before.getID()) == approach
        for connection in edge.getIncoming()[before]
        if connection.getToLane() is lane
    ]
    return max(found, key=lambda one: (one.getLength(), one.getID()), default=None)


def ways_on(
    network: Network, stages: Stages, lanes: dict[str, int], movements: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lanes that serve each movement, and lanes of the approach that it leads into."""
    wide = stages.tables.phase.shape[1]
    serving: list[set[int]] = [set() for _ in range(movements)]
    leading: list[set[int]] = [set() for _ in range(movements)]
    at_stop: dict[int, set[int]] = {}
    for name, lane in lanes.items():
        at_stop.setdefault(network.approach_of[name.rpartition("_")[0]], set()).add(lane)
    for links in network.links:
        for link in links:
            signal, movement = stages.movement_of[link.edge, link.to_edge]
            serving[signal * wide + movement].add(lanes[link.lane])
            leading[signal * wide + movement] |= at_stop.get(network.approach_of.get(link.to_edge, -1), set())

    def table(sets: list[set[int]], least: int) -> np.ndarray:
        full = np.full((movements, max([least, *map(len, sets)])), size, np.int32)
        for row, of in zip(full, sets, strict=True):
            row[: len(of)] = sorted(of)
        return full

    return table(serving, 2), table(leading, 1)


def lane_phases(network: Network, stages: Stages, lanes: dict[str, int], size: int) -> np.ndarray:
    """The phase whose queue each lane's vehicles count for: that of its first movement that has one."""
    phases = np.zeros(size, np.int32)
    for links in network.links:
        for link in reversed(links):
            served = network.phases_of.get((link.edge, link.to_edge), ())
            if served:
                phases[lanes[link.lane]] = served[0]
    return phases


def turns(network: Network, stages: Stages) -> np.ndarray:
    turns = np.zeros(stages.tables.phase.shape, np.int32)
    for links in network.links:
        for link in links:
            turns[stages.movement_of[link.edge, link.to_edge]] = TURNS.get(link.direction, STRAIGHT)
    return turns


def conflicts(net: Net, network: Network, stages: Stages) -> np.ndarray:
    """[I, M, M] whether the first movement's way crosses or joins the second's, as the junction's own table says."""
    wide = stages.tables.phase.shape[1]
    conflicts = np.zeros((len(network.ids), wide, wide), bool)
    for signal, links in enumerate(network.links):
        for one, other in itertools.permutations(links, 2):
            here, there = (net.getEdge(link.edge).getToNode() for link in (one, other))
            if here is there and one.edge != other.edge and here.areFoes(one.request, other.request):
                first, second = (stages.movement_of[link.edge, link.to_edge][1] for link in (one, other))
                conflicts[signal, first, second] = True
    return conflicts
