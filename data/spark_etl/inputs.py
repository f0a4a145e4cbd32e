"""Which raw files a dataset is made of: found, unpacked, hashed, and, when Spark fails on one, named."""

import bz2
import concurrent.futures
import dataclasses
import functools
import gzip
import hashlib
import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
import zoneinfo
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from data.errors import DataError
from data.spark_etl import bounds
from stream_jax.store import file_sha256

PATTERNS = {
    "tdrive": ("*.txt", "*.txt.gz", "*.txt.bz2"),
    "porto": ("train*.csv", "train*.csv.gz", "train*.csv.bz2"),
    "geolife": ("*.plt",),
    "foil": ("trip_data*.csv", "trip_data*.csv.gz"),
    "uber": ("uber-raw-data-*.csv", "uber-raw-data-*.csv.gz"),
    "tlc": ("*tripdata*.parquet",),
    "gps": ("*.csv", "*.csv.gz", "*.parquet", "*.pq"),
}
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
EVENT_PATTERNS = ("events.csv", "nypd*.csv")
ZONE_PATTERNS = ("*zones*.geojson", "*zones*.geojson.gz")
# What the archive modules raise on a damaged, truncated or encrypted file.
_UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, OSError, RuntimeError)
MARKER = "SYNTHETIC.txt"  # a synthetic twin says so in this file


@dataclasses.dataclass(frozen=True)
class RawInputs:
    """The files of one recording."""

    files: tuple[Path, ...]
    zones: Path | None = None
    events: Path | None = None
    synthetic: bool = False

    def describe(self) -> list[dict]:
        """Name, size and SHA-256 of every file, for the manifest; thousands of small ones are described together."""
        extra = [path for path in (self.zones, self.events) if path]
        if len(self.files) <= 50:
            return [_describe(path) for path in (*self.files, *extra)]
        lines = "".join(f"{path.name} {file_sha256(path)}\n" for path in self.files)
        together = {
            "name": f"{len(self.files)} files, {self.files[0].name} to {self.files[-1].name}",
            "bytes": sum(path.stat().st_size for path in self.files),
            "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        }
        return [together, *(_describe(path) for path in extra)]


def find_inputs(
    source: str, raw: Path, scratch: Path, trips: str | None = None, events: Path | None = None
) -> RawInputs:
    """Finds a dataset's files under `raw`, which may be a folder or a single file.

    Args:
        source: the reader's name.
        scratch: where archives are unpacked.
        trips: for Manhattan, which of `foil`, `uber`, `tlc` to read; None takes the first that is there.
        events: an incident log; None looks for one beside the data.
    """
    if not raw.exists():
        raise DataError(f"{raw} does not exist; give the folder of the raw files with --raw.")
    kinds = ([trips] if trips else ["foil", "uber", "tlc"]) if source == "manhattan" else [source]
    folder = raw if raw.is_dir() else raw.parent
    files = _first_kind(raw, kinds)
    if not files and (unpacked := _unpack_archives(raw, scratch)):
        folder, files = unpacked, _first_kind(unpacked, kinds)
    events = events or next(iter(_matching(folder, EVENT_PATTERNS)), None)
    files = [path for path in files if path != events]
    if not files:
        wanted = ", ".join(pattern for kind in kinds for pattern in PATTERNS[kind])
        raise DataError(f"No {source} files ({wanted}) in {raw}; check --raw, or fetch them with --download.")
    zones = next(iter(_matching(folder, ZONE_PATTERNS)), None) if source == "manhattan" else None
    if source == "manhattan" and zones is None:
        raise DataError(f"No taxi zones ({', '.join(ZONE_PATTERNS)}) in {folder}; fetch them with --download.")
    check_readable(files)
    if events:
        check_readable([events])
    bounds.check_lines([*files, *([events] if events else [])])
    places = {place for path in files for place in path.parents[:4]}  # GeoLife's files lie three folders deep
    return RawInputs(tuple(files), zones, events, any((place / MARKER).exists() for place in places))


def spark_path(path: Path) -> str:
    """A local path for Spark's readers, which would take brackets and the like for patterns."""
    return "file:" + re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path.absolute()))


