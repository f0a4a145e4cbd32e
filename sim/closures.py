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

    The lane at the kerb is spared where right turns depend on it: without it their vehicles could never leave.
    """
    if incident.kind != "closure" or not 0 <= incident.signal < len(network.ids):
        raise RoadError(f"{incident} is no closure at one of the {len(network.ids)} signals")
    places = zip(network.stop_edges, network.approach_signal, network.approach_side, strict=True)
    for edge in (edge for edge, signal, side in places if (signal, side) == (incident.signal, incident.approach)):
        turns = network.lane_turns[edge]
        for lane, leads_to in turns.items():
            others = {to for other, leads in turns.items() if other != lane for to in leads}
            if set(leads_to) <= others:
                return lane
    raise RoadError(
        f"no lane can be closed on side {incident.approach} of signal {network.ids[incident.signal]}: "
        "there is no such approach, or each lane is some turn's only one"
    )
