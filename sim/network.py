"""Builds a grid of NEMA intersections, or reads any SUMO network, into what controllers and sessions need to know.

Section 5 controls a 4×4 grid. Links have two lanes and widen by a left-turn lane before each signal; every grid
intersection has four legs, those at the rim end in fringe edges where trips begin and end.
"""

import dataclasses
import math
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sumolib
from sumolib.net import Net
from sumolib.net.edge import Edge

from sim.approaches import approaches, neighbours, ways
from sim.binaries import find_binary
from sim.errors import RoadError
from sim.georeference import signal_lonlat
from sim.movements import Link, Movements, lanes_entered, movements_of, signal_links
from sim.sumocfg import is_sumocfg, read_sumocfg
from stream_jax import store


@dataclasses.dataclass(frozen=True)
class GridConfig:
    """A size × size grid; the paper gives only 4×4."""

    size: int = 4
    link_m: float = 300.0
    turn_lane_m: float = 80.0  # length of the left-turn lane
    lanes: int = 2
    speed_mps: float = 13.89

    def __post_init__(self) -> None:
        if not 2 <= self.size <= 10:
            raise RoadError(f"a grid has between 2 and 10 intersections a side, got {self.size}")
        if not (self.turn_lane_m >= 40.0 and self.link_m >= self.turn_lane_m + 40.0 and self.speed_mps > 0):
            raise RoadError("turn lanes must be at least 40 m long, links 40 m longer than them, and speed positive")
        if not 1 <= self.lanes <= 4:
            raise RoadError(f"a link has between 1 and 4 lanes, got {self.lanes}")


class Network(NamedTuple):
    """A road network as controllers see it.

    An approach is an incoming edge of a signal with every edge upstream from which no vehicle can turn elsewhere: a
    vehicle there meets that signal next. Vehicles inside a junction belong to the approach that they drive into.
    """

    net_file: Path
    ids: tuple[str, ...]  # [I] signals, row-major from the south-west
    position: np.ndarray  # [I, 2] metres
    phase_lanes: tuple[tuple[tuple[str, ...], ...], ...]  # [I][8] incoming lanes of each phase, empty: no such phase
    phase_links: tuple[tuple[tuple[int, ...], ...], ...]  # [I][8] signal link indices of each phase
    num_links: tuple[int, ...]  # [I] length of the signal's state string
    neighbours: np.ndarray  # [I, 4] int32 next signal to the north, east, south, west, or -1
    entries: tuple[str, ...]  # fringe edges where trips begin
    exits: tuple[str, ...]  # fringe edges where trips end
    entry_signal: np.ndarray  # [entries] int32 adjacent signal, or the nearest where none is adjacent
    exit_signal: np.ndarray  # [exits] int32
    is_nema: np.ndarray  # [I] bool; the phases of other signals are the green phases of their own program, in order
    green_states: tuple[tuple[str, ...], ...]  # [I][8] state string with this phase alone green
    stop_edges: tuple[str, ...]  # [A] the approach's edge at the stop line
    approach_signal: np.ndarray  # [A] int32
    approach_side: np.ndarray  # [A] int32 side that the approach comes from (0..3 N, E, S, W), -1 where unclear
    approach_of: dict[str, int]  # edge, also inside junctions -> approach
    phase_of: dict[tuple[str, str], int]  # stop edge, next edge -> phase, the first that serves the movement
    phases_of: dict[tuple[str, str], tuple[int, ...]]  # all that serve it: several where a program of its own does
    stop_distance: dict[str, float]  # lane on an approach -> metres from its beginning to the stop line
    lane_turns: dict[str, dict[str, tuple[str, ...]]]  # stop edge -> its lanes from the kerb -> edges each leads to
    feeds: tuple[tuple[tuple[int, ...], ...], ...]  # [I][8] approaches that the phase's vehicles drive into
    entered: dict[str, tuple[frozenset[str], ...]]  # stop edge -> its lanes that each edge upstream leads into
    links: tuple[tuple[Link, ...], ...]  # [I] connections that the signal controls
    own_greens: tuple[tuple[str, ...], ...]  # [I] green states of the signal's own program, however many
    lonlat: np.ndarray | None  # [I, 2] degrees, where the file says how it was projected


