"""The cleaning steps and the table of visits, speeds and vehicles, on tracks short enough to work out by hand."""

import random

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

from data.spark_etl import assemble, transforms
from data.spark_etl.schema import POINT_COLUMNS, TABLE_SCHEMA, Box

BOX = Box(10.0, 50.0, 10.13, 50.09)
SQUARE_M, COLUMNS = 1000.0, 10
MIDNIGHT = 1_400_025_600  # 2014-05-14 00:00 UTC, a multiple of 86 400
MAX_GAP_S, MAX_SPEED, BIN_S = 120, 50.0, 900

Fix = tuple[int, int, int, float, float]  # vehicle, trip, time, metres east, metres north


def points(spark: SparkSession, fixes: list[Fix]) -> DataFrame:
    """Fixes given in metres from the box's corner."""
    rows = [
        (vehicle, trip, time, BOX.lon_min + x / BOX.metres_per_lon, BOX.lat_min + y / BOX.metres_per_lat)
        for vehicle, trip, time, x, y in fixes
    ]
    schema = "vehicle long, trip long, time_s long, lon double, lat double"
    return transforms.gather_trips(spark.createDataFrame(rows, schema).select(*POINT_COLUMNS))


def metres(frame: DataFrame) -> list[Fix]:
    """What is left, in metres and in order."""
    return sorted(
        (
            row["vehicle"],
            row["trip"],
            row["time_s"],
            round((row["lon"] - BOX.lon_min) * BOX.metres_per_lon, 3),
            round((row["lat"] - BOX.lat_min) * BOX.metres_per_lat, 3),
        )
        for row in frame.collect()
    )


def presence(spark: SparkSession, fixes: list[Fix]) -> DataFrame:
    square = transforms.square_of(BOX, SQUARE_M, COLUMNS)
    return transforms.to_presence(points(spark, fixes), square, BOX, MAX_GAP_S, MAX_SPEED, BIN_S)


