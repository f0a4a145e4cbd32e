"""Which edges lead to which stop line and nowhere else, and which signal lies behind them."""

import numpy as np
from sumolib.net import Net
from sumolib.net.edge import Edge


def approaches(net: Net, stop_edges: tuple[str, ...]) -> tuple[dict[str, int], dict[str, float]]:
    """Edge -> approach, and edge -> metres that lie between its end and the stop line.

    An approach is its stop edge, the edges upstream that lead nowhere else, and the junction lanes into any of them.
    """
    approach_of = {edge: index for index, edge in enumerate(stop_edges)}
    beyond = dict.fromkeys(stop_edges, 0.0)
    front = list(stop_edges)
    while front:
        edge = net.getEdge(front.pop())
        for before in ways(edge.getIncoming()):
            if before.getID() not in approach_of and ways(before.getOutgoing()) == [edge]:
                approach_of[before.getID()] = approach_of[edge.getID()]
                beyond[before.getID()] = beyond[edge.getID()] + edge.getLength()
                front.append(before.getID())
    for edge in net.getEdges(withInternal=True):
        for target, connections in edge.getOutgoing().items():
            for connection in connections:
                inside = connection.getViaLaneID().rsplit("_", 1)[0]
                if inside and target.getID() in approach_of:
                    approach_of[inside] = approach_of[target.getID()]
                    beyond[inside] = beyond[target.getID()] + target.getLength()
    return approach_of, beyond


def neighbours(
    net: Net,
    num_signals: int,
    approach_signal: np.ndarray,
    approach_side: np.ndarray,
    approach_of: dict[str, int],
    signal_at: dict[str, int],
) -> np.ndarray:
    """[I, 4] the signal at the upstream end of the approach from each side, or -1."""
    beside = np.full((num_signals, 4), -1, np.int32)
    for name, approach in approach_of.items():
        if not name.startswith(":") and approach_side[approach] >= 0:
            behind = signal_at.get(net.getEdge(name).getFromNode().getID(), -1)
            place = approach_signal[approach], approach_side[approach]
            beside[place] = max(beside[place], behind)
    return beside


def ways(connections: dict) -> list[Edge]:
    """The neighbouring edges of a getIncoming or getOutgoing table, without turnarounds, junctions and footways."""
    return [
        edge
        for edge, ways in connections.items()
        if not edge.getFunction() and any(way.getDirection() != "t" for way in ways)
    ]
