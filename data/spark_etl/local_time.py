"""Wall-clock seconds to unix seconds as plain column arithmetic, with the daylight-saving rules written out.

Spark's own conversion looks the zone up for every row and hides what it does with skipped and repeated hours.
"""

import functools
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F

FIRST_YEAR, LAST_YEAR = 1990, 2040  # outside of these the nearest known offset holds


class Change(NamedTuple):
    """A moment at which a zone's offset from UTC changes."""

    at: int  # unix seconds
    before: int  # offset in seconds until then
    after: int  # and from then on


@functools.cache
def offset_changes(timezone: str) -> tuple[int, tuple[Change, ...]]:
    """The offset in force in 1990 and every later change of it, found by bisection to the second."""
    zone = ZoneInfo(timezone)
    start = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
    changes, day = [], timedelta(days=1)
    for index in range((LAST_YEAR - FIRST_YEAR) * 366):
        low, high = start + index * day, start + (index + 1) * day
        before, after = offset_s(low, zone), offset_s(high, zone)
        if before != after:
            while high - low > timedelta(seconds=1):
                middle = low + (high - low) // 2
                low, high = (middle, high) if offset_s(middle, zone) == before else (low, middle)
            changes.append(Change(round(high.timestamp()), before, after))
    return offset_s(start, zone), tuple(changes)


def local_to_unix(local_s: Column, timezone: str) -> tuple[Column, Column]:
    """Unix seconds of a wall clock given in seconds as if it were UTC, and whether a change of offset skips that time.

    A repeated hour is read as its first occurrence; a skipped one is null.
    """
    offset, changes = offset_changes(timezone)
    if not changes:
        return local_s - offset, F.lit(False)
    # Until the old clock reaches the change, the old offset holds: that is the first occurrence of a repeated hour.
    time_s = F.when(local_s < changes[0].at + changes[0].before, local_s - offset)
    is_skipped = F.lit(False)
    for change, later in zip(changes, (*changes[1:], None), strict=True):
        skipped_until = change.at + max(change.after, change.before)
        is_skipped = is_skipped | ((local_s >= change.at + change.before) & (local_s < skipped_until))
        if later:
            time_s = time_s.when(local_s < later.at + later.before, local_s - change.after)
    time_s = time_s.otherwise(local_s - changes[-1].after)
    return F.when(~is_skipped, time_s), is_skipped


def offset_s(moment: datetime, zone: ZoneInfo) -> int:
    """By how many seconds the clocks of a zone are ahead of UTC at a moment."""
    local = moment.astimezone(zone)
    return round(local.replace(tzinfo=UTC).timestamp() - local.timestamp())
