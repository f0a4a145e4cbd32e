"""Fetches the four datasets from their publishers: resumable, checked, and put in place only when whole.

The recordings of the paper's experiments. We found no SHA-256 given by any publisher; where `sha256` is None, the hash
seen at the first download is written to `<file>.sha256` beside the file, and later runs compare with it.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import http.client
import os
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich import progress as bars
from rich.console import Console

from data.errors import DataError

TIMEOUT_S = 30.0  # without a byte from the server
ATTEMPTS = 3  # a transfer that breaks off is taken up again this often
CHUNK = 1 << 20
AGENT = "Mozilla/5.0 (compatible; stream_jax)"  # some of the publishers turn urllib's own name away


@dataclasses.dataclass(frozen=True)
class Source:
    """One file at its publisher."""

    name: str  # in our folder; the Spark job finds files by name
    url: str
    size: int | None = None  # bytes, approximate, for the listing only; None where we found none stated
    sha256: str | None = None  # None: trusted at first sight, see the top of this file
    inner: str | None = None  # a zip inside this zip whose members are unpacked beside it
    optional: bool = False  # fetched only when asked for
    page: str = "the publisher's page"  # where a reader finds the file when the address has moved


Catalogue = Mapping[str, Sequence[Source]]
_MSR = "https://www.microsoft.com/en-us/research/"
_TDRIVE, _TDRIVE_PAGE = f"{_MSR}wp-content/uploads/2016/02/", f"{_MSR}publication/t-drive-trajectory-data-sample/"
_GEOLIFE = "https://download.microsoft.com/download/F/4/8/F4894AA5-FDBC-481E-9285-D5F8C4C4F039/"
_UCI = "https://archive.ics.uci.edu/static/public/339/taxi+service+trajectory+prediction+challenge+ecml+pkdd+2015.zip"
_UBER = "https://raw.githubusercontent.com/fivethirtyeight/uber-tlc-foil-response/master/uber-trip-data/"
_TLC = "https://d37ci6vzurychx.cloudfront.net/trip-data/"
_NYC = "https://data.cityofnewyork.us/api/"
_FOIL = "https://archive.org/download/nycTaxiTripData2013/trip_data.7z"

SOURCES: Catalogue = {
    "tdrive": tuple(Source(f"0{i}.zip", f"{_TDRIVE}0{i}.zip", page=_TDRIVE_PAGE) for i in range(1, 15)),
    "geolife": (Source("geolife-1.3.zip", f"{_GEOLIFE}Geolife%20Trajectories%201.3.zip", size=298_000_000),),
    "porto": (Source("porto.zip", _UCI, size=534_000_000, inner="train.csv.zip"),),
    "manhattan": (
        *(Source(name, _UBER + name) for name in ("uber-raw-data-apr14.csv", "uber-raw-data-may14.csv")),
        *(Source(name, _TLC + name) for name in ("green_tripdata_2023-01.parquet", "green_tripdata_2023-03.parquet")),
        Source("nyc_taxi_zones.geojson", f"{_NYC}geospatial/8meu-9t5y?method=export&format=GeoJSON"),
        Source("nypd_collisions.csv", f"{_NYC}views/h9gi-nx95/rows.csv?accessType=DOWNLOAD"),
        # All of 2013 with drop-offs, as the paper uses; a 7z archive, whose trip_data_*.csv are unpacked by hand.
        Source("trip_data.7z", _FOIL, size=3_700_000_000, optional=True),
    ),
}


def download(
    dataset: str, folder: Path, console: Console, optional: bool = False, sources: Catalogue = SOURCES
) -> list[Path]:
    """Brings a dataset's files into `folder` and returns them; what is already there and right is not fetched again.

    Args:
        optional: also the files that are large and need unpacking by hand.
    """
    if dataset not in sources:
        raise DataError(f"There is no dataset {dataset!r} to download; choose one of {', '.join(sources)}.")
    columns = (bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
    files = []
    with _disk_errors(folder), bars.Progress("{task.description}", *columns, console=console) as progress:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources[dataset]:
            if optional or not source.optional:
                path = fetch(source, folder, progress)
                files += [path, *(_unpack_inner(path, source.inner) if source.inner else ())]
    return files


def fetch(source: Source, folder: Path, progress: bars.Progress) -> Path:
    """Brings one file into `folder`: under its name only when whole and right, as `.part` until then."""
    target, part = folder / source.name, folder / f"{source.name}.part"
    task = progress.add_task(source.name, total=source.size)
    if target.exists():
        _check(source, target, target)
        size = target.stat().st_size
        progress.update(task, total=size, completed=size)
        return target
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _transfer(source, part, progress, task)
            break
        except _CutOffError as cut:
            if attempt == ATTEMPTS:
                trouble = f"The download of {source.name} broke off {ATTEMPTS} times ({cut})"
                raise DataError(f"{trouble}; run the same command again to continue it.") from None
    _check(source, part, target)
    os.replace(part, target)
    _beside(part, ".tag").unlink(missing_ok=True)
    return target


class _CutOffError(Exception):
    """The transfer ended early; another attempt may finish it."""


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not out of https."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        _check_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_url(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname == "127.0.0.1"  # nobody in between
    if parts.scheme != "https" and not is_local:
        raise DataError(f"{url} is not an https address, so the file could be altered on its way; refused.")


def _transfer(source: Source, part: Path, progress: bars.Progress, task: bars.TaskID) -> None:
    """Appends to `part` what is missing of it, or writes it anew if the server will not continue."""
    response = _open(source, part)
    if response is None:
        return
    with response:
        start, total = _span(response, part)
        if start == 0:
            part.unlink(missing_ok=True)  # before its tag changes: old bytes must never carry the new tag
            _write_tag(part, response.headers)
        progress.update(task, total=total, completed=start)
        with open(part, "ab") as out:
            for block in _blocks(response):
                out.write(block)
                progress.update(task, advance=len(block))
    size = part.stat().st_size
    if total is not None and size != total:
        raise _CutOffError(f"{size:,} of {total:,} bytes arrived")


def _open(source: Source, part: Path) -> http.client.HTTPResponse | None:
    """The server's answer, from where `part` ends; None when `part` is already the whole file."""
    _check_url(source.url)
    offset, tag = _resume_point(source, part)
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-"} | ({"If-Range": tag} if tag else {})
    by_hand = f"fetch {source.name} by hand from {source.page}"
    try:
        opener = urllib.request.build_opener(_SafeRedirects)
        response = opener.open(urllib.request.Request(source.url, headers=headers), timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or not offset:  # 416: there is nothing from `offset` on
            raise DataError(f"{source.url} answered {error.code} {error.reason}; try later, or {by_hand}.") from None
        if error.headers.get("Content-Range") == f"bytes */{offset}":
            return None
        part.unlink()
        raise _CutOffError("the server has fewer bytes than were kept") from None
    except (OSError, http.client.HTTPException) as error:
        host, reason = urllib.parse.urlsplit(source.url).netloc, getattr(error, "reason", error)
        raise DataError(f"Cannot reach {host} ({reason}); check the network and run the same command again.") from None
    if response.headers.get_content_type() == "text/html":
        response.close()
        raise DataError(f"{source.url} sent a web page instead of the file; {by_hand}.")
    return response


def _resume_point(source: Source, part: Path) -> tuple[int, str | None]:
    """How many bytes are kept and the tag of their version; 0 when nothing could tell two versions apart."""
    tag_file = _beside(part, ".tag")
    tag = tag_file.read_text() if tag_file.exists() else None
    is_safe = tag is not None or source.sha256 is not None
    return (part.stat().st_size if part.exists() and is_safe else 0), tag


def _write_tag(part: Path, headers: http.client.HTTPMessage) -> None:
    """Notes which version `part` is of; weak ETags do not promise equal bytes."""
    etag = headers.get("ETag", "W/")
    tag = headers.get("Last-Modified") if etag.startswith("W/") else etag
    _beside(part, ".tag").unlink(missing_ok=True)
    if tag:
        _beside(part, ".tag").write_text(tag)


def _span(response: http.client.HTTPResponse, part: Path) -> tuple[int, int | None]:
    """Where the answer starts in the file, and the file's length if the server says it."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if span is None or int(span[1]) != part.stat().st_size:
        part.unlink()
        raise _CutOffError("the server continued at the wrong place")
    return int(span[1]), int(span[2])


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := response.read1(CHUNK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _CutOffError(str(error) or type(error).__name__) from None


def _check(source: Source, path: Path, target: Path) -> None:
    """Compares `path` with the expected hash of `target`, or records its hash; a download that differs is deleted."""
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    record = _beside(target, ".sha256")
    recorded = record.read_text(errors="replace").split() if record.exists() else []
    expected = source.sha256 or next(iter(recorded), None)
    if expected is None:
        record.write_text(f"{found}  {target.name}\n")
    elif found != expected:
        remedy = f"delete {target} and run the same command to fetch it again"
        if path != target:
            path.unlink()
            _beside(path, ".tag").unlink(missing_ok=True)
            renewed = "" if source.sha256 else f" (first delete {record} if the publisher has renewed the file)"
            remedy = f"it was not kept: run the same command again{renewed}"
        raise DataError(f"{target.name} has SHA-256 {found}, expected {expected}; {remedy}.")


def _unpack_inner(outer: Path, inner: str) -> list[Path]:
    """Unpacks the zip `inner` that lies inside the zip `outer` beside `outer`; no member may be written elsewhere."""
    folder = outer.parent.resolve()
    try:
        with zipfile.ZipFile(outer) as archive, archive.open(inner) as stream, zipfile.ZipFile(stream) as nested:
            places = {(folder / m.filename).resolve(): m for m in nested.infolist() if not m.is_dir()}
            for place, member in places.items():
                if not place.is_relative_to(folder) or place == outer.resolve():
                    raise DataError(f"{outer} holds {member.filename}, which has no place in its folder; refused.")
            for place, member in places.items():
                if not place.exists() or place.stat().st_size != member.file_size:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with nested.open(member) as packed, open(_beside(place, ".part"), "wb") as out:
                        shutil.copyfileobj(packed, out, CHUNK)
                    os.replace(_beside(place, ".part"), place)
    except KeyError:
        raise DataError(f"{outer} holds no {inner}; the publisher has changed it: unpack it by hand.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{outer} cannot be unpacked ({error}); delete it and run the same command again.") from None
    return list(places)


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turns a full or read-only folder into one sentence."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"Cannot write to {folder} ({why}); make room there or choose another folder.") from None


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: `python -m data.download porto --out raw/porto`."""
    parser = argparse.ArgumentParser(prog="python -m data.download", description="Fetch a dataset from its publisher.")
    parser.add_argument("dataset", nargs="?", choices=sorted(SOURCES))
    parser.add_argument("--out", type=Path, help="the folder to fill")
    parser.add_argument("--list", action="store_true", help="show the files and addresses, fetch nothing")
    parser.add_argument("--optional", action="store_true", help="also fetch the files marked optional")
    args = parser.parse_args(argv)
    if args.list:
        for source in [s for name, files in SOURCES.items() if args.dataset in (None, name) for s in files]:
            size = f"about {source.size / 1e6:,.0f} MB" if source.size else "size not stated"
            print(f"{source.name} ({size}{', optional' if source.optional else ''})  {source.url}")
        return 0
    if args.dataset is None or args.out is None:
        parser.error("give a dataset and --out DIR, or --list")
    try:
        print(*download(args.dataset, args.out, Console(stderr=True), args.optional), sep="\n")
    except (DataError, KeyboardInterrupt) as error:
        print(str(error) or "Stopped; run the same command again to continue.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
