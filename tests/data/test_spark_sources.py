"""Every reader on small files written by hand: good rows are read exactly, bad ones marked and kept as they were."""

import bz2
import gzip
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import DataFrame

from data.errors import DataError
from data.spark_etl import sources, trips
from data.spark_etl.inputs import find_inputs, spark_path
from data.spark_etl.sources import MALFORMED, NONEXISTENT, GpsColumns

PORTO_HEADER = "TRIP_ID,CALL_TYPE,ORIGIN_CALL,ORIGIN_STAND,TAXI_ID,TIMESTAMP,DAY_TYPE,MISSING_DATA,POLYLINE"
PLT_HEADER = "Geolife trajectory\nWGS 84\nAltitude is in Feet\nReserved 3\n0,2,255,My Track,0,0,2,8421376\n0\n"
FOIL_HEADER = (
    "medallion, hack_license, vendor_id, rate_code, store_and_fwd_flag, pickup_datetime, dropoff_datetime, "
    "passenger_count, trip_time_in_secs, trip_distance, pickup_longitude, pickup_latitude, dropoff_longitude, "
    "dropoff_latitude"
)


def unix(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp())


def split_rows(frame: DataFrame) -> tuple[list, list]:
    """Good rows (time, lon, lat) in order of time, and bad ones (problem, raw) in order."""
    rows = frame.collect()
    good = sorted((row["time_s"], row["lon"], row["lat"]) for row in rows if row["problem"] is None)
    assert all(row["raw"] is None for row in rows if row["problem"] is None)
    return good, sorted((row["problem"], row["raw"]) for row in rows if row["problem"] is not None)


