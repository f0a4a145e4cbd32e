"""Polygons as cells: the taxi zones, and a scanline table that finds a point's zone by a plain join.

Each zone is cut into runs along scanlines 1e-4 degrees apart (about 11 m, the precision of the published pickups), so
point-in-polygon becomes an equality on the row and a comparison on the longitude: no Python in the per-point path.
"""

import gzip
import json
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import shapely
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from shapely.geometry import shape

from data.errors import DataError
from data.spark_etl.schema import Box

LINES_PER_DEGREE = 10_000
# What gzip, json and shapely raise on a file that holds no zones.
_UNREADABLE = (OSError, EOFError, zlib.error, KeyError, TypeError, ValueError, shapely.errors.ShapelyError)


class Zones(NamedTuple):
    """The cells of a city given as polygons, in the order of their ids."""

    ids: np.ndarray  # [N] int64, the publisher's location id
    polygons: list  # [N] shapely geometries in degrees
    box: Box


def read_zones(path: Path) -> Zones:
    """Reads a GeoJSON of zones (property `location_id`), plain or gz."""
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as stream:
            features = json.load(stream)["features"]
        if not features:
            raise ValueError("it has no features")
        polygons = [shapely.make_valid(shape(feature["geometry"])) for feature in features]
        ids = _zone_ids([{key.lower(): value for key, value in f["properties"].items()} for f in features])
    except _UNREADABLE as error:
        raise DataError(
            f"{path} is not a readable GeoJSON of zones with a location_id ({error}); download the TLC zones again."
        ) from None
    order = np.argsort(ids)
    ids, polygons = ids[order], [_only_polygons(polygons[i]) for i in order]
    lon_min, lat_min, lon_max, lat_max = shapely.total_bounds(polygons)
    if not (-180 <= lon_min <= lon_max <= 180 and -90 <= lat_min <= lat_max <= 90):
        raise DataError(f"{path} is not in longitude and latitude (WGS 84); convert it with ogr2ogr -t_srs EPSG:4326.")
    return Zones(ids, polygons, Box(float(lon_min), float(lat_min), float(lon_max), float(lat_max)))


def scanline_runs(zones: Zones) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row number, first and last longitude, and zone index of every run of a scanline inside a zone, none overlapping.

    Even-odd rule: sorted along a row, the crossings with a polygon's edges alternate between entering and leaving.
    """
    x1, y1, x2, y2, zone = _edges(zones)
    first = np.ceil(np.minimum(y1, y2) * LINES_PER_DEGREE)
    rows = (np.ceil(np.maximum(y1, y2) * LINES_PER_DEGREE) - first).astype(np.int64)  # half-open: a vertex counts once
    edge = np.repeat(np.arange(len(rows)), rows)
    row = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(rows) - rows, rows)
    share = (row / LINES_PER_DEGREE - y1[edge]) / (y2 - y1)[edge]
    x = x1[edge] + share * (x2 - x1)[edge]
    order = np.lexsort((x, row, zone[edge]))
    row, x, zone = row[order], x[order], zone[edge][order]
    return _without_overlap(row[::2].astype(np.int64), x[::2], x[1::2], zone[::2].astype(np.int32))


def assign_zones(points: DataFrame, zones: Zones) -> DataFrame:
    """Adds `place`, the index of the zone that holds (lon, lat); null for points in none (water, other cities)."""
    names = ("row", "run_start", "run_end", "place")
    schema = "row long, run_start double, run_end double, place int"
    table = pd.DataFrame(dict(zip(names, scanline_runs(zones), strict=True)))
    runs = points.sparkSession.createDataFrame(table, schema)  # through Arrow: no Python on the executors
    row = F.round(F.col("lat") * LINES_PER_DEGREE).cast("long")
    is_inside = (F.col("row") == row) & (F.col("lon") >= F.col("run_start")) & (F.col("lon") < F.col("run_end"))
    return points.join(F.broadcast(runs), is_inside, "left").select(*points.columns, "place")


def _zone_ids(properties: list[dict]) -> np.ndarray:
    """Location ids; the TLC file gives three of its 263 zones the id of a neighbour, and there `objectid` is right."""
    ids = np.array(
        [int(entry["location_id" if "location_id" in entry else "locationid"]) for entry in properties], np.int64
    )
    if len(np.unique(ids)) < len(ids):
        ids = np.array([int(entry["objectid"]) for entry in properties], np.int64)
    return ids


def _only_polygons(geometry) -> shapely.MultiPolygon:
    """The areas of a geometry, without the lines and points that mending an invalid polygon may leave."""
    parts = shapely.get_parts(shapely.get_parts(geometry))
    return shapely.MultiPolygon([part for part in parts if part.geom_type == "Polygon"])


def _edges(zones: Zones) -> tuple[np.ndarray, ...]:
    """Both ends of every polygon edge, and the index of its zone."""
    parts, zone_of_part = shapely.get_parts(zones.polygons, return_index=True)
    rings, part_of_ring = shapely.get_rings(parts, return_index=True)
    points, ring = shapely.get_coordinates(rings, return_index=True)
    is_edge = ring[:-1] == ring[1:]
    start, end = points[:-1][is_edge], points[1:][is_edge]
    return start[:, 0], start[:, 1], end[:, 0], end[:, 1], zone_of_part[part_of_ring[ring[:-1][is_edge]]]


def _without_overlap(
    row: np.ndarray, start: np.ndarray, end: np.ndarray, zone: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sorts the runs and cuts each where an earlier one of its row still goes on, so that a point is in one at most."""
    order = np.lexsort((zone, start, row))
    row, start, end, zone = row[order], start[order], end[order], zone[order]
    shift = (row - row.min()) * 1000.0  # more than any longitude, so the running maximum starts anew in each row
    reached = np.maximum.accumulate(end + shift)
    earlier = np.concatenate([[-np.inf], reached[:-1]]) - shift
    start = np.maximum(start, earlier)
    is_left = start < end
    return row[is_left], start[is_left], end[is_left], zone[is_left]
