"""The road graph: spatial neighbours, transitions observed in the training part, self-loops; numpy only."""

from typing import NamedTuple

import numpy as np
import shapely
from scipy.spatial import KDTree

MAX_TRANSITIONS = 8  # strongest senders kept for each receiver
MIN_TRANSITIONS = 5  # a rarer transition may be GPS noise
NUM_NEAREST = 8


class Cells(NamedTuple):
    """Where the cells are."""

    ids: np.ndarray  # [N] int64: square number, zone id or sensor index
    position: np.ndarray  # [N, 2] float64, metres east and north of the box's corner
    lonlat: np.ndarray  # [N, 2] float64, centre in degrees
    outline: np.ndarray  # [V, 2] float64, vertices of all cells' outlines in degrees
    outline_start: np.ndarray  # [N + 1] int64, where each cell's vertices start


def square_neighbours(ids: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Ordered pairs of kept squares that share a side or a corner, as indices into `ids`."""
    row, column = np.divmod(ids, columns)
    near = np.maximum(abs(row[:, None] - row), abs(column[:, None] - column)) == 1
    one, other = np.nonzero(near)
    return one, other


def polygon_neighbours(polygons: list) -> tuple[np.ndarray, np.ndarray]:
    """Ordered pairs of polygons within about 20 m of each other (borders in published files rarely match exactly)."""
    one, other = shapely.STRtree(polygons).query(polygons, predicate="dwithin", distance=2e-4)
    return one[one != other], other[one != other]


def nearest_neighbours(position: np.ndarray, count: int = NUM_NEAREST) -> tuple[np.ndarray, np.ndarray]:
    """Each point with its `count` nearest others as senders."""
    count = min(count, len(position) - 1)
    _, index = KDTree(position).query(position, k=count + 1)
    receivers = np.repeat(np.arange(len(position)), count)
    senders = np.array([[j for j in row if j != i][:count] for i, row in enumerate(index.reshape(len(position), -1))])
    return senders.reshape(-1).astype(np.int64), receivers


def build_graph(
    position: np.ndarray, spatial: tuple[np.ndarray, np.ndarray], transitions: np.ndarray
) -> dict[str, np.ndarray]:
    """Edges sorted by receiver, then sender, with their features.

    Args:
        position: [N, 2] metres.
        spatial: senders and receivers of the spatial edges.
        transitions: [N, N] counts from sender (row) to receiver (column), of the training part alone.
    """
    num_cells = len(position)
    transitions = transitions.astype(np.float64) * (1 - np.eye(num_cells))
    near = np.zeros((num_cells, num_cells), bool)
    near[spatial] = True
    near[spatial[::-1]] = True
    linked = near | _strongest(transitions) | np.eye(num_cells, dtype=bool)
    receivers, senders = np.nonzero(linked.T)  # sorted by receiver
    entries = np.maximum(transitions.sum(axis=0), 1)
    distance = np.linalg.norm(position[senders] - position[receivers], axis=1) / 1000
    features = np.stack(
        [distance, transitions[senders, receivers] / entries[receivers], near[senders, receivers]], axis=1
    )
    return {
        "senders": senders.astype(np.int32),
        "receivers": receivers.astype(np.int32),
        "edge_features": features.astype(np.float32),
    }


def _strongest(transitions: np.ndarray) -> np.ndarray:
    """For each receiver the senders with the most transitions; equal counts go to the smaller index."""
    rank = np.argsort(np.argsort(-transitions, axis=0, kind="stable"), axis=0, kind="stable")
    return (rank < MAX_TRANSITIONS) & (transitions >= MIN_TRANSITIONS)
