"""Which cells of a city belong to which intersection of the road network: areas that tile a box of the city.

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

SLIVER = 1e-9  # of a cell: less is rounding at a border and makes no cell a member of an area


class Coverage(NamedTuple):
    """Areas of the intersections, in their order; of a grid row by row from the south-west."""

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
    return _with_flow(Coverage(weights, box), flow)


def coverage_around(geometry: dict[str, np.ndarray], flow: np.ndarray, places: np.ndarray, box: np.ndarray) -> Coverage:
    """Splits the box into what is nearest to each signal (Voronoi cells); signals at one place share its area equally.

    Args:
        geometry, flow: as of `coverage`.
        places: [I, 2] lon, lat of the signals, inside the box.
        box: [4] lon_min, lat_min, lon_max, lat_max in degrees.
    """
    distinct, group, sharing = _distinct(places, box)
    areas = _nearest_areas(distinct, box)
    cells = cell_shapes(geometry)
    extent = shapely.area(cells)
    cell, area = shapely.STRtree(areas).query(cells, predicate="intersects")
    overlap = shapely.area(shapely.intersection(cells[cell], areas[area]))
    weights = np.zeros((len(distinct), len(cells)))
    share = overlap / np.where(extent > 0, extent, 1.0)[cell]
    weights[area, cell] = np.where(share > SLIVER, share, 0.0)
    is_inside = ((geometry["lonlat"] >= box[:2]) & (geometry["lonlat"] < box[2:])).all(axis=1)
    sensors = np.flatnonzero((extent == 0) & is_inside)
    gap = (geometry["lonlat"][sensors][:, None] - distinct) * _shrink(box)  # [sensors, P, 2]
    weights[(gap**2).sum(axis=2).argmin(axis=1), sensors] = 1.0
    return _with_flow(Coverage((weights / sharing[:, None])[group], box), flow)


def laid_over(box: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Positions of signals scaled to the box, axis by axis, [I, 2]; at each side 1 / (2 sqrt(I)) of the box stays free.

    A regular grid so has its signals in the middles of the areas of `coverage`.
    """
    low, span = position.min(axis=0), np.ptp(position, axis=0)
    margin = 0.5 / np.sqrt(len(position))
    share = np.where(span > 0, (position - low) / np.where(span > 0, span, 1.0), 0.5)
    return box[:2] + (margin + (1 - 2 * margin) * share) * (box[2:] - box[:2])


def box_around(places: np.ndarray) -> np.ndarray:
    """The box around signals in degrees, [4], with half of their typical spacing to spare at each side.

    The spacing is the median distance to the nearest other place, or that of as many signals spread evenly if larger:
    a crossing with several signals would make the first small, a single street the second. Not all may be at one place.
    """
    low, high = places.min(axis=0), places.max(axis=0)
    shrink = _shrink(np.concatenate([low, high]))
    gap = np.linalg.norm((np.unique(places, axis=0)[:, None] - places) * shrink, axis=2)  # [P, I]
    nearest = np.where(gap > 0, gap, np.inf).min(axis=1)
    spacing = max(np.median(nearest), np.sqrt(np.prod((high - low) * shrink) / len(places)))
    return np.concatenate([low - spacing / 2 / shrink, high + spacing / 2 / shrink])


def lies_within(places: np.ndarray, geometry: dict[str, np.ndarray]) -> bool:
    """Whether signals stand inside the recording's extent, and not all at one place."""
    outline = np.concatenate([geometry["outline"], geometry["lonlat"]])
    inside = (places >= outline.min(axis=0)) & (places <= outline.max(axis=0))
    return bool(inside.all() and np.ptp(places, axis=0).any())


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


def _distinct(places: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The places without repetition [P, 2], the one of each signal [I], and how many signals stand at each [P]."""
    share = np.round((places - box[:2]) / (box[2:] - box[:2]), 9)
    _, first, group, sharing = np.unique(share, axis=0, return_index=True, return_inverse=True, return_counts=True)
    return places[first], group.reshape(-1), sharing


def _nearest_areas(places: np.ndarray, box: np.ndarray) -> np.ndarray:
    """What lies nearest to each place, as polygons in degrees; distances are those on the ground. [P]"""
    whole = shapely.box(*box)
    if len(places) == 1:
        return np.array([whole])
    shrink = _shrink(box)
    flat = shapely.MultiPoint((places - box[:2]) * shrink)
    around = shapely.box(0.0, 0.0, *((box[2:] - box[:2]) * shrink))
    areas = shapely.get_parts(shapely.voronoi_polygons(flat, extend_to=around, ordered=True))
    return shapely.intersection(shapely.transform(areas, lambda point: point / shrink + box[:2]), whole)


def _shrink(box: np.ndarray) -> np.ndarray:
    """Degrees of longitude are shorter. [2]"""
    return np.array([np.cos(np.radians((box[1] + box[3]) / 2)), 1.0])


def _with_flow(found: Coverage, flow: np.ndarray) -> Coverage:
    if not (found.weights @ flow).any():
        raise DataError(
            "No cell with flow lies in the area of the network; the recording is too small to drive a network there."
        )
    return found
