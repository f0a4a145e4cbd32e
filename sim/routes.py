"""Routes through any SUMO network: shortest paths under several perceptions of travel time, so that drivers differ.

An edge of the road is a node here and a permitted turn is an arc, so turns can have a price. SUMO's own router could do
this too, but takes a process and a second for each scenario; a network is read once and routed in milliseconds.
"""

import gzip
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
import sumolib

from sim.errors import RoadError
from sim.network import Network

TURN_S = {"s": 0.5, "r": 4.0, "R": 4.0, "l": 12.0, "L": 12.0}  # time that a turn is thought to cost; ours
PERCEPTION_SD = 0.25  # of the log factor by which a driver misjudges an edge; ours
NO_PATH = -9999  # scipy's predecessor of what cannot be reached


class Roads(NamedTuple):
    """Edges of a network and the turns between them."""

    ids: tuple[str, ...]  # [M]
    time_s: np.ndarray  # [M] at the speed limit
    turn_from: np.ndarray  # [A] edge
    turn_to: np.ndarray  # [A] edge
    turn_s: np.ndarray  # [A] price of the turn
    origins: np.ndarray  # [O] edges where trips may begin
    origin_signal: np.ndarray  # [O] intersection that such a trip meets first
    origin_is_entry: np.ndarray  # [O] bool: at the fringe
    goals: np.ndarray  # [D] edges where trips may end
    goal_signal: np.ndarray  # [D] intersection that such a trip leaves last
    goal_is_exit: np.ndarray  # [D] bool


class Paths(NamedTuple):
    """Shortest paths from every origin, under each perception."""

    before: np.ndarray  # [K, O, M] previous edge on the way, NO_PATH where there is none
    reachable: np.ndarray  # [O, D] bool: there is a way, and it is longer than one edge


def read_roads(network: Network) -> Roads:
    """Reads edges and turns; trips begin at the fringe or just behind an intersection, and end likewise."""
    net = sumolib.net.readNet(str(network.net_file))
    edges = net.getEdges(withInternal=False)
    index = {edge.getID(): i for i, edge in enumerate(edges)}
    turns = [
        (i, index[target.getID()], TURN_S[link.getDirection()])
        for i, edge in enumerate(edges)
        for target, links in edge.getOutgoing().items()
        for link in links[:1]
        if target.getID() in index and link.getDirection() in TURN_S
    ]
    if not turns:
        raise RoadError(f"{network.net_file} has no turns between edges, so no trip can cross it.")
    turn_from, turn_to, turn_s = (np.array(column) for column in zip(*turns, strict=True))
    signal_at = {
        net.getEdge(stop).getToNode().getID(): int(signal)
        for stop, signal in zip(network.stop_edges, network.approach_signal, strict=True)
    }
    inner = [
        (i, signal_at[edge.getFromNode().getID()], int(network.approach_signal[network.approach_of[edge.getID()]]))
        for i, edge in enumerate(edges)
        if edge.getFromNode().getID() in signal_at and edge.getID() in network.approach_of
    ]
    inner_edges = [i for i, _, _ in inner]
    return Roads(
        tuple(index),
        np.array([edge.getLength() / edge.getSpeed() for edge in edges]),
        turn_from,
        turn_to,
        turn_s,
        np.array([index[name] for name in network.entries] + inner_edges),
        np.array([*network.entry_signal, *(toward for _, _, toward in inner)], int),
        np.arange(len(network.entries) + len(inner)) < len(network.entries),
        np.array([index[name] for name in network.exits] + inner_edges),
        np.array([*network.exit_signal, *(start for _, start, _ in inner)], int),
        np.arange(len(network.exits) + len(inner)) < len(network.exits),
    )


def find_paths(roads: Roads, rng: np.random.Generator, perceptions: int) -> Paths:
    """Shortest paths under `perceptions` random views of the edges' travel times."""
    size = len(roads.ids)
    before = []
    for _ in range(perceptions):
        seen_s = roads.time_s * np.exp(PERCEPTION_SD * rng.standard_normal(size))
        cost = seen_s[roads.turn_to] + roads.turn_s
        graph = scipy.sparse.csr_matrix((cost, (roads.turn_from, roads.turn_to)), shape=(size, size))
        _, previous = scipy.sparse.csgraph.dijkstra(graph, indices=roads.origins, return_predecessors=True)
        before.append(previous)
    reachable = before[0][:, roads.goals] != NO_PATH  # also false from an edge to itself
    return Paths(np.stack(before), reachable)


def edges_of(roads: Roads, paths: Paths, perception: int, origin: int, goal: int) -> tuple[int, ...]:
    """The edges of a trip, in order. Args: origin and goal: positions in `roads.origins` and `roads.goals`."""
    previous, first = paths.before[perception, origin], roads.origins[origin]
    way = [roads.goals[goal]]
    while way[-1] != first:
        way.append(previous[way[-1]])
    return tuple(int(edge) for edge in reversed(way))


def read_trips(path: Path) -> list[str]:
    """Edges of each trip of a route file that `sim/demand.py` wrote."""
    return re.findall(r'<route edges="([^"]*)"', Path(path).read_text())


def read_departures(path: Path) -> list[tuple[float, str]]:
    """Departure in s and edges of every vehicle of a route file, in order of departure.

    Raises RoadError where a vehicle's edges are not written out: SUMO's duarouter does that.
    """
    with gzip.open(path) if Path(path).suffix == ".gz" else open(path, "rb") as stream:
        root = ET.parse(stream).getroot()
    routes = {route.get("id"): route.get("edges") for route in root.iter("route") if route.get("id")}
    vehicles = []
    for vehicle in root.iter("vehicle"):
        own = vehicle.find("route")
        edges = routes.get(vehicle.get("route")) if own is None else own.get("edges")
        if not edges:
            raise RoadError(f"vehicle {vehicle.get('id')} of {path} has no edges; let duarouter write them")
        vehicles.append((float(vehicle.get("depart", "0")), " ".join(edges.split())))
    if not vehicles or root.find("trip") is not None or root.find("flow") is not None:
        raise RoadError(f"{path} has flows or trips without edges; let duarouter write vehicles with routes")
    return sorted(vehicles, key=lambda one: one[0])


def phase_counts(network: Network, trips: list[str]) -> np.ndarray:
    """How many of the trips pass each phase of each intersection, [I, 8]. Args: trips: edges of each, in order."""
    counts = np.zeros((len(network.ids), 8))
    signal_of = dict(zip(network.stop_edges, network.approach_signal.tolist(), strict=True))
    for trip in trips:
        for turn in itertools.pairwise(trip.split()):
            if turn in network.phase_of:
                counts[signal_of[turn[0]], network.phase_of[turn]] += 1
    return counts