def build_grid(cfg: GridConfig, cache: Path) -> Network:
    """The grid, generated once into the folder `cache` under a name that holds the configuration's hash."""
    net_file = Path(cache) / f"grid-{cfg.size}x{cfg.size}-{store.key('network', cfg)}.net.xml"
    if not net_file.exists():
        with store.whole_file(net_file) as draft:
            _generate(cfg, draft)
    return read_network(net_file)


def read_network(path: Path) -> Network:
    """Reads a .net.xml, or the network that a .sumocfg names."""
    net_file = _net_file(Path(path))
    try:
        net = sumolib.net.readNet(str(net_file), withPrograms=True, withInternal=True)
    except Exception as error:
        raise RoadError(f"{net_file} is no readable SUMO network: {error}") from error
    signals = [tls for tls in net.getTrafficLights() if tls.getConnections()]
    if not signals:
        raise RoadError(f"{net_file} has no traffic signals to control; build some with netconvert --tls.guess")
    links = {tls.getID(): signal_links(tls) for tls in signals}
    stops = {name: [net.getEdge(e) for e in sorted({link.edge for link in of})] for name, of in links.items()}
    place = {name: np.mean([edge.getToNode().getCoord()[:2] for edge in edges], 0) for name, edges in stops.items()}
    signals.sort(key=lambda tls: (round(place[tls.getID()][1]), round(place[tls.getID()][0]), tls.getID()))
    movements = []
    for tls in signals:
        bearings = {edge.getID(): _bearing(edge) for edge in stops[tls.getID()]}
        movements.append(movements_of(tls, links[tls.getID()], bearings))
    ids = [tls.getID() for tls in signals]
    position = np.array([place[name] for name in ids], np.float32)
    return _assemble(net_file, net, ids, movements, position, [links[name] for name in ids])


def _assemble(
    net_file: Path, net: Net, ids: list[str], movements: list[Movements], position: np.ndarray, links: list[list[Link]]
) -> Network:
    stop_edges = tuple(edge for moves in movements for edge in sorted(moves.sides))
    approach_signal = np.array([i for i, moves in enumerate(movements) for _ in moves.sides], np.int32)
    approach_side = np.array([m.sides[edge] for m in movements for edge in sorted(m.sides)], np.int32)
    approach_of, beyond = approaches(net, stop_edges)
    signal_at = {net.getEdge(e).getToNode().getID(): i for e, i in zip(stop_edges, approach_signal, strict=True)}
    entries, exits, entry_signal, exit_signal = _fringe(net, approach_signal, approach_of, signal_at, position)
    phases_of, feeds = _phase_tables(movements, links, approach_of)
    return Network(
        net_file=net_file,
        ids=tuple(ids),
        position=position,
        phase_lanes=tuple(moves.lanes for moves in movements),
        phase_links=tuple(moves.links for moves in movements),
        num_links=tuple(moves.num_links for moves in movements),
        neighbours=neighbours(net, len(ids), approach_signal, approach_side, approach_of, signal_at),
        entries=entries,
        exits=exits,
        entry_signal=entry_signal,
        exit_signal=exit_signal,
        is_nema=np.array([moves.is_nema for moves in movements], bool),
        green_states=tuple(moves.green_states for moves in movements),
        stop_edges=stop_edges,
        approach_signal=approach_signal,
        approach_side=approach_side,
        approach_of=approach_of,
        phase_of={turn: phases[0] for turn, phases in phases_of.items()},
        phases_of=phases_of,
        stop_distance={
            lane.getID(): lane.getLength() + metres
            for edge, metres in beyond.items()
            for lane in net.getEdge(edge).getLanes()
        },
        lane_turns=_lane_turns(links),
        feeds=feeds,
        entered={edge: lanes_entered(net.getEdge(edge)) for edge in stop_edges},
        links=tuple(tuple(signal) for signal in links),
        own_greens=tuple(moves.own_greens for moves in movements),
        lonlat=signal_lonlat(net, position),
    )


