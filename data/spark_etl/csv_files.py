"""How a csv file of a user is written: its delimiter and its header, read by hand before Spark reads the rest.

Spark takes dots and backticks in a name for structure, and numbers names that differ by case alone.
"""

import bz2
import csv
import gzip
import io
from pathlib import Path

from data.errors import DataError

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
MAX_HEADER = 1 << 24  # bytes


def open_packed(path: Path) -> io.BufferedIOBase:
    """The bytes of a file, expanded if it is gz or bz2."""
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    return bz2.BZ2File(path) if path.suffix == ".bz2" else open(path, "rb")


def delimiter_of(path: Path) -> str:
    """What separates the columns: the one of DELIMITERS that cuts the header into most parts."""
    header = _first_line(path)
    delimiter = max(DELIMITERS, key=lambda mark: len(_cut(header, mark)))
    if len(_cut(header, delimiter)) == 1:
        words = ", ".join(DELIMITERS.values())
        raise DataError(
            f"{path.name} has a header of one column, {header.strip()[:80]!r}, so its delimiter is unknown; "
            f"separate the columns by one of: {words}."
        )
    return delimiter


def header_of(path: Path, delimiter: str) -> list[str]:
    """The names of the columns as they stand in the file, without blanks around them.

    A name in quotes may hold anything; a quote in it is doubled (RFC 4180).
    """
    names = [name.strip() for name in _cut(_first_line(path), delimiter)]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise DataError(f"{path.name} has two columns {double[:80]!r}; give each a name of its own.")
    return names


def _cut(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(header), delimiter=delimiter), [])
    except csv.Error:  # a name of more than 131,072 characters
        return [header]


def _first_line(path: Path) -> str:
    with open_packed(path) as stream:
        return stream.readline(MAX_HEADER).decode("utf-8-sig", errors="replace").rstrip("\r\n")
