"""What cannot be meant, worked by hand: cities and zones, units of time, boxes and gaps."""

import time

import numpy as np
import pytest

from data.errors import DataError
from data.spark_etl import plausible
from data.spark_etl.split import Fold

NOW = 1_700_000_000
DAY = 86_400
CITIES = {  # longitude, latitude, zone
    "Lisbon": (-9.14, 38.72, "Europe/Lisbon"),
    "Vigo": (-8.72, 42.24, "Europe/Madrid"),
    "Kashgar": (75.99, 39.47, "Asia/Shanghai"),
    "Miami": (-80.19, 25.77, "America/New_York"),
    "Suva": (178.44, -18.14, "Pacific/Fiji"),
    "Honolulu": (-157.86, 21.31, "Pacific/Honolulu"),
    "Accra": (-0.19, 5.56, "Africa/Accra"),
}


@pytest.mark.parametrize("city", CITIES)
def test_a_city_agrees_with_its_own_zone_and_any_with_utc(city):
    lon, lat, zone = CITIES[city]
    for fitting in (zone, "UTC", "Etc/GMT-1"):
        assert plausible.check_place(lon, lat, fitting, "a.csv") is None  # and raises nothing


@pytest.mark.parametrize("city", ["Lisbon", "Vigo", "Miami"])
def test_a_city_with_swapped_degrees_is_called_so(city):
    lon, lat, zone = CITIES[city]
    with pytest.raises(DataError, match=f"wrong order.*{zone}"):
        plausible.check_place(lat, lon, zone, "a.csv")


def test_a_zone_hours_away_is_refused():
    # Berlin's sun is 13.4 / 15 = 0.9 hours ahead of Greenwich, Tokyo's clock nine: eight hours apart.
    with pytest.raises(DataError, match="8 hours from the clock of Asia/Tokyo"):
        plausible.check_place(13.4, 52.5, "Asia/Tokyo", "a.csv")


@pytest.mark.parametrize(
    ("first", "last", "is_gps", "sentence"),
    [
        (NOW * 1000, NOW * 1000 + 900, True, "milliseconds since 1970 .unix_ms., not seconds; read them with --time-f"),
        (NOW * 1000, NOW * 1000 + 900, False, "milliseconds since 1970 .unix_ms., not seconds; divide them by 1000"),
        (NOW * 10**6, NOW * 10**6, False, "micro- or nanoseconds"),
        (NOW // 1000, NOW // 1000, True, "end on 1970-01-20; check --time-format"),
        (NOW - 21 * 366 * DAY, NOW, True, "spans 2002-10-29 to 2023-11-14; remove .* --time-format"),
    ],
)
def test_clocks_that_cannot_be_right_are_named(first, last, is_gps, sentence):
    with pytest.raises(DataError, match=sentence):
        plausible.check_times(first, last, "a.csv", is_gps)


def test_times_to_come_are_named():
    with pytest.raises(DataError, match="times to come"):
        plausible.check_times(NOW, time.time() + 30 * DAY, "a.csv", False)


def test_a_recording_of_last_year_is_fine():
    assert plausible.check_times(NOW - 300 * DAY, NOW, "a.csv", True) is None  # and raises nothing


def test_a_box_needs_a_hundredth_of_the_fixes_and_more_than_swapping_would_bring():
    plausible.check_box(1, 0, 100, "a.csv")
    with pytest.raises(DataError, match="Only 0 of 100 fixes"):
        plausible.check_box(0, 0, 100, "a.csv")
    with pytest.raises(DataError, match="wrong order: 60 of 100 fixes"):
        plausible.check_box(40, 60, 100, "a.csv")


def test_a_part_in_which_nothing_was_observed_is_named_with_its_days():
    live = np.ones(40, bool)
    fold = Fold((0, 10), (10, 20), (20, 30), (30, 40))
    plausible.check_parts([fold], live, 0, DAY, "a.csv")
    live[20:30] = False  # days 20 to 29 after the first of January 1970
    with pytest.raises(DataError, match="from 1970-01-21 to 1970-01-30, which is all of the calibration part"):
        plausible.check_parts([fold], live, 0, DAY, "a.csv")
