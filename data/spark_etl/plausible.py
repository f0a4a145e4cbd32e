"""Refuses recordings that can be read but cannot be meant: swapped degrees, wrong zones, wrong clocks, empty parts."""

import dataclasses
import functools
import math
import time
from datetime import UTC, datetime
from importlib import resources
from zoneinfo import ZoneInfo

import numpy as np

from data.errors import DataError
from data.spark_etl.schema import EARTH_RADIUS_M
from data.spark_etl.split import Fold

DAY_S = 86_400
MAX_YEARS = 20  # a longer recording has wrong times in it
OLDEST_S = 315_532_800  # 1980: seconds that were divided by a thousand lie before it
LAST_SECOND = 1e11  # year 5138; larger numbers count milliseconds or less
FAR_M = 2_000_000.0  # from the city that gives a time zone its name
MOST_HOURS = 3.5  # between a zone's clock and the sun; in the west of China it is nearly three
FEWEST = 0.01  # of all fixes with a place inside a box that somebody gave
NAMELESS = ("UTC", "GMT", "Etc/")  # zones that stand for no place


def check_times(first_s: int, last_s: int, name: str, is_gps: bool) -> None:
    """Refuses milliseconds taken for seconds, seconds for milliseconds, years to come, and decades most of them empty.

    Args:
        first_s: unix seconds of the first step with observations.
        last_s: of the last.
        name: of the file.
        is_gps: whether --time-format says how its times are written.
    """
    if last_s > LAST_SECOND * 1000:
        raise DataError(f"The times of {name} count micro- or nanoseconds since 1970; divide them, to seconds.")
    if last_s > LAST_SECOND:
        advice = "read them with --time-format unix_ms" if is_gps else "divide them by 1000"
        raise DataError(f"The times of {name} count milliseconds since 1970 (unix_ms), not seconds; {advice}.")
    if last_s < OLDEST_S:
        advice = "check --time-format: unix means seconds, unix_ms milliseconds" if is_gps else "give unix seconds"
        raise DataError(f"The times of {name} end on {_date(last_s)}; {advice}.")
    if last_s > time.time() + DAY_S:
        advice = "check --time-format, or " if is_gps else ""
        raise DataError(f"{name} has times to come, up to {_date(last_s)}; {advice}remove the rows with wrong times.")
    if last_s - first_s > MAX_YEARS * 366 * DAY_S:
        advice = ", or check --time-format" if is_gps else ""
        raise DataError(f"{name} spans {_date(first_s)} to {_date(last_s)}; remove the rows with wrong times{advice}.")


def check_place(lon: float, lat: float, timezone: str, name: str) -> None:
    """Refuses a place whose sun is hours away from the zone's clock; says so if swapping the degrees would mend it.

    Args:
        lon: degrees of the middle of the recording.
        lat: likewise.
        timezone: as given; one without a place, such as UTC, can agree with any.
        name: of the file.
    """
    if timezone.startswith(NAMELESS):
        return
    city = _zone_cities().get(timezone)
    if city and abs(lon) <= 90:
        here, swapped = _distance_m((lon, lat), city), _distance_m((lat, lon), city)
        if here > FAR_M and swapped < here / 2:
            raise DataError(
                f"Longitude and latitude of {name} seem to be in the wrong order: {lon:.2f}, {lat:.2f} is far from "
                f"{timezone} and {lat:.2f}, {lon:.2f} is near; swap them in the file or in --columns."
            )
    hours = min(abs((lon / 15 - offset + 12) % 24 - 12) for offset in _offsets_h(timezone))
    if hours > MOST_HOURS:
        raise DataError(
            f"{name} lies at longitude {lon:.2f}, {hours:.0f} hours from the clock of {timezone}; give the right "
            "--timezone, or check longitude and latitude."
        )


def check_box(inside: int, swapped: int, total: int, name: str) -> None:
    """Refuses a box that far fewer fixes lie in than outside.

    Args:
        inside: fixes in the box.
        swapped: fixes that would lie in it with longitude and latitude exchanged.
        total: all fixes with a place.
    """
    if swapped > inside:
        raise DataError(
            f"Longitude and latitude of {name} seem to be in the wrong order: {swapped:,} of {total:,} fixes lie in "
            f"the box if they are exchanged, {inside:,} as they are; swap them in the file or in --columns."
        )
    if inside < FEWEST * total:
        raise DataError(
            f"Only {inside:,} of {total:,} fixes of {name} lie in the box; give the right --dataset or your own --box, "
            "or check longitude and latitude."
        )


def check_parts(folds: list[Fold], live: np.ndarray, first_s: int, bin_s: int, name: str) -> None:
    """Refuses a recording in one of whose parts nothing was observed at all. Args: live [T] whether a step has any."""
    for fold in folds:
        for part, (start, stop) in dataclasses.asdict(fold).items():
            if not live[start:stop].any():
                begin, end = (_date(first_s + bin_s * step) for step in (start, stop - 1))
                raise DataError(
                    f"Nothing was observed from {begin} to {end}, which is all of the {part} part of {name}; bring a "
                    "recording without this gap, or leave out what lies on one side of it."
                )


def _date(second: float) -> str:
    return str(datetime.fromtimestamp(second, UTC).date())


def _distance_m(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Along the surface. Args: longitude and latitude in degrees."""
    (lon, lat), (far_lon, far_lat) = (map(math.radians, place) for place in (one, other))
    half = math.sin((far_lat - lat) / 2) ** 2 + math.cos(lat) * math.cos(far_lat) * math.sin((far_lon - lon) / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(min(math.sqrt(max(half, 0.0)), 1.0))


def _offsets_h(timezone: str) -> list[float]:
    """Hours ahead of UTC in winter and in summer."""
    moments = (datetime(2024, month, 1, tzinfo=UTC).astimezone(ZoneInfo(timezone)) for month in (1, 7))
    return [offset.total_seconds() / 3600 for moment in moments if (offset := moment.utcoffset()) is not None]


@functools.cache
def _zone_cities() -> dict[str, tuple[float, float]]:
    """Longitude and latitude of the city that names each zone, from the time-zone database's own table."""
    table = (resources.files("tzdata") / "zoneinfo" / "zone.tab").read_text()
    rows = (line.split("\t") for line in table.splitlines() if line and not line.startswith("#"))
    return {row[2]: _degrees(row[1]) for row in rows}


def _degrees(text: str) -> tuple[float, float]:
    """Of ±DDMM±DDDMM or ±DDMMSS±DDDMMSS, latitude first."""
    cut = max(text.rfind("+"), text.rfind("-"))
    lat, lon = (
        (-1 if part[0] == "-" else 1) * (int(part[1 : 1 + digits]) + int(part[1 + digits : 3 + digits]) / 60)
        for part, digits in ((text[:cut], 2), (text[cut:], 3))
    )
    return lon, lat
