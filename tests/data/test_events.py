"""Incident logs: both formats, local and absolute times, and labels worked by hand."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from data.errors import DataError
from data.spark_etl.events import EventLog, label_events, read_events

HEADER = "start,end,lon,lat,kind\n"
NYPD = "CRASH DATE,CRASH TIME,BOROUGH,LATITUDE,LONGITUDE\n"


def unix(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp())


def write(folder: Path, text: str) -> Path:
    path = folder / "events.csv"
    path.write_text(text)
    return path


def test_local_and_absolute_times_of_a_plain_log_are_told_apart(tmp_path):
    rows = "2014-04-01T12:00:00,2014-04-01T13:00:00,1,2,jam\n2014-04-01T12:00:00+02:00,2014-04-01T12:30:00Z,1,2,\n"
    log = read_events(write(tmp_path, HEADER + rows), "America/New_York")  # UTC-4 in April
    assert log.start.tolist() == [unix(2014, 4, 1, 10), unix(2014, 4, 1, 16)]  # sorted by start
    assert log.end.tolist() == [unix(2014, 4, 1, 12, 30), unix(2014, 4, 1, 17)]
    assert log.kind.tolist() == ["event", "jam"]


def test_an_hour_that_happens_twice_is_read_as_the_first(tmp_path):
    rows = "2014-11-02T01:30:00,2014-11-02T01:45:00,1,2,jam\n"
    log = read_events(write(tmp_path, HEADER + rows), "America/New_York")
    assert log.start.tolist() == [unix(2014, 11, 2, 5, 30)]  # still summer time, UTC-4


def test_nypd_collisions_last_an_hour_and_those_without_a_place_are_left_out(tmp_path):
    rows = "04/01/2014,0:05,MANHATTAN,40.75,-73.98\n04/01/2014,9:00,,,\n4/2/2014,13:15,QUEENS,0,0\n"
    log = read_events(write(tmp_path, NYPD + rows), "America/New_York")
    assert log.start.tolist() == [unix(2014, 4, 1, 4, 5)]
    assert (log.end - log.start).tolist() == [3600]
    assert (log.lon.tolist(), log.lat.tolist(), log.kind.tolist()) == ([-73.98], [40.75], ["collision"])


def test_labels_cover_every_step_that_an_event_touches_inside_the_recording():
    # Steps of 100 s from 1000 s on: [1000, 1100), ... [1400, 1500).
    log = EventLog(
        start=np.array([1050, 1200, 900, 1460, 1250, 2000]),
        end=np.array([1150, 1200, 1001, 9999, 1350, 2100]),
        lon=np.array([0.0, 1.0, 2.0, 0.0, -1.0, 0.0]),
        lat=np.zeros(6),
        kind=np.array(["jam", "fire", "jam", "jam", "jam", "jam"]),
    )
    labels = label_events(log, lambda lon, lat: lon.astype(int), first_s=1000, num_steps=5, num_cells=3, bin_s=100)
    expected = np.zeros((5, 3), np.int8)
    expected[0:2, 0] = 2  # 1050 to 1150 touches two steps; kinds are numbered alphabetically from 1: fire, jam
    expected[2, 1] = 1  # an event without length labels its step
    expected[0, 2] = 2  # began before the recording; 1001 is one second into step 0
    expected[4, 0] = 2  # goes on after the recording
    np.testing.assert_array_equal(labels["label"], expected)
    # The fifth lies in no cell, the sixth after the end.
    assert labels["start"].tolist() == [0, 2, 0, 4] and labels["stop"].tolist() == [2, 3, 1, 5]
    assert labels["cell"].tolist() == [0, 1, 2, 0] and labels["kinds"].tolist() == ["fire", "jam"]


def test_an_empty_log_labels_nothing(tmp_path):
    log = read_events(write(tmp_path, HEADER), "UTC")
    labels = label_events(log, lambda lon, lat: lon.astype(int), 0, 4, 2, 900)
    assert not labels["label"].any() and labels["kinds"].shape == (0,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", "has the columns a, b; expected start, end"),
        (HEADER + "yesterday,2014-04-01T13:00:00,1,2,jam\n", "has a time that cannot be read"),
        (HEADER + ",2014-04-01T13:00:00,1,2,jam\n", "has a time that cannot be read"),
        ("", "is not a readable csv of events"),
        (HEADER + "".join(f"2014-04-01T12:00,2014-04-01T13:00,1,2,k{i}\n" for i in range(128)), "more than 127 kinds"),
    ],
)
def test_a_log_that_cannot_be_read_is_named_in_one_sentence(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        read_events(write(tmp_path, text), "UTC")
    assert "events.csv" in str(caught.value)