def paths_of(source: str, folder: Path) -> list[str]:
    """Found as the job finds them; the folder's name is part of the test: blanks, brackets and percent signs."""
    return [spark_path(path) for path in find_inputs(source, folder, folder / "scratch").files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "raw data [old] 100%20 é"
    path.mkdir()
    return path


def test_tdrive_reads_plain_gzip_and_bzip2_files_in_folders_and_sets_bad_rows_aside(spark, folder):
    bad = [
        "1,2008-02-02 15:36:08,116.5",
        "1,2008-02-02 15:36:08,116.5,39.9,0",
        "1,2008-02-02 15:36:08,east,39.9",
        "1,2008-02-02 15:36:08,NaN,39.9",
        "1,2008-02-02 15:36:08,116.5,-Infinity",
        "1,2008-02-02 15:36:08,116.5,",
        "1,2008-02-30 15:36:08,116.5,39.9",
        "1,2008-02-02,116.5,39.9",
        "1,15:36:08,116.5,39.9",
        ",2008-02-02 15:36:08,116.5,39.9",
        " ,2008-02-02 15:36:08,116.5,39.9",
    ]
    (folder / "one").mkdir()
    (folder / "one" / "1.txt").write_text("1,2008-02-02 15:36:08,116.51172,39.92123\r\n\n" + "\n".join(bad) + "\n")
    (folder / "2.txt.gz").write_bytes(gzip.compress(b"2,2008-02-03 00:00:00,116.1,39.1\n1,2008-02-04 00:00:00,0,39.2"))
    (folder / "3.txt.bz2").write_bytes(bz2.compress(b"3,2008-02-05 08:00:00,200,39.3\n"))
    (folder / "4.txt").touch()
    frame = sources.read_tdrive(spark, paths_of("tdrive", folder), "Asia/Shanghai").cache()
    good, problems = split_rows(frame)
    assert good == [  # Beijing is eight hours ahead; positions off the Earth are left to the box
        (unix(2008, 2, 2, 7, 36, 8), 116.51172, 39.92123),
        (unix(2008, 2, 2, 16), 116.1, 39.1),
        (unix(2008, 2, 3, 16), 0.0, 39.2),
        (unix(2008, 2, 5), 200.0, 39.3),
    ]
    assert problems == sorted((MALFORMED, row) for row in bad)
    taxis = [row["vehicle"] for row in frame.filter("problem is null").orderBy("time_s").collect()]
    assert taxis[0] == taxis[2] and len(set(taxis)) == 3  # one taxi in two files is one vehicle
    frame.unpersist()


def test_porto_reads_quoted_polylines_and_marks_trips_it_cannot_trust(spark, folder):
    rows = [
        '"T1","A","","","20000001","1372636858","A","False","[[-8.618643,41.141412],[-8.618499,41.141376],[0,41.2]]"',
        '"T2","B","","7","20000001","1372636900","A","False","[]"',
        '"T3","C","","","20000002","1372637000","A","True","[[-8.1,41.1],[-8.2,41.2]]"',
        '"T4","C","","","20000002","1372637000","A","False","[[-8.1,41.1],[-8."',
        '"T5","C","","","20000002","soon","A","False","[[-8.1,41.1]]"',
        '"T6","C","","","20000002","1372637100","A","False","[[-8.1],[-8.3,41.3,5]]"',
        '"T7","C","","","20000002","1372637200","A","False"',
        '"T8","C","","","","1372637300","A","False","[[-8.1,41.1]]"',
        '"T9","C","","","20000002","1372637400","A","","[[-8.1,41.1]]"',
        '"TA","C","","","20000002","1372637500","A","False","[[NaN,41.1]]"',
        '"TB","C","","","20000002","1372637600","A","False","[[-8.1,41.1]]","more"',
    ]
    header = ",".join(f'"{name}"' for name in PORTO_HEADER.split(","))
    (folder / "train.csv.gz").write_bytes(gzip.compress("\n".join([header, *rows]).encode()))
    good, problems = split_rows(sources.read_porto(spark, paths_of("porto", folder)))
    assert good == [(1372636858, -8.618643, 41.141412), (1372636873, -8.618499, 41.141376), (1372636888, 0.0, 41.2)]
    # T3 has two points, T6 two broken ones, each other trip counts once; the empty T2 has no point at all.
    names = [raw.split(",")[0] for _, raw in problems]
    assert names == ["T3", "T3", "T4", "T5", "T6", "T6", "T7", "T8", "T9", "TA", "TB"]
    assert {problem for problem, _ in problems} == {MALFORMED}


def test_porto_trips_that_share_an_id_are_told_apart_by_their_start(spark, folder):
    rows = [f'"T1","A","","","1","{start}","A","False","[[-8.6,41.1]]"' for start in (1372636858, 1372636900)]
    (folder / "train.csv").write_text("\n".join([PORTO_HEADER, *rows]))
    found = sources.read_porto(spark, paths_of("porto", folder)).collect()
    assert len({row["trip"] for row in found}) == 2 and len({row["vehicle"] for row in found}) == 1


def test_geolife_skips_headers_reads_latitude_first_in_gmt_and_takes_the_user_from_the_folder(spark, folder):
    lines = [
        "39.984702,116.318417,0,492,39744.1201851852,2008-10-23,02:53:04",
        "39.9,116.3,0,492,39744.1,2008-10-23,",
        "39.9,116.3,0,492,39744.1,2008-10-23",
        "39.9,x,0,492,39744.1,2008-10-23,02:53:04",
    ]
    for user, text in (("000", "\n".join(lines)), ("001", lines[0] + "\n\n")):
        place = folder / "Data" / user / "Trajectory"
        place.mkdir(parents=True)
        (place / "20081023.plt").write_bytes((PLT_HEADER + text).replace("\n", "\r\n").encode())
    frame = sources.read_geolife(spark, paths_of("geolife", folder)).cache()
    good, problems = split_rows(frame)
    assert good == [(unix(2008, 10, 23, 2, 53, 4), 116.318417, 39.984702)] * 2
    assert problems == sorted((MALFORMED, line) for line in lines[1:])
    found = frame.filter("problem is null").collect()
    assert len({row["vehicle"] for row in found}) == len({row["trip"] for row in found}) == 2
    frame.unpersist()


def test_foil_trips_have_two_ends_and_a_header_with_blanks(spark, folder):
    start = "M1,H1,CMT,1,N"
    rows = [
        f"{start},2013-01-01 15:11:48,2013-01-01 15:18:10,4,382,1.00,-73.978165,40.757977,-73.989838,40.751171",
        f"{start},2013-01-01,2013-01-01 15:18:10,4,382,1.00,-73.9,40.7,,40.8",  # a bare date, no longitude
        f"{start},2013-01-01 15:11:48,2013-01-01 15:18:10,4,382,1.00,-73.9,40.7,-73.9",  # a field short
        f"{start},2013-03-10 02:30:00,2013-03-10 03:00:00,4,382,1.00,-73.9,40.7,-73.8,40.8",  # the clock skips 02:30
    ]
    (folder / "trip_data_1.csv").write_text("\n".join([FOIL_HEADER, *rows]))
    good, problems = split_rows(trips.read_trips(spark, [spark_path(folder / "trip_data_1.csv")], "America/New_York"))
    assert good == [
        (unix(2013, 1, 1, 20, 11, 48), -73.978165, 40.757977),
        (unix(2013, 1, 1, 20, 18, 10), -73.989838, 40.751171),
        (unix(2013, 3, 10, 7), -73.8, 40.8),
    ]
    assert [problem for problem, _ in problems] == [MALFORMED] * 4 + [NONEXISTENT]
    assert [raw for _, raw in problems].count(rows[2]) == 2  # both its ends, as they were read


def test_uber_pickups_have_american_times_and_equal_rows_are_different_pickups(spark, folder):
    rows = ['"4/1/2014 0:11:00",40.769,-73.9549,"B02512"'] * 2
    bad = [
        '"13/1/2014 0:11:00",40.7,-73.9,"B02512"',
        '"4/1/2014 0:12:00",,-73.9,"B02512"',
        '"4/1/2014 0:12:00",40.7,-73.9',
    ]
    (folder / "uber-raw-data-apr14.csv").write_text("\n".join(['"Date/Time","Lat","Lon","Base"', *rows, *bad]))
    frame = trips.read_trips(spark, [spark_path(folder / "uber-raw-data-apr14.csv")], "America/New_York").cache()
    good, problems = split_rows(frame)
    assert good == [(unix(2014, 4, 1, 4, 11), -73.9549, 40.769)] * 2
    assert [problem for problem, _ in problems] == [MALFORMED] * 3
    assert trips.drop_duplicate_ends(frame).count() == 5
    frame.unpersist()


def test_tlc_parquet_keeps_wall_clock_times_and_zone_ids_as_they_are(spark, folder):
    times = pd.to_datetime(["2023-01-01 00:26:10", "2023-03-12 02:30:00"])
    ends = {"PULocationID": [166, 264], "DOLocationID": [143, None]}
    table = pd.DataFrame({"lpep_pickup_datetime": times, "lpep_dropoff_datetime": times + pd.Timedelta("1h"), **ends})
    table.to_parquet(folder / "green_tripdata_2023-01.parquet", coerce_timestamps="us")
    path = spark_path(folder / "green_tripdata_2023-01.parquet")
    rows = trips.read_trips(spark, [path], "America/New_York").collect()
    found = sorted((row["time_s"] or 0, row["zone_id"], row["problem"]) for row in rows)
    assert found == [
        (0, 264, NONEXISTENT),
        (unix(2023, 1, 1, 5, 26, 10), 166, None),
        (unix(2023, 1, 1, 6, 26, 10), 143, None),
        (unix(2023, 3, 12, 7, 30), None, MALFORMED),  # 03:30 summer time, but nowhere
    ]


def test_files_of_no_known_trip_format_are_refused_with_their_columns(spark, folder):
    (folder / "trip_data_1.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"trip_data_1\.csv has the columns a, b; expected"):
        trips.read_trips(spark, [spark_path(folder / "trip_data_1.csv")], "UTC")


ISO = {  # in Lisbon, UTC+1 in July
    "2014-07-01 10:00:00": unix(2014, 7, 1, 9),
    "2014-07-01T10:00:00.750": unix(2014, 7, 1, 9),
    "2014-07-01T10:00": unix(2014, 7, 1, 9),
    "2014-07-01T10:00:00Z": unix(2014, 7, 1, 10),
    "2014-07-01T10:00:00.123456+00:00": unix(2014, 7, 1, 10),
    "2014-07-01T10:00:00-02:30": unix(2014, 7, 1, 12, 30),
    "2014-07-01T10:00:00+08": unix(2014, 7, 1, 2),
    "2014-07-01T10:00:00+0800": unix(2014, 7, 1, 2),
    "2014-10-26 01:30:00": unix(2014, 10, 26, 0, 30),  # happens twice; the first is summer time
    "2014-03-30T01:30:00+00:00": unix(2014, 3, 30, 1, 30),  # absolute, so nothing skips it
}


def test_gps_times_with_an_offset_are_absolute_and_others_local_to_the_zone(spark, folder):
    bad = ["", "2014-07-01", "10:00:00", "2014", "yesterday", "2014-02-30 10:00:00"]
    text = "".join(f"x,{time},-8.6,41.1\n" for time in (*ISO, *bad, "2014-03-30 01:30:00"))
    (folder / "a.csv").write_text("vehicle,time,lon,lat\n" + text)
    frame = sources.read_gps(spark, paths_of("gps", folder), GpsColumns(), "Europe/Lisbon")
    good, problems = split_rows(frame)
    assert [time for time, _, _ in good] == sorted(ISO.values())
    assert [problem for problem, _ in problems] == [MALFORMED] * len(bad) + [NONEXISTENT]


def test_gps_columns_are_found_by_the_names_that_the_user_gives(spark, folder):
    header = "speed,Stamp, x pos ,y.pos,cab id\n"
    rows = ["1,01/07/2014 10:00,-8.6,41.1,é", "1,01/07/2014 10:00,41.1,é", "1,01/07/2014 10:00,-8.6,41.1,é,7"]
    bad_id = "1,01/07/2014 10:00,-8.6,41.1,"
    (folder / "a.csv").write_text(header + "\n".join([*rows, bad_id]))
    columns = GpsColumns("cab id", "Stamp", "x pos", "y.pos", "dd/MM/yyyy HH:mm")
    good, problems = split_rows(sources.read_gps(spark, paths_of("gps", folder), columns, "Europe/Lisbon"))
    assert good == [(unix(2014, 7, 1, 9), -8.6, 41.1)]
    assert len(problems) == 3 and {raw for _, raw in problems} > set(rows[1:])  # as they were read


@pytest.mark.parametrize(
    ("time_format", "times", "expected"),
    [
        ("unix", ["1404205200", "1404205200.9", "NaN", "inf", "x"], [1404205200] * 2),
        ("unix_ms", ["1404205200999", "-1", ""], [-1, 1404205200]),
        ("yyyy-MM-dd HH:mm:ssXXX", ["2014-07-01 10:00:00+01:00", "2014-07-01 10:00:00"], [1404205200]),
    ],
)
def test_gps_reads_unix_times_and_patterns_and_never_invents_a_time(spark, folder, time_format, times, expected):
    (folder / "a.csv").write_text("vehicle,time,lon,lat\n" + "".join(f"x,{time},-8.6,41.1\n" for time in times))
    columns = GpsColumns(time_format=time_format)
    good, problems = split_rows(sources.read_gps(spark, paths_of("gps", folder), columns, "Europe/Lisbon"))
    assert [time for time, _, _ in good] == expected
    assert len(problems) == len(times) - len(expected)


@pytest.mark.parametrize(("zone", "hour"), [("UTC", 10), (None, 9)])
def test_gps_parquet_times_are_absolute_when_they_carry_a_zone(spark, folder, zone, hour):
    times = pd.to_datetime(["2014-07-01 10:00:00"]).tz_localize(zone)
    table = pd.DataFrame({"vehicle": [7], "time": times, "lon": [-8.6], "lat": [41.1]})
    table.to_parquet(folder / "a.parquet", coerce_timestamps="us")
    good, problems = split_rows(sources.read_gps(spark, paths_of("gps", folder), GpsColumns(), "Europe/Lisbon"))
    assert good == [(unix(2014, 7, 1, hour), -8.6, 41.1)] and not problems


def test_gps_names_the_missing_column_and_refuses_a_mixture_of_formats(spark, folder):
    (folder / "a.csv").write_text("vehicle,when,lon,lat\n")
    with pytest.raises(DataError, match=r"a\.csv has no column time; its columns are vehicle, when, lon, lat\."):
        sources.read_gps(spark, paths_of("gps", folder), GpsColumns(), "UTC")
    pd.DataFrame({"vehicle": [7]}).to_parquet(folder / "b.parquet")
    with pytest.raises(DataError, match="both csv and parquet"):
        sources.read_gps(spark, paths_of("gps", folder), GpsColumns(), "UTC")
