"""Lines, members and links that no table has are refused in a sentence, before anything reads them whole."""

import collections
import gzip
import tarfile
import zipfile

import pytest

from data.errors import DataError
from data.spark_etl import bounds
from data.spark_etl.inputs import find_inputs

Disk = collections.namedtuple("Disk", "total used free")
LIMIT = 1000  # bytes of a line, instead of 16 MB
GOOD = "vehicle,time,lon,lat\n" + "a,1,2,3\n" * 2000
LONG = "vehicle,time,lon,lat\n" + "a,1,2,3\n" * 50 + "x" * (2 * LIMIT) + "\n" + "a,1,2,3\n" * 50


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_LINE", LIMIT)
    monkeypatch.setattr(bounds, "LOOK", 64)


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_long_line_is_found_wherever_it_stands(tmp_path, name):
    bounds.check_lines([write(tmp_path / name, GOOD)])
    for text in (LONG, "x" * 5 * LIMIT, GOOD + "x" * 3 * LIMIT):
        with pytest.raises(DataError, match=f"{name} has a line of more than 0 MB"):
            bounds.check_lines([write(tmp_path / "b", GOOD), write(tmp_path / name, text)])


def test_a_long_line_in_an_archive_ends_in_a_sentence(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", LONG)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(DataError, match=r"a\.csv has a line of more than"):
        find_inputs("gps", tmp_path / "a.zip", tmp_path / "scratch")


@pytest.mark.parametrize("kind", ["a.zip", "a.tar.gz"])
def test_a_member_larger_than_the_bound_or_the_disk_is_refused(tmp_path, monkeypatch, kind):
    write(tmp_path / "a.csv", GOOD)
    path = tmp_path / kind
    if kind == "a.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tmp_path / "a.csv", "a.csv")
    else:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "a.csv", "a.csv")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert [file.name for file in find_inputs("gps", path, tmp_path / "one").files] == ["a.csv"]
    monkeypatch.setattr(bounds, "MAX_FILE", 100)
    with pytest.raises(DataError, match=f"{kind} holds a.csv of .* refused"):
        find_inputs("gps", path, tmp_path / "two")
    monkeypatch.setattr(bounds, "MAX_FILE", 10**9)
    monkeypatch.setattr(bounds.shutil, "disk_usage", lambda place: Disk(10, 5, 5))
    with pytest.raises(DataError, match=f"{kind} needs 0.0 GB or more, and .* has 0.0 GB left"):
        find_inputs("gps", path, tmp_path / "two")


def test_a_link_out_of_the_folder_is_refused_and_one_within_it_is_not(tmp_path):
    outside, raw = write(tmp_path / "secret.csv", GOOD), tmp_path / "raw"
    (raw / "deep").mkdir(parents=True)
    write(raw / "deep" / "a.csv", GOOD)
    (raw / "b.csv").symlink_to(raw / "deep" / "a.csv")
    assert len(find_inputs("gps", raw, tmp_path).files) == 2
    (raw / "c.csv").symlink_to(outside)
    with pytest.raises(DataError, match=r"c\.csv is a link that leads out of"):
        find_inputs("gps", raw, tmp_path)
    (raw / "c.csv").unlink()
    for path in (raw / "b.csv", raw / "deep" / "a.csv"):
        path.unlink()
    (tmp_path / "secret.zip").write_bytes(b"")
    (raw / "c.zip").symlink_to(tmp_path / "secret.zip")
    with pytest.raises(DataError, match=r"c\.zip is a link that leads out of"):
        find_inputs("gps", raw, tmp_path)
