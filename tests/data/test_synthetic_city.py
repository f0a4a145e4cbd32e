"""Claims about the synthetic city: its files have the promised form, its traffic and incidents the promised effect."""

import csv
import dataclasses
import datetime
import gzip
import hashlib
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import shapely

from data.synthetic_city import BASE, PLACES, CityConfig, CityTruth, city_config, write_city
from data.synthetic_world import KINDS, Incident, metres_per_degree, midnight_s

STEP_S = 900
SMALL = {"vehicles": 25, "days": 2, "parts": 2, "tick_s": 150}
BUSY = dataclasses.replace(city_config("synthetic", "smoke"), days=9, incidents_per_day=7.0, tick_s=100)


def small_city(folder: Path, dataset: str, **changes: object) -> tuple[CityConfig, CityTruth]:
    cfg = dataclasses.replace(BASE[dataset], **{**SMALL, **changes})
    return cfg, write_city(folder, cfg)


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    named = (str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)
    return hashlib.sha256(b"".join(named)).hexdigest()


def tdrive_lines(folder: Path) -> list[str]:
    parts = [gzip.decompress(path.read_bytes()).decode() for path in sorted(folder.glob("*.txt.gz"))]
    files = [path.read_text() for path in sorted(folder.glob("release/taxi_log_2008_by_id/*.txt"))]
    return "".join(parts + files).splitlines()