def expand_bzip2(inputs: RawInputs, scratch: Path) -> RawInputs:
    """The same recording with its bzip2 files expanded, all cores at once: C is faster at it than Java."""
    packed = [path for path in inputs.files if path.suffix == ".bz2"]
    if not packed:
        return inputs
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # bz2 releases the interpreter lock
        expanded = dict(zip(packed, pool.map(functools.partial(_expand, scratch), enumerate(packed)), strict=True))
    bounds.check_lines(list(expanded.values()))
    return dataclasses.replace(inputs, files=tuple(expanded.get(path, path) for path in inputs.files))


def check_readable(files: Sequence[Path]) -> None:
    """Refuses a missing file, and a recording all of whose files are empty."""
    for path in files:
        if not path.is_file():
            raise DataError(f"{path} does not exist; check the path.")
    if all(path.stat().st_size == 0 for path in files):
        raise DataError(f"{files[0]} is empty{' and so are the others' if len(files) > 1 else ''}; download it again.")


def check_timezone(name: str) -> None:
    """Refuses a name that the IANA time-zone database does not have."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise DataError(f"There is no time zone {name!r}; use an IANA name such as Europe/Lisbon.") from None


def find_broken(files: Sequence[Path]) -> tuple[Path, str] | None:
    """The first file that cannot be read to its end, and why; for naming the culprit after Spark failed."""
    openers = {".gz": gzip.open, ".bz2": bz2.open}
    for path in files:
        try:
            if path.suffix in (".parquet", ".pq"):
                for batch in pq.ParquetFile(path).iter_batches():
                    batch.num_rows  # noqa: B018 - reading is the check
                continue
            with openers.get(path.suffix, open)(path, "rb") as stream:
                while stream.read(1 << 24):
                    pass
        except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
            return path, str(error).splitlines()[0]
    return None


def _first_kind(folder: Path, kinds: Sequence[str]) -> list[Path]:
    return next((found for kind in kinds if (found := _matching(folder, PATTERNS[kind]))), [])


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    if folder.is_file():
        return [folder] if any(folder.match(pattern) for pattern in patterns) else []
    found = sorted({path for pattern in patterns for path in folder.rglob(pattern) if path.name != MARKER})
    _refuse_links(folder, found)
    return found


def _refuse_links(folder: Path, files: Sequence[Path]) -> None:
    """A link inside a folder of raw files that leads out of it would read what nobody asked for."""
    root = folder.resolve()
    for path in files:
        if not path.resolve().is_relative_to(root):
            raise DataError(
                f"{path} is a link that leads out of {folder}; put the file itself there, or name it by --raw."
            )


def _expand(scratch: Path, numbered: tuple[int, Path]) -> Path:
    index, path = numbered
    target = scratch / f"{index:05d}-{path.stem}"
    try:
        with bz2.open(path, "rb") as stream, open(target, "wb") as out:
            shutil.copyfileobj(stream, out, 1 << 22)
    except EOFError:
        raise DataError(f"{path} is truncated (it ends in the middle of a block); download it again.") from None
    except OSError as error:
        if error.errno is None:  # what the decompressor raises on bytes that are no bzip2
            raise DataError(f"{path} is damaged ({error}); download it again.") from None
        raise DataError(
            f"Cannot expand {path} into {scratch}: {error.strerror}; free some space or set TMPDIR."
        ) from None
    return target


def _describe(path: Path) -> dict:
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}


def _unpack_archives(raw: Path, scratch: Path) -> Path | None:
    """Unpacks every archive under `raw` into `scratch`; members that point outside it are refused."""
    places = [raw] if raw.is_file() else sorted(raw.rglob("*"))
    archives = [path for path in places if path.is_file() and path.name.endswith(ARCHIVES)]
    if raw.is_dir():
        _refuse_links(raw, archives)
    for index, path in enumerate(archives):
        target = scratch / f"{index:05d}-{path.name}"
        try:
            bounds.unzip(path, target) if path.suffix == ".zip" else bounds.untar(path, target)
        except tarfile.FilterError as error:
            raise DataError(
                f"{path} holds a member that would be written outside its folder ({error}); refused."
            ) from None
        except _UNREADABLE as error:
            raise DataError(f"{path} cannot be unpacked ({error}); it may be truncated: download it again.") from None
    return scratch if archives else None
