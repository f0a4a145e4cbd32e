"""Wall clocks to unix seconds, against the standard library's zoneinfo."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from pyspark.sql import functions as F

from data.spark_etl.local_time import local_to_unix, offset_changes

# Dublin calls winter the exception, Lord Howe moves by half an hour, Casablanca leaves its offset for Ramadan,
# Caracas and Apia changed for good (Apia skipped a whole day), Kathmandu and Etc/GMT-1 never change here.
ZONES = (
    "America/New_York",
    "Europe/Lisbon",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "America/Caracas",
    "Pacific/Apia",
    "Asia/Shanghai",
    "Asia/Kathmandu",
    "Etc/GMT-1",
)
EPOCH = datetime(1970, 1, 1)


def wall_seconds(moment: datetime) -> int:
    """A wall clock as seconds, as if it were UTC."""
    return (moment - EPOCH) // timedelta(seconds=1)


def by_zoneinfo(wall_s: int, zone: ZoneInfo) -> int | None:
    """Unix seconds of the first occurrence; None for a time that does not exist (there and back is another time)."""
    wall = EPOCH + timedelta(seconds=wall_s)
    moment = wall.replace(tzinfo=zone).astimezone(UTC)  # fold 0
    is_real = moment.astimezone(zone).replace(tzinfo=None) == wall
    return int(moment.timestamp()) if is_real else None


def around_changes(timezone: str, rng: np.random.Generator) -> list[int]:
    """Random wall times from 1991 to 2039, and every second that matters around six changes of offset."""
    walls = rng.integers(wall_seconds(datetime(1991, 1, 1)), wall_seconds(datetime(2039, 1, 1)), 60).tolist()
    changes = offset_changes(timezone)[1]
    for change in [changes[i] for i in rng.permutation(len(changes))[:6]]:
        for edge in (change.at + change.before, change.at + change.after):
            walls += [edge - 3600, edge - 1, edge, edge + 1, edge + 3599, edge + 3600]
    return walls


@pytest.mark.slow
def test_agrees_with_zoneinfo_at_random_times_and_around_changes_of_offset(spark):
    rng = np.random.default_rng(0)
    walls = [(zone, wall) for zone in ZONES for wall in around_changes(zone, rng)]
    frame = spark.createDataFrame(walls, "zone string, wall long").coalesce(1)
    unix, skipped = F.lit(None).cast("long"), F.lit(None).cast("boolean")
    for zone in ZONES:
        here = F.col("zone") == zone
        zone_unix, zone_skipped = local_to_unix(F.col("wall"), zone)
        unix, skipped = F.when(here, zone_unix).otherwise(unix), F.when(here, zone_skipped).otherwise(skipped)
    found = frame.select("zone", "wall", unix.alias("unix"), skipped.alias("skipped")).collect()
    assert len(found) == len(walls) and sum(row["skipped"] for row in found) > 20
    for row in found:
        expected = by_zoneinfo(row["wall"], ZoneInfo(row["zone"]))
        assert row["unix"] == expected, row
        assert row["skipped"] == (expected is None), row


def test_new_york_in_2014_skips_one_hour_and_repeats_one(spark):
    walls = {
        datetime(2014, 3, 9, 1, 59, 59): datetime(2014, 3, 9, 6, 59, 59),  # winter, UTC-5
        datetime(2014, 3, 9, 2, 0, 0): None,
        datetime(2014, 3, 9, 2, 59, 59): None,
        datetime(2014, 3, 9, 3, 0, 0): datetime(2014, 3, 9, 7, 0, 0),  # summer, UTC-4
        datetime(2014, 11, 2, 1, 30, 0): datetime(2014, 11, 2, 5, 30, 0),  # the first of the two
        datetime(2014, 11, 2, 2, 0, 0): datetime(2014, 11, 2, 7, 0, 0),
    }
    frame = spark.createDataFrame([(wall_seconds(wall),) for wall in walls], "wall long").coalesce(1)
    unix, skipped = local_to_unix(F.col("wall"), "America/New_York")
    rows = frame.select("wall", unix.alias("unix"), skipped.alias("skipped")).collect()
    expected = {wall_seconds(wall): real and wall_seconds(real) for wall, real in walls.items()}
    assert {row["wall"]: row["unix"] for row in rows} == expected
    assert {row["wall"] for row in rows if row["skipped"]} == {wall for wall, real in expected.items() if real is None}


@pytest.mark.parametrize(("zone", "offset"), [("Asia/Kathmandu", 20_700), ("Etc/GMT-1", 3_600), ("UTC", 0)])
def test_zones_without_changes_have_one_offset(zone, offset):
    assert offset_changes(zone) == (offset, ())


def test_the_changes_of_new_york_are_the_official_ones():
    _, changes = offset_changes("America/New_York")
    in_2014 = [change for change in changes if datetime.fromtimestamp(change.at, UTC).year == 2014]
    assert [datetime.fromtimestamp(change.at, UTC) for change in in_2014] == [
        datetime(2014, 3, 9, 7, tzinfo=UTC),
        datetime(2014, 11, 2, 6, tzinfo=UTC),
    ]
    assert [(change.before, change.after) for change in in_2014] == [(-18_000, -14_400), (-14_400, -18_000)]
