"""How large raw files may be: a line that no memory holds and an archive that no disk holds are refused beforehand."""

import concurrent.futures
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from data.errors import DataError
from data.spark_etl.csv_files import open_packed

MAX_LINE = 1 << 24  # bytes; the longest trip of Porto's recording takes 60 thousand
MAX_FILE = 1 << 38  # bytes of one unpacked file
LOOK = 1 << 16  # bytes that are looked through for the end of a line at a time
DEFLATE = 1032  # times that gzip can expand a file at most
NO_LINES = (".parquet", ".pq", ".npz", ".npy", ".bz2")  # bz2 is expanded first


def check_lines(files: Sequence[Path]) -> None:
    """Refuses a text file one of whose lines is longer than MAX_LINE; may let pass what is shorter than twice that."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # zlib releases the interpreter lock
        found = pool.map(_has_long_line, files)
        for path, is_long in zip(files, found, strict=True):
            if is_long:
                raise DataError(
                    f"{path} has a line of more than {MAX_LINE / 1e6:,.0f} MB, so it is no table; check the file, or "
                    "download it again."
                )


def check_unpacked(archive: Path, member: str, size: int, total: int, target: Path) -> None:
    """Refuses a member that is too large, and one that the disk has no room for.

    Args:
        size: bytes of the member, as the archive says; no more are unpacked.
        total: of it and all members before it.
        target: folder that exists, on the disk to unpack to.
    """
    free = shutil.disk_usage(target).free
    if size > MAX_FILE:
        raise DataError(
            f"{archive} holds {member} of {size / 1e9:,.1f} GB, more than {MAX_FILE / 1e9:,.1f} GB; refused."
        )
    if size > free:
        raise DataError(
            f"{archive} needs {total / 1e9:,.1f} GB or more, and {target} has {free / 1e9:,.1f} GB left; free some, "
            "set TMPDIR, or unpack it elsewhere."
        )


def unzip(path: Path, target: Path) -> None:
    """Unpacks a zip; members that point outside the folder are refused, links become files."""
    total = 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            place = (target / member.filename).resolve()
            if not place.is_relative_to(target.resolve()):
                raise DataError(f"{path} holds {member.filename}, which would be written outside its folder; refused.")
            if member.is_dir():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            total += member.file_size
            check_unpacked(path, member.filename, member.file_size, total, place.parent)
            with archive.open(member) as stream, open(place, "wb") as out:
                shutil.copyfileobj(stream, out)


def untar(path: Path, target: Path) -> None:
    """Unpacks a tar, packed or not; members that point outside the folder are refused by tarfile's own filter."""
    total = 0
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path) as archive:
        for member in archive:
            total += member.size
            check_unpacked(path, member.name, member.size, total, target)
            archive.extract(member, target, filter="data")


def _has_long_line(path: Path) -> bool:
    """Looks for an end of a line once in every MAX_LINE bytes: a piece of that length without one is too long."""
    size = path.stat().st_size
    is_packed = path.suffix == ".gz"
    if path.suffix in NO_LINES or size * (DEFLATE if is_packed else 1) <= MAX_LINE:
        return False
    try:
        with open_packed(path) as stream:
            return _walk_packed(stream) if is_packed else _walk(stream, size)
    except (OSError, EOFError, ValueError):  # damaged: whoever reads it says how
        return False


def _walk(stream: io.BufferedIOBase, size: int) -> bool:
    """Seeks: a few pages are read, not the file."""
    for start in range(0, size - MAX_LINE + 1, MAX_LINE):
        stream.seek(start)
        seen = 0
        while seen < MAX_LINE and (piece := stream.read(min(LOOK, MAX_LINE - seen))):
            if b"\n" in piece or b"\r" in piece:
                break
            seen += len(piece)
        if seen >= MAX_LINE:
            return True
    return False


def _walk_packed(stream: io.BufferedIOBase) -> bool:
    length = 0
    while piece := stream.read(LOOK):
        first, last = piece.find(b"\n"), piece.rfind(b"\n")
        length = length + len(piece) if first < 0 else len(piece) - last - 1
        if length > MAX_LINE:
            return True
    return False