def _fringe(
    net: Net, approach_signal: np.ndarray, approach_of: dict[str, int], signal_at: dict[str, int], position: np.ndarray
) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray, np.ndarray]:
    """The edges where trips begin and end, and the signal beside each."""
    edges = [edge for edge in net.getEdges(withInternal=False) if edge.allows("passenger")]
    entries = tuple(sorted(edge.getID() for edge in edges if not ways(edge.getIncoming())))
    exits = tuple(sorted(edge.getID() for edge in edges if not ways(edge.getOutgoing())))
    beside = {edge: int(approach_signal[approach_of[edge]]) for edge in entries if edge in approach_of}
    starts = {edge: net.getEdge(edge).getFromNode().getID() for edge in exits}
    beside |= {edge: int(signal_at[node]) for edge, node in starts.items() if node in signal_at}

    def signals(names: tuple[str, ...]) -> np.ndarray:
        return np.array([beside[e] if e in beside else _nearest(net, e, position) for e in names], np.int32)

    return entries, exits, signals(entries), signals(exits)


def _phase_tables(
    movements: list[Movements], links: list[list[Link]], approach_of: dict[str, int]
) -> tuple[dict[tuple[str, str], tuple[int, ...]], tuple]:
    """The phases of each movement, and the approaches that each phase feeds."""
    phases_of: dict[tuple[str, str], tuple[int, ...]] = {}
    feeds = []
    for moves, signal in zip(movements, links, strict=True):
        fed: list[set[int]] = [set() for _ in moves.links]
        for phase, indices in enumerate(moves.links):
            for link in (link for link in signal if link.index in indices):
                served = phases_of.get((link.edge, link.to_edge), ())
                phases_of[link.edge, link.to_edge] = served if phase in served else (*served, phase)
                fed[phase] |= {approach_of[link.to_edge]} if link.to_edge in approach_of else set()
        feeds.append(tuple(tuple(sorted(approaches)) for approaches in fed))
    return phases_of, tuple(feeds)


def _lane_turns(links: list[list[Link]]) -> dict[str, dict[str, tuple[str, ...]]]:
    turns: dict[str, dict[str, tuple[str, ...]]] = {}
    for link in sorted((link for signal in links for link in signal), key=lambda link: link.lane):
        lanes = turns.setdefault(link.edge, {})
        lanes[link.lane] = (*lanes.get(link.lane, ()), link.to_edge)
    return turns


def _generate(cfg: GridConfig, net_file: Path) -> None:
    options = {
        "--grid.number": cfg.size,
        "--grid.length": cfg.link_m,
        "--grid.attach-length": cfg.link_m,
        "--default.lanenumber": cfg.lanes,
        "--default.speed": cfg.speed_mps,
        "--turn-lanes": 1,
        "--turn-lanes.length": cfg.turn_lane_m,
        "--default-junction-type": "traffic_light",
        "--no-turnarounds": "true",
        "--output-file": net_file,
    }
    command = [find_binary("netgenerate"), "--grid", *(str(part) for option in options.items() for part in option)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise RoadError(f"netgenerate could not build the grid: {made.stderr.strip().splitlines()[-1:]}")


def _net_file(path: Path) -> Path:
    if not path.exists():
        raise RoadError(f"{path} does not exist; give a SUMO network (.net.xml) or configuration (.sumocfg)")
    return read_sumocfg(path).network if is_sumocfg(path) else path.resolve()


def _bearing(edge: Edge) -> float:
    """Where the edge comes from, seen from its end, degrees clockwise from north."""
    (x0, y0), (x1, y1) = np.asarray(edge.getShape(), float)[-2:, :2].tolist()
    return math.degrees(math.atan2(x0 - x1, y0 - y1)) % 360.0


def _nearest(net: Net, edge: str, position: np.ndarray) -> int:
    here = np.mean([point[:2] for point in net.getEdge(edge).getShape()], 0)
    return int(np.argmin(((position - here) ** 2).sum(1)))


def file_name(path: Path) -> str:
    """The name of a network's file, or one of trips, without its endings."""
    return re.sub(r"(\.gz|\.xml|\.net|\.rou|\.sumocfg)+$", "", path.name)
