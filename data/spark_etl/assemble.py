"""From the table of cells and steps to dense arrays: choosing the cells, filling the tensor, writing the shards."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import shapely

from data.spark_etl.graph import Cells
from data.spark_etl.schema import CitySpec
from data.spark_etl.shards import Shard, ShardEntry, write_arrays
from data.spark_etl.zones import Zones

SHARD_DAYS = 7
STRAY_GAP_DAYS = 7
STRAY_SHARE = 1e-3  # of all points, at most


def recording_span(step: np.ndarray, points: np.ndarray, steps_per_day: int) -> tuple[int, int]:
    """First and last step of a recording without its strays: few points, more than a week apart from all others.

    Wrong clocks put them there (the TLC's file of January 2023 has trips of 2009), and they would stretch the
    recording over years in which nothing was observed.

    Args:
        step: [T] steps with points, ascending.
        points: [T] how many points each has.
    """
    starts = np.concatenate([[0], np.nonzero(np.diff(step) > STRAY_GAP_DAYS * steps_per_day)[0] + 1])
    counts = np.add.reduceat(points, starts)
    low, high, budget = 0, len(counts) - 1, int(points.sum() * STRAY_SHARE)
    while low < high and min(counts[low], counts[high]) <= budget:
        is_low = counts[low] <= counts[high]
        budget -= counts[low] if is_low else counts[high]
        low, high = (low + 1, high) if is_low else (low, high - 1)
    stops = np.concatenate([starts[1:], [len(step)]])
    return int(step[starts[low]]), int(step[stops[high] - 1])


def choose_squares(flow_by_place: pd.Series, num_cells: int | None) -> np.ndarray:
    """The squares with the most flow, in ascending order of their number; equal flows go to the smaller number."""
    active = flow_by_place[flow_by_place > 0]
    order = np.lexsort((active.index.to_numpy(), -active.to_numpy()))
    return np.sort(active.index.to_numpy()[order[:num_cells]]).astype(np.int64)


def square_cells(ids: np.ndarray, spec: CitySpec) -> Cells:
    """Geometry of grid squares."""
    row, column = np.divmod(ids, spec.columns)
    corner = np.stack([column, row], axis=1) * spec.square_m
    to_degrees = np.array([1 / spec.area.metres_per_lon, 1 / spec.area.metres_per_lat])
    origin = np.array([spec.area.lon_min, spec.area.lat_min])
    ring = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * spec.square_m
    outline = ((corner[:, None] + ring) * to_degrees + origin).reshape(-1, 2)
    position = corner + spec.square_m / 2
    return Cells(ids, position, position * to_degrees + origin, outline, np.arange(len(ids) + 1) * 4)


def zone_cells(zones: Zones) -> Cells:
    """Geometry of polygons: the largest part's outer ring stands for the zone on maps."""
    largest = [max(shapely.get_parts(zone), key=lambda part: part.area) for zone in zones.polygons]
    centre = shapely.get_coordinates(shapely.point_on_surface(largest))
    rings = [shapely.get_coordinates(part.exterior)[:-1] for part in largest]
    start = np.concatenate([[0], np.cumsum([len(ring) for ring in rings])])
    return Cells(zones.ids, to_metres(centre, zones.box), centre, np.concatenate(rings), start)


def to_metres(lonlat: np.ndarray, box) -> np.ndarray:
    """Metres east and north of the box's corner."""
    return (lonlat - [box.lon_min, box.lat_min]) * [box.metres_per_lon, box.metres_per_lat]


def cell_finder(cells: Cells, spec: CitySpec, zones: Zones | None) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """A function from (lon, lat) to the index of the cell that holds them, -1 for none; host side, for event logs."""

    def in_squares(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
        column = np.floor((lon - spec.area.lon_min) * spec.area.metres_per_lon / spec.square_m)
        row = np.floor((lat - spec.area.lat_min) * spec.area.metres_per_lat / spec.square_m)
        is_inside = (column >= 0) & (column < spec.columns) & (row >= 0)
        place = np.where(is_inside, row * spec.columns + column, -1)
        index = np.searchsorted(cells.ids, place).clip(max=len(cells.ids) - 1)
        return np.where(cells.ids[index] == place, index, -1)

    if zones is None:
        return in_squares
    tree = shapely.STRtree(zones.polygons)

    def in_zones(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
        point, zone = tree.query(shapely.points(lon, lat), predicate="intersects")
        cell = np.full(len(lon), -1)
        cell[point[::-1]] = zone[::-1]  # a point on a border: the smaller index
        return cell

    return in_zones


def fill_track_shard(
    rows: pd.DataFrame, time: np.ndarray, first_step: int, cell: pd.Series, is_live: np.ndarray, has_tracks: bool
) -> Shard:
    """Dense flow, speed and density of one shard.

    Args:
        rows: table rows of these steps and of any place.
        cell: index of the cell of each kept place.
        is_live: [T] whether the city has a used point in the step.
        has_tracks: False for trip records, whose speed and density were never observed.
    """
    rows = rows[rows["place"].isin(cell.index)]
    at = (rows["step"].to_numpy() - first_step, cell.loc[rows["place"]].to_numpy())
    values = np.zeros((len(time), len(cell), 3), np.float32)
    observed = np.zeros(values.shape, bool)
    observed[..., 0] = is_live[:, None]
    values[(*at, 0)] = rows["flow"]
    if has_tracks:
        movements = rows["movements"].to_numpy()
        mean_mmps = rows["speed_sum"].to_numpy() / np.maximum(movements, 1)
        values[(*at, 1)] = mean_mmps / 1000.0
        observed[(*at, 1)] = movements > 0
        values[(*at, 2)] = rows["density"]
        observed[..., 2] = is_live[:, None]
    return Shard(time, values, observed)


def shard_ranges(start: int, stop: int, steps_per_day: int) -> Iterator[tuple[int, int]]:
    """Half-open step ranges of the shards between two steps."""
    length = SHARD_DAYS * steps_per_day
    for first in range(start, stop, length):
        yield first, min(first + length, stop)


def write_shard(folder: Path, start: int, shard: Shard) -> ShardEntry:
    name = f"shard-{start:07d}.npz"
    sha256 = write_arrays(folder / name, **shard._asdict())
    return ShardEntry(name, start, len(shard.time), sha256)