def parses(row: list[str]) -> bool:
    return len(row) == 4 and all(row)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[CityTruth, np.ndarray, np.ndarray]:
    """A small busy city: its truth, the visits begun per step and zone [L, Z], and where an incident was [L, Z]."""
    folder = tmp_path_factory.mktemp("city") / "busy"
    truth = write_city(folder, BUSY)
    rows = [row for row in csv.reader(dict.fromkeys(tdrive_lines(folder))) if parses(row)]  # exact repetitions dropped
    vehicle = np.array([int(row[0]) for row in rows])
    second = (np.array([row[1] for row in rows], "datetime64[s]") - np.datetime64(BUSY.start, "s")).astype(int)
    place = PLACES["synthetic"]
    metres = (np.array([row[2:] for row in rows], float) - place.box[:2]) * metres_per_degree(place.box)
    cell = np.floor(metres / place.pixel_m).astype(int) @ [1, 1000]
    known = np.floor(truth.zone_position / place.pixel_m).astype(int) @ [1, 1000]  # ascending
    zone = np.where(np.isin(cell, known), np.searchsorted(known, cell), -1)
    order = np.lexsort((second, vehicle))
    vehicle, second, zone = vehicle[order], second[order], zone[order]
    same_trip = (np.diff(vehicle, prepend=-1) == 0) & (np.diff(second, prepend=0) <= 900)
    begun = ~(same_trip & (np.diff(zone, prepend=-2) == 0)) & (zone >= 0)
    flow = np.zeros((BUSY.days * 96, len(known)))
    np.add.at(flow, (second[begun] // STEP_S, zone[begun]), 1.0)
    struck = np.zeros(flow.shape, bool)
    for one in truth.incidents:
        first, last = steps_of(one)
        struck[first : last + 1, one.zone] = True
    return truth, flow, struck


def steps_of(one: Incident) -> tuple[int, int]:
    """First and last step that the incident touches."""
    origin = midnight_s(BUSY, 0)
    return (one.start_s - origin) // STEP_S, (one.end_s - 1 - origin) // STEP_S


def is_weekend() -> np.ndarray:
    days = [(BUSY.start + datetime.timedelta(days=day)).weekday() >= 5 for day in range(BUSY.days)]
    return np.repeat(days, 96)  # [L]


@pytest.mark.parametrize("dataset", sorted(BASE))
def test_equal_seeds_give_equal_bytes_and_other_seeds_do_not(tmp_path: Path, dataset: str) -> None:
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        small_city(tmp_path / name, dataset, days=1, seed=seed)
    assert digest(tmp_path / "one") == digest(tmp_path / "again")
    # The note holds the seed itself, so compare the data files alone.
    for name in ("one", "other"):
        (tmp_path / name / "SYNTHETIC.txt").unlink()
    assert digest(tmp_path / "one") != digest(tmp_path / "other")


def test_tdrive_rows_are_taxi_local_time_lon_lat_with_five_decimals(tmp_path: Path) -> None:
    cfg, truth = small_city(tmp_path, "tdrive", malformed_rate=0.0)
    lines = tdrive_lines(tmp_path)
    assert len(lines) == truth.points > 1000
    form = re.compile(r"\d+,\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,-?\d+\.\d{5},-?\d+\.\d{5}")
    assert all(form.fullmatch(line) for line in lines)
    rows = list(csv.reader(lines))
    assert {int(row[0]) for row in rows} <= set(range(1, cfg.vehicles + 1))
    # Two local days from 2008-02-02: the offset of UTC+8 must not show.
    assert {row[1][:10] for row in rows} == {"2008-02-02", "2008-02-03"}


def test_gzipped_parts_hold_the_rows_of_the_files_per_taxi(tmp_path: Path) -> None:
    small_city(tmp_path / "parts", "tdrive", parts=3)
    small_city(tmp_path / "files", "tdrive", parts=0)
    assert len(list((tmp_path / "parts").glob("taxi_log_part_*.txt.gz"))) == 3
    assert len(list((tmp_path / "files").glob("release/taxi_log_2008_by_id/*.txt"))) == SMALL["vehicles"]
    assert sorted(tdrive_lines(tmp_path / "parts")) == sorted(tdrive_lines(tmp_path / "files"))


def test_porto_trips_parse_and_name_their_taxi_and_second(tmp_path: Path) -> None:
    _, truth = small_city(tmp_path, "porto", malformed_rate=0.0, empty_rate=0.1)
    with (tmp_path / "train.csv").open(newline="") as file:
        trips = list(csv.DictReader(file))
    lines = [json.loads(trip["POLYLINE"]) for trip in trips]
    assert sum(map(len, lines)) == truth.points > 1000
    assert any(not line for line in lines)
    assert all(trip["TRIP_ID"] == trip["TIMESTAMP"] + "6" + trip["TAXI_ID"] for trip in trips)
    assert all((trip["CALL_TYPE"] == "B") == (trip["ORIGIN_STAND"] != "") for trip in trips)
    assert all((trip["CALL_TYPE"] == "A") == (trip["ORIGIN_CALL"] != "") for trip in trips)
    quoted = (tmp_path / "train.csv").read_text().splitlines()
    assert all(line.startswith('"') and line.endswith('"') for line in quoted)


def test_a_trip_under_way_at_midnight_is_written_whole(tmp_path: Path) -> None:
    cfg, _ = small_city(tmp_path, "porto", vehicles=60, empty_rate=0.0)
    midnight = midnight_s(cfg, 1)
    with (tmp_path / "train.csv").open(newline="") as file:
        trips = [(int(trip["TIMESTAMP"]), trip["POLYLINE"].count("],[")) for trip in csv.DictReader(file)]
    assert any(start < midnight < start + cfg.fix_s * moves for start, moves in trips)


def test_geolife_files_are_crlf_lat_first_and_in_gmt(tmp_path: Path) -> None:
    cfg, truth = small_city(tmp_path, "geolife", malformed_rate=0.0)
    points = 0
    for path in tmp_path.glob("Data/*/Trajectory/*.plt"):
        text = path.read_bytes().decode()
        assert text.count("\r\n") == text.count("\n")
        rows = list(csv.reader(text.splitlines()[6:]))
        points += len(rows)
        times = [datetime.datetime.fromisoformat(f"{row[5]}T{row[6]}") for row in rows]
        assert path.stem == f"{times[0]:%Y%m%d%H%M%S}"
        assert times == sorted(times)
        # Half a unit of the tenth decimal of a day is 4 microseconds; doubles near 40 000 resolve 0.6 microseconds.
        days = [(time - datetime.datetime(1899, 12, 30)) / datetime.timedelta(days=1) for time in times]
        assert np.allclose([float(row[4]) for row in rows], days, rtol=0, atol=1e-9)
        assert np.median([float(row[0]) for row in rows]) == pytest.approx(39.9, abs=0.15)
        # Local midnight at UTC+8 is 16:00 GMT of the day before.
        assert times[0] >= datetime.datetime.combine(cfg.start, datetime.time()) - datetime.timedelta(hours=8)
    assert points == truth.points > 1000


def test_foil_records_hold_both_ends_and_their_own_duration(tmp_path: Path) -> None:
    _, truth = small_city(tmp_path, "manhattan", malformed_rate=0.0, vehicles=60)
    with (tmp_path / "trip_data_1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    assert 2 * len(rows) == truth.points > 1000
    for row in rows:
        begin, end = (datetime.datetime.fromisoformat(row[f"{name}_datetime"]) for name in ("pickup", "dropoff"))
        assert (end - begin).total_seconds() == int(row["trip_time_in_secs"]) >= 0
    assert {len(row["medallion"]) for row in rows} == {32}
    assert len({row["medallion"] for row in rows}) == 60


def test_the_263_taxi_zones_tile_the_box_without_overlap(tmp_path: Path) -> None:
    small_city(tmp_path, "manhattan", days=1)
    features = json.loads((tmp_path / "taxi_zones.geojson").read_text())["features"]
    zones = [shapely.geometry.shape(feature["geometry"]) for feature in features]
    assert sorted(int(feature["properties"]["location_id"]) for feature in features) == list(range(1, 264))
    assert all(zone.is_valid and zone.area > 0 for zone in zones)
    # Inside the box, covering it, and areas that add up to its 0.13 x 0.19 square degrees: no overlap, no gap.
    # Corners on the frame lie on it to one unit of the last decimal, 1e-5 of a side of 0.13: 1e-4 of the area at most.
    box = shapely.box(*PLACES["manhattan"].box)
    assert sum(zone.area for zone in zones) == pytest.approx(0.13 * 0.19, rel=1e-6)
    assert shapely.union_all(zones).symmetric_difference(box).area < 1e-6 * box.area


def test_repeated_rows_come_at_the_promised_rate(tmp_path: Path) -> None:
    cfg, truth = small_city(tmp_path, "tdrive", vehicles=100, malformed_rate=0.0)
    lines = tdrive_lines(tmp_path)
    repeated = sum(one == two for one, two in itertools.pairwise(lines))
    unique = len(lines) - truth.duplicate_rows
    # Repetitions are binomial; four standard deviations. Two fixes of a taxi never share a second.
    assert repeated == truth.duplicate_rows
    tolerance = 4 * math.sqrt(unique * cfg.duplicate_rate * (1 - cfg.duplicate_rate))
    assert abs(repeated - unique * cfg.duplicate_rate) < tolerance


def test_zeros_jumps_and_cut_lines_come_as_often_as_asked(tmp_path: Path) -> None:
    changes = {"vehicles": 100, "zero_rate": 0.02, "jump_rate": 0.01, "malformed_rate": 0.01, "duplicate_rate": 0.0}
    _, truth = small_city(tmp_path, "tdrive", **changes)
    rows = list(csv.reader(tdrive_lines(tmp_path)))
    good = [row for row in rows if parses(row)]
    assert len(good) == truth.points
    assert len(rows) - len(good) == truth.malformed_rows
    lon = np.array([float(row[2]) for row in good])
    box = PLACES["tdrive"].box
    seen = [truth.malformed_rows, (lon == 0).sum(), ((lon != 0) & ((lon < box[0]) | (lon > box[2]))).sum()]
    for count, rate in zip(seen, (0.01, 0.02, 0.01), strict=True):
        assert abs(count - rate * len(rows)) < 4 * math.sqrt(rate * len(rows))  # binomial, four standard deviations


def test_events_file_says_what_the_truth_says(tmp_path: Path) -> None:
    _, truth = small_city(tmp_path, "synthetic", incidents_per_day=20.0)
    with (tmp_path / "events.csv").open(newline="") as file:
        events = list(csv.DictReader(file))
    assert len(events) == len(truth.incidents) > 10
    for event, one in zip(events, truth.incidents, strict=True):
        start, end = (datetime.datetime.fromisoformat(event[name]) for name in ("start", "end"))
        assert (int(start.timestamp()), int(end.timestamp())) == (one.start_s, one.end_s)
        assert start.utcoffset() == datetime.timedelta(hours=1)
        assert datetime.timedelta(minutes=30) <= end - start <= datetime.timedelta(minutes=180)
        assert event["kind"] == one.kind in KINDS
        box = PLACES["synthetic"].box
        where = (np.array([float(event["lon"]), float(event["lat"])]) - box[:2]) * metres_per_degree(box)
        assert np.linalg.norm(where - truth.zone_position[one.zone]) < 2.0  # five decimals are one metre


# A closure lets nobody in, but those inside still move; the other bounds are the ratios that the city promises.
CLAIMS = [("accident", 0.1, 0.5), ("closure", 0.0, 0.2), ("outage", 0.1, 0.5), ("surge", 1.8, 4.5)]


@pytest.mark.parametrize(("kind", "low", "high"), CLAIMS)
def test_incidents_change_the_flow_as_promised(busy: tuple, kind: str, low: float, high: float) -> None:
    truth, flow, struck = busy
    clock, working = np.arange(len(flow)) % 96, ~is_weekend()
    seen, usual = 0.0, 0.0
    for one in truth.incidents:
        first, last = steps_of(one)
        for step in range(first + 1, last) if one.kind == kind and working[first] else ():
            alike = (clock == clock[step]) & working & ~struck[:, one.zone]
            seen, usual = seen + flow[step, one.zone], usual + flow[alike, one.zone].mean()
    # At least 300 visits are usual, so the counting error of the ratio is at most 4.5 / sqrt(4.5 * 300) = 0.12.
    assert usual > 300
    assert low <= seen / usual <= high


def test_weekdays_have_two_commuter_peaks_and_weekends_a_late_one(busy: tuple) -> None:
    _, flow, _ = busy
    weekend = is_weekend()
    hourly = [flow[days].sum(axis=1).reshape(-1, 24, 4).sum(axis=2).mean(axis=0) for days in (~weekend, weekend)]
    # `driving_share` peaks at 8:00 and 17:30, and at 16:00 at weekends; flow follows within one leg (a quarter hour).
    assert hourly[0][:12].argmax() in (7, 8)
    assert 12 + hourly[0][12:].argmax() in (16, 17)
    assert hourly[0][8] > 1.3 * hourly[0][11] < hourly[0][17]
    assert hourly[1].argmax() in (14, 15, 16, 17)
    assert hourly[1][8] < 0.5 * hourly[1].max()


def test_the_morning_fills_the_middle_and_the_evening_empties_it(busy: tuple) -> None:
    truth, flow, _ = busy
    radius = np.linalg.norm(truth.zone_position - truth.zone_position.mean(axis=0), axis=1)
    middle = radius <= np.median(radius)
    clock, working = np.arange(len(flow)) % 96 // 4, ~is_weekend()
    rush = [flow[working & np.isin(clock, hours)].sum(axis=0) for hours in ((7, 8), (17, 18))]  # [Z], [Z]
    share = [visits[middle].sum() / visits.sum() for visits in rush]
    # Thousands of visits each: the standard error of a share is below 0.01.
    assert share[0] > share[1] + 0.03


def test_other_weekdays_explain_most_of_a_weekdays_flow(busy: tuple) -> None:
    _, flow, struck = busy
    working = ~is_weekend()
    days = np.where(struck, np.nan, flow)[working].reshape(-1, 96, flow.shape[1])  # [D, 96, Z]
    error, spread = 0.0, 0.0
    for day in range(len(days)):
        profile = np.nanmean(np.delete(days, day, axis=0), axis=0)
        error += np.nansum((days[day] - profile) ** 2)
        spread += np.nansum((days[day] - np.nanmean(days, axis=(0, 1))) ** 2)
    # Counting noise alone leaves mean / variance, about a quarter, and the profile of few days adds a sixth of that.
    assert error / spread < 0.4


def test_incidents_never_share_a_zone_on_one_day(busy: tuple) -> None:
    truth = busy[0]
    seen = [((one.start_s - midnight_s(BUSY, 0)) // 86400, one.zone) for one in truth.incidents]
    assert len(seen) == len(set(seen)) > 30


def test_every_folder_says_that_it_is_synthetic(tmp_path: Path) -> None:
    cfg, truth = small_city(tmp_path, "geolife", days=1)
    sentence, _, config = (tmp_path / "SYNTHETIC.txt").read_text().partition("\n")
    assert "simulation" in sentence and "not recorded" in sentence
    assert json.loads(config) == {**dataclasses.asdict(cfg), "start": str(cfg.start)}
    assert tmp_path / "SYNTHETIC.txt" in truth.files


def test_bad_requests_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no city 'lagos'"):
        city_config("lagos", "smoke")
    with pytest.raises(ValueError, match="clock change"):
        write_city(tmp_path / "dst", dataclasses.replace(BASE["manhattan"], start=datetime.date(2013, 3, 9), days=3))
    (tmp_path / "data.txt").write_text("precious")
    with pytest.raises(ValueError, match="not empty"):
        write_city(tmp_path, BASE["synthetic"])
