"""The dataset on disk: npz shards by time, graph.npz, events.npz, manifest.json; for writer and loader alike.

A dataset is written into a temporary folder beside its own and renamed, so a killed job leaves the old one or none.
"""

import contextlib
import dataclasses
import hashlib
import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.errors import DataError
from stream_jax import store
from stream_jax.store import file_sha256

SCHEMA_VERSION = store.VERSIONS["dataset"]
MANIFEST = "manifest.json"
GRAPH = "graph.npz"
EVENTS = "events.npz"
PART_NAMES = ("train", "val", "calibration", "test")

# What zipfile and numpy raise on bytes that are not what they should be.
_DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, SyntaxError)
_DAMAGE += (zipfile.BadZipFile, zlib.error, tokenize.TokenError, struct.error)


class Shard(NamedTuple):
    """Consecutive steps of the recording."""

    time: np.ndarray  # [T] int64, unix seconds at the start of each step
    values: np.ndarray  # [T, N, F] float32, 0 where not observed
    observed: np.ndarray  # [T, N, F] bool


@dataclasses.dataclass(frozen=True)
class ShardEntry:
    """One line of the manifest's list of shards."""

    file: str
    start: int  # index of its first step
    steps: int
    sha256: str


def write_arrays(path: Path, **arrays: np.ndarray) -> str:
    """Writes an uncompressed npz, whole or not at all, and returns its SHA-256.

    The file can be memory-mapped. Equal arrays give equal bytes.
    """
    with store.whole_file(path) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy")  # its date is fixed at 1980
            with archive.open(entry, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.ascontiguousarray(arrays[name]), allow_pickle=False)
    return file_sha256(path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads a small npz whole."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {remedy(path)}.") from None
    except _DAMAGE:
        raise DataError(f"{path} is damaged; {remedy(path)}.") from None


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Memory-maps the arrays of an uncompressed npz, so that only the pages that are read use memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {entry.filename.removesuffix(".npy"): _map_entry(path, entry) for entry in archive.infolist()}
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {remedy(path)}.") from None
    except _DAMAGE:
        raise DataError(f"{path} is damaged; {remedy(path)}.") from None


def remedy(path: Path) -> str:
    """What to do about a damaged artefact: the folder that it lies in says which stage made it."""
    for place in path.parents:
        if place.name == "data" and place.parent.name == "checkpoint":
            return "copy the checkpoint again, or delete it and run the stage that made it"
        if place.name == "data":
            return "delete its folder and run the etl stage again"
        stage = place.name.partition("-")[0]
        if stage in ("forecast", "detect", "control"):
            return f"delete it and run the {stage} stage again"
    return "delete its folder and run the etl stage again"


def content_hash(folder: Path, files: list[str]) -> str:
    """One hash over the named files' names and bytes."""
    lines = "".join(f"{name} {file_sha256(folder / name)}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_manifest(folder: Path, manifest: dict) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_manifest(folder: Path) -> dict:
    """Reads and checks a manifest's schema version; the rest of the dataset is checked where it is read."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"There is no dataset in {folder} ({MANIFEST} is missing); run the etl stage first.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        manifest = None
    if not isinstance(manifest, dict):
        raise DataError(f"{path} is damaged; {remedy(path)}.")
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}; run the etl stage again."
        )
    return manifest


def verify_content(folder: Path, manifest: dict) -> None:
    """Recomputes every hash; names the first file that was altered or removed."""
    expected = {entry["file"]: entry["sha256"] for entry in manifest["shards"]} | manifest["files"]
    for name, sha256 in expected.items():
        path = folder / name
        if not path.exists():
            raise DataError(f"{path} is missing from the dataset; {remedy(path)}.")
        if file_sha256(path) != sha256:
            raise DataError(f"{path} was altered since it was written; {remedy(path)}.")
    if content_hash(folder, list(expected)) != manifest["content_hash"]:
        raise DataError(f"{folder / MANIFEST} does not belong to its files; {remedy(folder / MANIFEST)}.")


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yields a draft that becomes the dataset `target` when the block ends well; a full disk is said in a sentence."""
    target, is_open = target.absolute(), False
    try:
        with store.whole_folder(target) as draft:
            is_open = True
            yield draft
    except ConnectionError:  # to a Java that died: nothing about the disk
        raise
    except OSError as error:
        if not is_open:
            raise DataError(
                f"Cannot write to {target.parent}: {error.strerror}; choose another folder with --out."
            ) from None
        if error.filename is None and error.errno is None:
            raise
        raise DataError(
            f"Writing the dataset to {target} failed: {error.strerror}; free some space and run again."
        ) from None


def _map_entry(path: Path, entry: zipfile.ZipInfo) -> np.ndarray:
    """A read-only map of one stored array: local zip header, then npy header, then the bytes."""
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed")
    with open(path, "rb") as stream:
        stream.seek(entry.header_offset)
        header = stream.read(30)  # the name's and extra field's lengths stand at bytes 26 and 28
        skip = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        stream.seek(entry.header_offset + 30 + skip)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        if dtype.hasobject or fortran:
            raise ValueError(f"{entry.filename} is not a plain array")
        if 0 in shape:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, mode="r", offset=stream.tell(), shape=shape)
