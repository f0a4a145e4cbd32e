"""The dataset on disk: what was written is what is read, damage is named, and a broken job leaves no trace."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.spark_etl import shards

RNG = np.random.default_rng(0)
ARRAYS = {
    "time": np.arange(6) * 900,
    "values": RNG.normal(size=(6, 3, 2)).astype(np.float32),
    "observed": RNG.random((6, 3, 2)) < 0.5,
    "empty": np.zeros((0, 2)),
}


def write_dataset(folder: Path) -> dict:
    sha256 = shards.write_arrays(folder / "shard-0000000.npz", **ARRAYS)
    files = {shards.GRAPH: shards.write_arrays(folder / shards.GRAPH, senders=np.arange(3))}
    manifest = {
        "schema_version": shards.SCHEMA_VERSION,
        "shards": [{"file": "shard-0000000.npz", "sha256": sha256}],
        "files": files,
        "content_hash": shards.content_hash(folder, ["shard-0000000.npz", shards.GRAPH]),
    }
    shards.write_manifest(folder, manifest)
    return manifest


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_mapped_and_read_arrays_equal_the_written_ones(tmp_path):
    shards.write_arrays(tmp_path / "a.npz", **ARRAYS)
    mapped, read = shards.map_arrays(tmp_path / "a.npz"), shards.read_arrays(tmp_path / "a.npz")
    assert mapped.keys() == read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(mapped[name], array)
        np.testing.assert_array_equal(read[name], array)
        assert mapped[name].dtype == read[name].dtype == array.dtype
    assert isinstance(mapped["values"], np.memmap) and not mapped["values"].flags.writeable


def test_equal_arrays_give_equal_bytes_whatever_their_order_and_memory_layout(tmp_path):
    one = shards.write_arrays(tmp_path / "one.npz", **ARRAYS)
    turned = {name: np.asfortranarray(ARRAYS[name]) for name in reversed(ARRAYS)}
    assert shards.write_arrays(tmp_path / "other.npz", **turned) == one
    with zipfile.ZipFile(tmp_path / "one.npz") as archive:  # no clock in the bytes: the date that means none
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    changed = ARRAYS | {"values": np.nextafter(ARRAYS["values"], np.float32(9))}
    assert shards.write_arrays(tmp_path / "changed.npz", **changed) != one


def test_numpy_itself_reads_the_shards(tmp_path):
    shards.write_arrays(tmp_path / "a.npz", **ARRAYS)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["values"], ARRAYS["values"])


def test_object_arrays_are_neither_written_nor_mapped(tmp_path):
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        shards.write_arrays(tmp_path / "a.npz", names=np.array(["a", None], object))
    np.savez(tmp_path / "b.npz", names=np.array(["a", None], object))
    for read in (shards.map_arrays, shards.read_arrays):
        with pytest.raises(DataError, match=r"b\.npz is damaged"):
            read(tmp_path / "b.npz")


def test_a_compressed_shard_cannot_be_mapped_and_says_so(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", values=np.zeros(100))
    with pytest.raises(DataError, match=r"a\.npz is damaged; delete its folder"):
        shards.map_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["shard-0000000.npz", shards.GRAPH])
def test_verify_names_the_file_that_was_altered_or_removed(tmp_path, name):
    manifest = write_dataset(tmp_path)
    shards.verify_content(tmp_path, manifest)
    flip(tmp_path / name, -1)
    with pytest.raises(DataError, match=f"{name} was altered since it was written"):
        shards.verify_content(tmp_path, manifest)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing from the dataset; delete its folder"):
        shards.verify_content(tmp_path, manifest)


def test_verify_refuses_a_manifest_whose_own_hash_does_not_fit(tmp_path):
    manifest = write_dataset(tmp_path)
    with pytest.raises(DataError, match="does not belong to its files"):
        shards.verify_content(tmp_path, manifest | {"content_hash": "0" * 64})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damaged_byte_is_caught_by_verify_and_never_breaks_the_readers(tmp_path, data):
    manifest = write_dataset(tmp_path)
    path = tmp_path / "shard-0000000.npz"
    flip(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    with pytest.raises(DataError, match="was altered"):
        shards.verify_content(tmp_path, manifest)
    for read in (shards.map_arrays, shards.read_arrays):
        try:
            read(path)
        except DataError as error:
            assert "is damaged" in str(error)


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip", b"\x93NUMPY"])
def test_a_file_that_is_no_npz_is_called_damaged(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    for read in (shards.map_arrays, shards.read_arrays):
        with pytest.raises(DataError, match=r"a\.npz is damaged"):
            read(tmp_path / "a.npz")


@pytest.mark.parametrize("keep", [100, 300, 600])
def test_a_truncated_npz_is_called_damaged_and_a_missing_one_missing(tmp_path, keep):
    path = tmp_path / "a.npz"
    shards.write_arrays(path, **ARRAYS)
    path.write_bytes(path.read_bytes()[:keep])
    for read in (shards.map_arrays, shards.read_arrays):
        with pytest.raises(DataError, match=r"a\.npz is damaged"):
            read(path)
        with pytest.raises(DataError, match=r"b\.npz is missing"):
            read(tmp_path / "b.npz")


def test_an_entry_that_points_past_the_end_is_called_damaged(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("values.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4',")
    with pytest.raises(DataError, match=r"a\.npz is damaged"):
        shards.map_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "There is no dataset in .*run the etl stage first"),
        ("{", "manifest.json is damaged"),
        ("[]", "manifest.json is damaged"),
        (json.dumps({"schema_version": 99}), "has schema version 99, this program reads 1"),
        ("{}", "has schema version None"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(tmp_path, text, sentence):
    if text is not None:
        (tmp_path / shards.MANIFEST).write_text(text)
    with pytest.raises(DataError, match=sentence):
        shards.read_manifest(tmp_path)


def test_a_block_that_ends_well_replaces_the_old_folder(tmp_path):
    target = tmp_path / "data"
    for content in ("old", "new"):
        with shards.atomic_folder(target) as draft:
            (draft / content).touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt(), DataError("bad input")])
def test_an_exception_leaves_the_old_folder_and_nothing_else(tmp_path, error):
    target = tmp_path / "data"
    with shards.atomic_folder(target) as draft:
        (draft / "old").touch()
    with pytest.raises(type(error)), shards.atomic_folder(target) as draft:
        (draft / "new").touch()
        raise error
    assert [path.name for path in target.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_failing_rename_brings_the_old_folder_back(tmp_path, monkeypatch):
    target = tmp_path / "data"
    with shards.atomic_folder(target) as draft:
        (draft / "old").touch()
    rename = Path.rename

    def fail_for_drafts(self: Path, other: Path) -> Path:
        if ".tmp-" in self.name:
            raise OSError(28, "No space left on device", str(self))
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fail_for_drafts)
    with pytest.raises(DataError, match="No space left on device"), shards.atomic_folder(target) as draft:
        (draft / "new").touch()
    assert [path.name for path in target.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("pid", [2**22 + 1, os.getpid()], ids=["above the largest", "used before in a container"])
def test_what_a_killed_job_left_is_cleaned(tmp_path, pid):
    leftover, backup = tmp_path / f".data.tmp-{pid}", tmp_path / ".data.old"
    leftover.mkdir()
    (leftover / "half").touch()
    backup.mkdir()
    (backup / "old").touch()  # killed between the two renames: the old dataset is only here
    with pytest.raises(RuntimeError), shards.atomic_folder(tmp_path / "data") as draft:
        assert list(draft.iterdir()) == []
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["old"]


def test_the_draft_of_a_job_that_still_runs_is_left_alone(tmp_path):
    running = tmp_path / f".data.tmp-{os.getppid()}"
    running.mkdir()
    with shards.atomic_folder(tmp_path / "data"):
        pass
    assert running.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write to .*file.*choose another folder"):
        with shards.atomic_folder(tmp_path / "file" / "data"):
            pass
