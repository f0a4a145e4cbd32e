"""Polygons as cells: the scanline join against shapely, awkward shapes, and files that are no zones."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import shapely
from shapely.geometry import mapping

from data.errors import DataError
from data.spark_etl import assemble, trips, zones
from data.spark_etl.schema import Box, CitySpec

RING = shapely.box(-74.0, 40.7, -73.9, 40.8).difference(shapely.box(-73.97, 40.73, -73.93, 40.77))
PARTS = shapely.MultiPolygon(
    [shapely.box(-73.9, 40.7, -73.85, 40.75), shapely.Polygon([(-73.9, 40.8), (-73.8, 40.8), (-73.85, 40.9)])]
)
HOLE = shapely.Polygon([(-73.96, 40.74), (-73.94, 40.74), (-73.94, 40.76), (-73.95, 40.765), (-73.96, 40.76)])
POLYGONS = {7: RING, 2: PARTS, 5: HOLE}


def write_zones(path: Path, polygons: dict, **extra) -> Path:
    features = [
        {"type": "Feature", "geometry": mapping(polygon), "properties": {"location_id": str(zone), **extra}}
        for zone, polygon in polygons.items()
    ]
    text = json.dumps({"type": "FeatureCollection", "features": features})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_zones_are_read_plain_or_packed_in_the_order_of_their_ids(tmp_path):
    plain = zones.read_zones(write_zones(tmp_path / "zones.geojson", POLYGONS))
    packed = zones.read_zones(write_zones(tmp_path / "zones.geojson.gz", POLYGONS))
    assert plain.ids.tolist() == packed.ids.tolist() == [2, 5, 7]
    assert plain.box == packed.box == Box(-74.0, 40.7, -73.8, 40.9)
    assert plain.polygons[1].equals(HOLE) and plain.polygons[2].equals(RING)


def test_ids_that_are_not_unique_are_replaced_by_the_object_ids(tmp_path):
    path = write_zones(tmp_path / "zones.geojson", POLYGONS)
    content = json.loads(path.read_text())
    for number, feature in enumerate(content["features"]):
        feature["properties"] = {"LOCATION_ID": "1", "OBJECTID": str(30 - number)}
    path.write_text(json.dumps(content))
    found = zones.read_zones(path)
    assert found.ids.tolist() == [28, 29, 30] and found.polygons[2].equals(RING)


def test_every_point_on_a_scanline_falls_in_the_zone_that_shapely_says(spark, tmp_path):
    city = zones.read_zones(write_zones(tmp_path / "zones.geojson", POLYGONS))
    rng = np.random.default_rng(0)
    lon = rng.uniform(-74.02, -73.78, 4000)
    lat = (rng.integers(406_900, 409_100, 4000) + 0.0) / 10_000
    frame = spark.createDataFrame(
        list(zip(range(4000), lon.tolist(), lat.tolist(), strict=True)), "n int, lon double, lat double"
    )
    found = zones.assign_zones(frame, city).collect()
    assert len(found) == 4000  # no point in two zones
    place = np.full(4000, -1)
    for row in found:
        place[row["n"]] = -1 if row["place"] is None else row["place"]
    expected = assemble.cell_finder(assemble.zone_cells(city), CitySpec("t", "manhattan", "UTC"), city)(lon, lat)
    border = shapely.distance(
        shapely.unary_union([shapely.boundary(p) for p in city.polygons]), shapely.points(lon, lat)
    )
    is_clear = border > 1e-9
    np.testing.assert_array_equal(place[is_clear], expected[is_clear])
    assert all((expected == zone).sum() > 30 for zone in (-1, 0, 1, 2))


def test_overlapping_zones_share_no_point():
    polygons = [
        shapely.MultiPolygon([shapely.box(0, 0, 1, 0.01)]),
        shapely.MultiPolygon([shapely.box(0.5, 0, 2, 0.01)]),
    ]
    city = zones.Zones(np.array([1, 2]), polygons, Box(0, 0, 2, 0.01))
    row, start, end, zone = zones.scanline_runs(city)
    assert np.unique(row).tolist() == list(range(100))
    for line in (0, 50, 99):
        here = row == line
        assert (start[here].tolist(), end[here].tolist(), zone[here].tolist()) == ([0.0, 1.0], [1.0, 2.0], [0, 1])


def test_trip_ends_are_placed_by_zone_id_or_position_and_unknown_zones_are_dropped(spark, tmp_path):
    city = zones.read_zones(write_zones(tmp_path / "zones.geojson", POLYGONS))
    schema = "time_s long, lon double, lat double, zone_id int, identity long, problem string, raw string"
    rows = [
        (0, None, None, 7, None, None, None),
        (1, None, None, 264, None, None, None),  # unknown
        (2, None, None, 265, None, None, None),  # outside the city
        (3, -73.95, 40.75, None, None, None, None),
        (4, -70.0, 40.75, None, None, None, None),  # at sea
        (900, -73.95, 40.75, None, None, None, None),
    ]
    placed = trips.place_ends(spark.createDataFrame(rows, schema), city)
    found = {(row["step"], row["place"]): row for row in trips.ends_to_table(placed, 900).collect()}
    assert {key: row["flow"] for key, row in found.items()} == {(0, 2): 1, (0, 1): 1, (1, 1): 1}
    assert all(row["movements"] == row["density"] == 0 and row["points"] == row["flow"] for row in found.values())


def test_repeated_trips_of_a_named_vehicle_are_dropped_and_zero_positions_too(spark):
    schema = "time_s long, lon double, lat double, zone_id int, identity long, problem string, raw string"
    rows = [(0, 1.0, 1.0, None, 11, None, None)] * 3 + [(0, 1.0, 1.0, None, None, None, None)] * 2
    rows += [(0, 0.0, 1.0, None, 12, None, None), (0, None, None, 4, None, None, None)]
    ends = spark.createDataFrame(rows, schema)
    assert trips.drop_duplicate_ends(ends).count() == 5
    assert trips.drop_zero_ends(ends).count() == 6


def damaged_gzip() -> bytes:
    return gzip.compress(json.dumps({"features": []}).encode() * 50, mtime=0)[:-20]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("zones.geojson", b"{"),
        ("zones.geojson", b"[]"),
        ("zones.geojson", b'{"features": []}'),
        ("zones.geojson", b'{"features": [{"geometry": {"type": "Point", "coordinates": [1, 2]}, "properties": {}}]}'),
        ("zones.geojson.gz", damaged_gzip()),
        ("zones.geojson.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 40),
        ("zones.geojson", b"\xff\xfe"),
    ],
)
def test_a_file_that_holds_no_zones_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is not a readable GeoJSON of zones"):
        zones.read_zones(tmp_path / name)


def test_zones_in_feet_or_metres_are_refused(tmp_path):
    path = write_zones(tmp_path / "zones.geojson", {1: shapely.box(900_000, 200_000, 901_000, 201_000)})
    with pytest.raises(DataError, match="is not in longitude and latitude"):
        zones.read_zones(path)
