"""Sorts the links of one signal into NEMA phases, or into the green phases of its own program.

Section 4.3 assumes NEMA signals. A four-legged intersection whose lefts have lanes of their own is one; any other
signal keeps the green phases that its own program has, served in their order.
"""

from typing import NamedTuple

import numpy as np
from sumolib.net import TLS
from sumolib.net.edge import Edge

from stream_jax.task import PHASES

NORTH, EAST, SOUTH, WEST = range(4)
THROUGH = {NORTH: 3, EAST: 5, SOUTH: 7, WEST: 1}  # index of NEMA phases 4, 6, 8, 2
LEFT = {NORTH: 6, EAST: 0, SOUTH: 2, WEST: 4}  # 7, 1, 3, 5: compatible with the through of the same approach
YIELDS = "rRt"
_TOGETHER = [(p, q) for p in range(4) for q in range(4, 8) if p // 2 == q // 2 - 2]  # phases that may be green at once


class Movements(NamedTuple):
    """One signal's phases."""

    is_nema: bool
    links: tuple[tuple[int, ...], ...]  # [8] signal link indices
    lanes: tuple[tuple[str, ...], ...]  # [8] incoming lanes
    green_states: tuple[str, ...]  # [8] the signal's state string with this phase alone green, "" where there is none
    own_greens: tuple[str, ...]  # green states of the signal's own program, in order and without repetition
    num_links: int
    sides: dict[str, int]  # incoming edge -> side of the world it comes from, -1 where it cannot be said


class Link(NamedTuple):
    """One connection that the signal controls."""

    index: int
    lane: str
    edge: str
    to_edge: str
    direction: str  # l, s or r; L and R slight turns, t turnaround
    request: int  # its number in the junction's own table of foes


def signal_links(tls: TLS) -> list[Link]:
    """The connections of a signal, by link index."""
    links = []
    for from_lane, to_lane, index in tls.getConnections():
        found = [c for c in from_lane.getOutgoing() if c.getToLane() is to_lane and c.getTLLinkIndex() == index]
        edges = from_lane.getEdge().getID(), to_lane.getEdge().getID()
        links.append(Link(index, from_lane.getID(), *edges, found[0].getDirection(), found[0].getJunctionIndex()))
    return sorted(links)


def lanes_entered(edge: Edge) -> tuple[frozenset[str], ...]:
    """The lanes of an edge that each edge before it leads into."""
    arriving = [connections for before, connections in edge.getIncoming().items() if not before.getFunction()]
    return tuple(frozenset(one.getToLane().getID() for one in connections) for connections in arriving)


def movements_of(tls: TLS, links: list[Link], bearings: dict[str, float]) -> Movements:
    """One signal's phases. Args: bearings: incoming edge -> direction it comes from, degrees clockwise from north."""
    program = _program(tls)
    num_links = max([len(state) for state in program] + [link.index + 1 for link in links])
    own_greens = _own_greens(program)
    sides = _sides(bearings)
    by_phase = _nema_phases(links, sides)
    is_nema = by_phase is not None and not _has_foes(tls, by_phase)
    if by_phase is not None and is_nema:
        states = [_nema_state(phase, num_links) if phase else "" for phase in by_phase]
    else:
        states = _own_phases(own_greens)
        by_phase = [[link for link in links if link.index < len(s) and s[link.index] in "Gg"] for s in states]
    return Movements(
        is_nema=is_nema,
        links=tuple(tuple(sorted({link.index for link in phase})) for phase in by_phase),
        lanes=tuple(tuple(sorted({link.lane for link in phase})) for phase in by_phase),
        green_states=tuple(states),
        own_greens=tuple(own_greens),
        num_links=num_links,
        sides=sides,
    )


def _sides(bearings: dict[str, float]) -> dict[str, int]:
    """The nearest side of the world for each leg; four legs get one side each, in their order around the junction."""
    edges = sorted(bearings, key=bearings.__getitem__)
    angles = np.array([bearings[edge] for edge in edges])
    if len(edges) == 4:

        def misfit(turn: int) -> float:
            off = (angles - 90.0 * ((np.arange(4) + turn) % 4) + 180.0) % 360.0 - 180.0
            return float(np.abs(off).sum())

        turn = min(range(4), key=misfit)
        return {edge: (k + turn) % 4 for k, edge in enumerate(edges)}
    sides = [round(float(angle) / 90.0) % 4 for angle in angles]
    return {edge: side if sides.count(side) == 1 else -1 for edge, side in zip(edges, sides, strict=True)}


def _nema_phases(links: list[Link], sides: dict[str, int]) -> list[list[Link]] | None:
    """[8] links of each phase, or None where the signal is no four-legged one with separate left lanes."""
    if sorted(sides.values()) != [NORTH, EAST, SOUTH, WEST]:
        return None
    phases: list[list[Link]] = [[] for _ in range(PHASES)]
    for link in links:
        is_left = link.direction in "lLt"
        phases[(LEFT if is_left else THROUGH)[sides[link.edge]]].append(link)
    lanes = [{link.lane for link in phase} for phase in phases]
    is_shared = any(lanes[LEFT[side]] & lanes[THROUGH[side]] for side in range(4))
    has_through = all(lanes[THROUGH[side]] for side in range(4))
    return phases if has_through and not is_shared else None


def _has_foes(tls: TLS, phases: list[list[Link]]) -> bool:
    """Whether paths of phases that may be green together cross, right turns (which yield) left out."""
    junctions = {from_lane.getEdge().getToNode() for from_lane, _, _ in tls.getConnections()}
    if len(junctions) > 1:
        return True  # a joined signal: its links are not in one table
    (junction,) = junctions
    firm = [[link.request for link in phase if link.direction not in YIELDS] for phase in phases]
    return any(junction.areFoes(a, b) for p, q in _TOGETHER for a in firm[p] for b in firm[q])


def _nema_state(phase: list[Link], num_links: int) -> str:
    """Right turns yield (g): they may meet the left turn that is green beside them."""
    state = ["r"] * num_links
    for link in phase:
        state[link.index] = "g" if link.direction in YIELDS else "G"
    return "".join(state)


def _program(tls: TLS) -> list[str]:
    """The state strings of the signal's first program."""
    for program in tls.getPrograms().values():
        return [phase.state for phase in program.getPhases()]
    return []


def _own_greens(program: list[str]) -> list[str]:
    """The program's green states."""
    greens = [state for state in program if set(state) & set("Gg") and not set(state) & set("yYuU")]
    return list(dict.fromkeys(greens))


def _own_phases(greens: list[str]) -> list[str]:
    """[8] the green states; all empty, so that SUMO keeps its program, when there is nothing to choose or too much."""
    kept = greens if 2 <= len(greens) <= PHASES else []
    return kept + [""] * (PHASES - len(kept))
