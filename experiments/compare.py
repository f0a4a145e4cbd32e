"""Do two runs have the same results rows? `python experiments/compare.py BEFORE AFTER`, or `stream-jax compare`."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import rich
import tyro
from rich.table import Table

from data.errors import DataError
from experiments.cli.main import start
from experiments.cli.reading import read
from experiments.evaluation import results

TIMED = ("seconds", "_ms")  # in the names of metrics that no two runs have alike
SHOWN = 5  # rows of each kind that are printed
DESCRIPTION = """\
Compares the results rows of two runs to the last digit; wall-clock times are left out. Use it to see that a change of
the code has changed no number. The exit code is 0 if all rows agree and 1 otherwise.

  stream-jax compare runs/before runs/after
"""


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Which runs."""

    before: tyro.conf.Positional[Path]
    """folder of a run"""
    after: tyro.conf.Positional[Path]
    """folder of another run"""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what differs, file by file; returns 0 if nothing does."""
    args, console = read(CompareOptions, DESCRIPTION, argv, "compare"), rich.get_console()
    files = sorted({*_files(args.before), *_files(args.after)})
    missing = [folder for folder in (args.before, args.after) if not _files(folder)]
    if missing:
        raise DataError(f"{missing[0]} has no results rows; name the folder of a run.")
    table = Table("file", "rows before", "rows after", "rows that differ")
    total = 0
    for name in files:
        one, other = (rows_of([folder / name]) for folder in (args.before, args.after))
        unlike = differing(one, other)
        table.add_row(name, *(str(number) for number in (one.total(), other.total(), unlike)))
        for mark, rows in (("-", one - other), ("+", other - one)):
            for row in list(rows)[:SHOWN]:
                console.print(f"{mark} {row}", markup=False, highlight=False, soft_wrap=True)
        total += unlike
    console.print(table)
    return int(total > 0)


def comparable(out: Path) -> Counter:
    """How often each row of a run is there, without those that tell how long something took."""
    return rows_of([out / name for name in _files(out)])


def rows_of(files: list[Path]) -> Counter:
    """The same of some files of rows; a file that does not exist has none."""
    rows = (row for path in files for row in results.read_rows(path))
    lasting = (row for row in rows if not any(part in str(row.get("metric")) for part in TIMED))
    return Counter(repr(sorted(row.items())) for row in lasting)


def differing(one: Counter, other: Counter) -> int:
    """Rows that are in one of the two only."""
    return sum(((one - other) + (other - one)).values())


def _files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.glob("results/**/*.jsonl"))


if __name__ == "__main__":
    sys.exit(start("compare"))
