"""Incident logs as labels beside the shards: a plain events.csv, or the NYPD collisions csv."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from data.errors import DataError

PLAIN_COLUMNS = ("start", "end", "lon", "lat", "kind")
NYPD_COLUMNS = ("CRASH DATE", "CRASH TIME", "LATITUDE", "LONGITUDE")
MAX_KINDS = 127  # labels are int8
NYPD_MINUTES = 60  # the log has no end; an hour is our choice


class EventLog(NamedTuple):
    """Incidents with absolute times."""

    start: np.ndarray  # [K] int64, unix seconds
    end: np.ndarray  # [K] int64
    lon: np.ndarray  # [K] degrees
    lat: np.ndarray  # [K]
    kind: np.ndarray  # [K] str


def read_events(path: Path, timezone: str) -> EventLog:
    """Reads either format, told apart by the header; times without an offset are local to `timezone`."""
    try:
        table = pd.read_csv(path, dtype=str)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable csv of events ({error}).") from None
    if set(PLAIN_COLUMNS) <= set(table.columns):
        start, end, kind = table["start"], table["end"], table["kind"].fillna("event")
        lon, lat = table["lon"], table["lat"]
    elif set(NYPD_COLUMNS) <= set(table.columns):
        start = (
            table["CRASH DATE"].str.replace(r"(\d+)/(\d+)/(\d+)", r"\3-\1-\2", regex=True) + " " + table["CRASH TIME"]
        )
        end, kind = None, pd.Series(["collision"] * len(table))
        lon, lat = table["LONGITUDE"], table["LATITUDE"]
    else:
        raise DataError(
            f"{path} has the columns {', '.join(table.columns)}; expected {', '.join(PLAIN_COLUMNS)} "
            f"or the NYPD's {', '.join(NYPD_COLUMNS)}."
        )
    if kind.nunique() > MAX_KINDS:
        raise DataError(f"{path} has more than {MAX_KINDS} kinds of events; group them in the column kind.")
    start_s = _unix(start, timezone, path)
    end_s = start_s + 60 * NYPD_MINUTES if end is None else _unix(end, timezone, path)
    lon, lat = pd.to_numeric(lon, errors="coerce"), pd.to_numeric(lat, errors="coerce")
    has_place = (lon.notna() & lat.notna() & (lon != 0) & (lat != 0)).to_numpy()
    order = np.argsort(start_s[has_place], kind="stable")
    columns = (start_s, end_s, lon.to_numpy(float), lat.to_numpy(float), kind.to_numpy(str))
    return EventLog(*(column[has_place][order] for column in columns))


def label_events(
    log: EventLog,
    cell_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    first_s: int,
    num_steps: int,
    num_cells: int,
    bin_s: int,
) -> dict[str, np.ndarray]:
    """Labels [T, N] (0 = none, else 1 + index of the kind) and the list of the events that touch the recording.

    Args:
        cell_of: cell index of each (lon, lat), -1 where no cell holds it.
    """
    cell = cell_of(log.lon, log.lat)
    start = (log.start - first_s) // bin_s
    stop = np.maximum(-(-(log.end - first_s) // bin_s), start + 1)
    is_here = (cell >= 0) & (stop > 0) & (start < num_steps)
    kinds = np.unique(log.kind) if len(log.kind) else np.zeros(0, "U1")
    kind = np.searchsorted(kinds, log.kind) + 1
    label = np.zeros((num_steps, num_cells), np.int8)
    for i in np.nonzero(is_here)[0]:
        label[max(start[i], 0) : stop[i], cell[i]] = kind[i]
    return {
        "label": label,
        "start": np.maximum(start[is_here], 0).astype(np.int32),
        "stop": np.minimum(stop[is_here], num_steps).astype(np.int32),
        "cell": cell[is_here].astype(np.int32),
        "kind": kind[is_here].astype(np.int8),
        "kinds": kinds,
    }


def _unix(text: pd.Series, timezone: str, path: Path) -> np.ndarray:
    """Unix seconds of ISO times; one without an offset is a wall-clock time of `timezone`."""
    zone = ZoneInfo(timezone)
    try:
        times = [pd.Timestamp(value) for value in text]
        zoned = [
            time if time.tzinfo else time.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
            for time in times
        ]
        return np.array([int(time.timestamp()) for time in zoned], np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{path} has a time that cannot be read ({error}); write them as 2014-04-01T06:05:00."
        ) from None
