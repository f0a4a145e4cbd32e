"""Incidents on the road: which lane is closed, and when.

Section 5's incidents, which the paper does not describe. A closure takes one through lane at the stop line.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sim.errors import RoadError
from sim.network import Network


class RoadIncident(NamedTuple):
    """A lane closed for a while."""

    signal: int
    start_s: float  # seconds from the start of the simulation
    end_s: float
    kind: str  # "closure"
    approach: int  # side that the approach comes from: 0..3 N, E, S, W


class Closures:
    """The lanes that a scenario closes, told second by second."""

    def __init__(self, network: Network, incidents: Sequence[RoadIncident]) -> None:
        self._spans = [(closing_lane(network, event), event.start_s, event.end_s) for event in incidents]
        self._closed: set[str] = set()

    def changes(self, second: int) -> list[tuple[str, bool]]:
        """(lane, whether it is closed) of the lanes that change now; a lane stays closed while any incident lasts."""
        closed = {lane for lane, start, end in self._spans if start <= second < end}
        changed = closed ^ self._closed
        self._closed = closed
        return [(lane, lane in closed) for lane in sorted(changed)]


def closing_lane(network: Network, incident: RoadIncident) -> str:
    """The lane at the stop line that is closed: the outermost whose every movement has another lane too.

    The lane at the kerb is spared where right turns depend on it: without it their vehicles could never leave. So is a
    lane that vehicles from some street must cross or use, which would otherwise wait at the junction behind.
    """
    if incident.kind != "closure" or not 0 <= incident.signal < len(network.ids):
        raise RoadError(f"{incident} is no closure at one of the {len(network.ids)} signals")
    places = zip(network.stop_edges, network.approach_signal, network.approach_side, strict=True)
    for edge in (edge for edge, signal, side in places if (signal, side) == (incident.signal, incident.approach)):
        turns = network.lane_turns[edge]
        for lane in turns:
            if _can_be_spared(lane, turns, network.entered[edge]):
                return lane
    raise RoadError(
        f"no lane can be closed on side {incident.approach} of signal {network.ids[incident.signal]}: "
        "there is no such approach, or each lane is some turn's only one"
    )


def _can_be_spared(lane: str, turns: dict[str, tuple[str, ...]], entered: Sequence[frozenset[str]]) -> bool:
    """Whether without this lane every turn can be made, and from every edge upstream: a closed lane is not crossed.

    Args:
        turns: lanes from the kerb -> edges each leads to.
        entered: the lanes that each edge upstream leads into.
    """
    lanes = list(turns)
    place = lanes.index(lane)
    sides = set(lanes[:place]), set(lanes[place + 1 :])
    wanted = {to for leads in turns.values() for to in leads}
    open_to = [set().union(*sides), *(set().union(*(side for side in sides if side & into)) for into in entered)]
    return all({to for one in reached for to in turns[one]} == wanted for reached in open_to)