def table(frame: DataFrame) -> dict[tuple[int, int], tuple]:
    """(flow, speed sum, movements, density, points) by (step since midnight, place)."""
    rows = transforms.to_table(frame).collect()
    return {(row["step"] - MIDNIGHT // BIN_S, row["place"]): tuple(row)[2:] for row in rows}


def test_flow_counts_visits_begun_and_speed_the_movements_that_end_in_the_cell(spark):
    start = MIDNIGHT
    fixes = [
        (1, 1, start, 500, 500),  # begins a visit to square 0
        (1, 1, start + 60, 800, 500),  # goes on with it: 300 m in 60 s, 5000 mm/s
        (1, 1, start + 120, 1100, 500),  # enters square 1 at 5000 mm/s
        (1, 1, start + 180, 900, 500),  # comes back to square 0: 200 m in 60 s, 3333 mm/s
        (1, 1, start + 301, 900, 500),  # 121 s of silence are more than the largest gap: a new visit, no movement
        (1, 1, start + 421, 920, 500),  # 120 s are not: 20 m in 120 s, 166.67 -> 167 mm/s
        (2, 2, start + 10, 1500, 500),  # another vehicle in square 1
        (2, 3, start + 40, 1500, 500),  # its next trip: not joined, so a second visit of the same vehicle
    ]
    assert table(presence(spark, fixes)) == {
        (0, 0): (3, 5000 + 3333 + 167, 3, 1, 5),
        (0, 1): (3, 5000, 1, 2, 3),
    }


def test_a_visit_that_lasts_over_midnight_begins_once_and_is_present_on_both_days(spark):
    fixes = [(1, 1, MIDNIGHT - 30, 1500, 2500), (1, 1, MIDNIGHT + 30, 1800, 2500), (1, 1, MIDNIGHT + 90, 1800, 3500)]
    assert table(presence(spark, fixes)) == {
        (-1, 21): (1, 0, 0, 1, 1),
        (0, 21): (0, 5000, 1, 1, 1),  # the movement counts where and when it ends
        (0, 31): (1, 16_667, 1, 1, 1),  # 1000 m in 60 s
    }


def test_a_pair_of_fixes_faster_than_the_limit_is_no_movement(spark):
    fixes = [(1, 1, MIDNIGHT, 500, 500), (1, 1, MIDNIGHT + 20, 1499, 500), (1, 1, MIDNIGHT + 40, 2501, 500)]
    # 999 m in 20 s is 49.95 m/s, 1002 m is 50.1 m/s.
    assert table(presence(spark, fixes)) == {
        (0, 0): (1, 0, 0, 1, 1),
        (0, 1): (1, 49_950, 1, 1, 1),
        (0, 2): (1, 0, 0, 1, 1),
    }


def test_transitions_are_counted_between_different_squares_within_the_steps_asked_for(spark):
    fixes = [(v, v, MIDNIGHT + 60 * k, 500 + 1000 * (k % 2), 500) for v in (1, 2) for k in range(16)]
    start = MIDNIGHT // BIN_S
    # Seconds 0 to 840 are in the first step: fifteen fixes, fourteen crossings a vehicle, half of them each way.
    rows = transforms.to_transitions(presence(spark, fixes), start, start + 1).collect()
    assert {(row["origin"], row["place"]): row["count"] for row in rows} == {(0, 1): 14, (1, 0): 14}
    rest = transforms.to_transitions(presence(spark, fixes), start + 1, start + 2).collect()
    assert {(row["origin"], row["place"]): row["count"] for row in rest} == {(0, 1): 2}


def test_only_fixes_that_no_neighbour_could_reach_are_dropped(spark):
    def track(trip: int, *east: float) -> list[Fix]:
        return [(1, trip, MIDNIGHT + 60 * k, x, 100.0) for k, x in enumerate(east)]

    # At 50 m/s a minute reaches 3000 m.
    spike = track(1, 100, 400, 9000, 700, 1000)
    first = track(2, 9000, 400, 700)
    last = track(3, 100, 400, 9000)
    lone = track(4, 9000)
    pair = track(5, 100, 9000)
    twin = track(6, 100, 400, 8000, 8300, 700, 1000)  # two fixes far away vouch for each other
    limit = track(7, 100, 3099.9, 6100.1, 6200)
    kept = metres(
        transforms.drop_gps_jumps(points(spark, spike + first + last + lone + pair + twin + limit), BOX, MAX_SPEED)
    )
    assert kept == sorted(spike[:2] + spike[3:] + first[1:] + last[:2] + lone + twin + limit)


def test_one_position_of_a_trip_stays_per_second_the_western_then_southern_one(spark):
    fixes = [
        (1, 1, MIDNIGHT, 300.0, 100.0),
        (1, 1, MIDNIGHT, 200.0, 900.0),
        (1, 1, MIDNIGHT, 200.0, 500.0),
        (1, 2, MIDNIGHT, 800.0, 800.0),  # another trip
        (2, 1, MIDNIGHT, 800.0, 800.0),  # another vehicle
    ]
    assert metres(transforms.drop_repeated_times(points(spark, fixes))) == fixes[2:]


def test_exact_repetitions_are_dropped_and_near_ones_are_not(spark):
    fixes = [(1, 1, MIDNIGHT, 300.0, 100.0), (1, 1, MIDNIGHT, 300.0, 100.5), (1, 1, MIDNIGHT + 1, 300.0, 100.0)]
    fixes += [(1, 2, MIDNIGHT, 300.0, 100.0), (2, 1, MIDNIGHT, 300.0, 100.0)]
    assert metres(transforms.drop_duplicates(points(spark, fixes * 3))) == fixes


def test_the_box_is_closed_below_and_open_above_and_zero_is_no_position(spark):
    lonlat = [(10.0, 50.0), (10.13, 50.0), (10.0, 50.09), (10.1299, 50.0899), (9.9999, 50.0), (0.0, 50.0), (10.1, 0.0)]
    schema = "vehicle long, trip long, time_s long, lon double, lat double"
    frame = spark.createDataFrame([(1, 1, k, *place) for k, place in enumerate(lonlat)], schema)
    assert [row["time_s"] for row in transforms.drop_outside_box(frame, BOX).collect()] == [0, 3]
    assert [row["time_s"] for row in transforms.drop_zero_coordinates(frame).collect()] == [0, 1, 2, 3, 4]


def test_squares_are_numbered_row_by_row_from_the_south_western_corner(spark):
    places = {(0.0, 0.0): 0, (999.9, 0.1): 0, (1000.1, 0.1): 1, (9200, 999.9): 9, (0.1, 1000.1): 10, (3500, 2500): 23}
    frame = points(spark, [(1, 1, k, x, y) for k, (x, y) in enumerate(places)])
    square = transforms.square_of(BOX, SQUARE_M, COLUMNS)
    rows = frame.select("time_s", square.alias("place")).orderBy("time_s").collect()
    assert [row["place"] for row in rows] == list(places.values())


def test_the_order_of_rows_does_not_matter(spark):
    rng = random.Random(0)
    fixes = [(v, v, MIDNIGHT + 30 * k, 500 + 37.0 * v + 400 * (k % 7), 500) for v in range(4) for k in range(40)]
    fixes += fixes[::9]
    shuffled = rng.sample(fixes, len(fixes))

    def clean(order: list[Fix]) -> DataFrame:
        kept = transforms.drop_repeated_times(transforms.drop_duplicates(points(spark, order)))
        square = transforms.square_of(BOX, SQUARE_M, COLUMNS)
        return transforms.to_presence(kept, square, BOX, MAX_GAP_S, MAX_SPEED, BIN_S)

    assert table(clean(fixes)) == table(clean(shuffled))


def rows_of(*rows: tuple[int, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=TABLE_SCHEMA.names)


@pytest.mark.parametrize("has_tracks", [True, False])
def test_a_shard_tells_missing_from_zero(has_tracks):
    # step, place, flow, speed sum, movements, density, points; place 9 is not a cell; step 12 is an outage.
    rows = rows_of((10, 5, 4, 9000, 2, 3, 6), (11, 7, 1, 0, 0, 1, 1), (11, 9, 8, 1000, 1, 8, 9))
    cell = pd.Series([0, 1], index=[5, 7])
    is_live = np.array([True, True, False])
    shard = assemble.fill_track_shard(rows, np.arange(10, 13) * 900, 10, cell, is_live, has_tracks)
    flow = np.array([[4, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(shard.values[..., 0], flow)
    np.testing.assert_array_equal(shard.observed[..., 0], [[True, True], [True, True], [False, False]])
    if has_tracks:
        np.testing.assert_array_equal(shard.values[..., 1], [[4.5, 0], [0, 0], [0, 0]])  # 9000 mm/s over two movements
        np.testing.assert_array_equal(shard.observed[..., 1], [[True, False], [False, False], [False, False]])
        np.testing.assert_array_equal(shard.values[..., 2], [[3, 0], [0, 1], [0, 0]])
        np.testing.assert_array_equal(shard.observed[..., 2], shard.observed[..., 0])
    else:
        assert not shard.observed[..., 1:].any() and not shard.values[..., 1:].any()
