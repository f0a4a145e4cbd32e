"""Which cells of a city belong to which intersection of the road network: areas that tile the city's busy core.

The paper maps cells to intersections by coverage areas (Section 4.3) and divides the overlap by the area's size, which
is right for densities; counts are extensive, so here a cell's flow is shared out by the part of the cell that lies in
each area, and no vehicle inside the box is lost or counted twice.
"""

import itertools
from typing import NamedTuple

import numpy as np
import shapely

from data.errors import DataError

CORE_SHARE = 0.65  # of the city's flow, along each axis; our choice: outskirts would leave intersections without demand


class Coverage(NamedTuple):
    """Areas of the intersections, row by row from the south-west."""

    weights: np.ndarray  # [I, N] share of each cell that lies in each area, in [0, 1]
    box: np.ndarray  # [4] lon_min, lat_min, lon_max, lat_max in degrees


def coverage(geometry: dict[str, np.ndarray], flow: np.ndarray, size: int, core_share: float = CORE_SHARE) -> Coverage:
    """Splits the box around the middle `core_share` of the flow along each axis into size x size equal areas.

    Args:
        geometry: lonlat [N, 2], outline [P, 2] and outline_start [N + 1] of the cells; a cell without area is a point.
        flow: [N] mean flow of each cell, of the training part so that nothing later decides the areas.
    """
    box = core_box(geometry["lonlat"], flow, core_share)
    edges = np.linspace(box[:2], box[2:], size + 1)  # [size + 1, 2]
    cells = cell_shapes(geometry)
    extent = shapely.area(cells)
    weights = np.empty((size * size, len(cells)))
    for area in range(size * size):
        row, column = divmod(area, size)
        low, high = edges[[column, row], [0, 1]], edges[[column + 1, row + 1], [0, 1]]
        overlap = shapely.area(shapely.intersection(cells, shapely.box(*low, *high)))
        is_inside = ((geometry["lonlat"] >= low) & (geometry["lonlat"] < high)).all(axis=1)
        weights[area] = np.where(extent > 0, overlap / np.maximum(extent, 1e-300), is_inside)
    if not (weights @ flow).any():
        raise DataError(
            "No cell with flow lies in the core of the city; the recording is too small to drive a network."
        )
    return Coverage(weights, box)


def core_box(lonlat: np.ndarray, flow: np.ndarray, core_share: float = CORE_SHARE) -> np.ndarray:
    """The box between the flow-weighted quantiles (1 -+ core_share) / 2 of the cells' centres, axis by axis. [4]"""
    if not flow.sum() > 0:
        raise DataError("The recording has no flow, so it cannot drive a network; check the etl stage's quality page.")
    levels = np.array([1 - core_share, 1 + core_share]) / 2
    west, east = _weighted_quantile(lonlat[:, 0], flow, levels)
    south, north = _weighted_quantile(lonlat[:, 1], flow, levels)
    if not (east > west and north > south):
        raise DataError("All flow lies on one line; cells must spread over a plane to drive a road network.")
    return np.array([west, south, east, north])


def intersection_flow(weights: np.ndarray, values: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Flow of each area at each step, [T, I]; a reading that is missing counts as its cell's mean.

    Args:
        values: [T, N] flow of the cells.
        observed: [T, N] bool.
    """
    seen = observed.sum(axis=0)
    mean = np.where(observed, values, 0.0).sum(axis=0) / np.maximum(seen, 1)  # [N]
    return np.where(observed, values, mean) @ weights.T


def cell_shapes(geometry: dict[str, np.ndarray]) -> np.ndarray:
    """One shapely geometry per cell, in degrees: shares of areas do not change with the axes' scales. [N]"""
    starts, outline = geometry["outline_start"], geometry["outline"]
    rings = [outline[first:last] for first, last in itertools.pairwise(starts)]
    shapes = [shapely.Polygon(ring) if len(ring) > 2 else shapely.Point(ring[0]) for ring in rings]
    return shapely.make_valid(np.array(shapes))


def _weighted_quantile(place: np.ndarray, weight: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles of places with weights: linear between the middles of the weights' steps."""
    where, group = np.unique(place, return_inverse=True)
    weight = np.bincount(group, weight)
    middle = np.cumsum(weight) - weight / 2
    return np.interp(levels * weight.sum(), middle, where)
