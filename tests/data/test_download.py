"""Downloads against a server on this machine: whole, cut, stubborn, wrong and hostile; nothing here leaves it."""

import errno
import hashlib
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from data import download as module
from data.download import SOURCES, Source, download
from data.errors import DataError

BODY = bytes(range(256)) * 400  # 102 400 bytes
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves one body under every path; the fields are its faults, and `ranges` what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body, self.etag = BODY, '"v1"'
        self.honours_range, self.kind, self.status, self.redirect = True, "application/zip", 200, ""
        self.send_only: list[int] = []  # bytes after which each of the next answers breaks off
        self.ranges: list[str | None] = []

    def source(self, **changes) -> Source:
        """The file `a.zip` of this server."""
        return Source(**{"name": "a.zip", "url": f"http://127.0.0.1:{self.server_port}/a.zip"} | changes)


class Handler(http.server.BaseHTTPRequestHandler):
    """Range and If-Range as RFC 9110 has them."""

    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        body, start = self.server.body, 0
        is_same = self.headers.get("If-Range") in (None, self.server.etag)
        if asked and is_same and self.server.honours_range:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if self.server.redirect:
            self.answer(302, {"Location": self.server.redirect, "Content-Length": "0"})
        elif self.server.status != 200:
            self.answer(self.server.status, {"Content-Length": "0"})
        elif start >= len(body):
            self.answer(416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"})
        else:
            span = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
            self.answer(206 if start else 200, {"Content-Length": str(len(body) - start)} | span)
            self.wfile.write(body[start:][: self.server.send_only.pop(0) if self.server.send_only else None])

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        tag = {"ETag": self.server.etag} if self.server.etag else {}
        for name, value in ({"Content-Type": self.server.kind} | tag | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(folder: Path, *sources: Source, optional: bool = False) -> list[Path]:
    return download("city", folder, Console(file=io.StringIO()), optional, {"city": sources})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def zip_of(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def cut_off(server: Server, folder: Path, kept: int, **changes) -> None:
    """Leaves a `.part` of the first `kept` bytes, as a command that was cut every time does."""
    server.send_only = [kept] + [0] * (module.ATTEMPTS - 1)
    with pytest.raises(DataError, match="broke off 3 times"):
        get(folder, server.source(**changes))
    server.ranges.clear()


def test_a_fresh_download_is_the_servers_bytes_and_its_hash_is_recorded(server, tmp_path):
    (path,) = get(tmp_path / "new" / "folder", server.source())
    assert path.read_bytes() == BODY
    assert (path.parent / "a.zip.sha256").read_text() == f"{SHA256}  a.zip\n"
    assert names(path.parent) == {"a.zip", "a.zip.sha256"}


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_second_run_fetches_nothing(server, tmp_path, sha256):
    first = get(tmp_path, server.source(sha256=sha256))
    assert get(tmp_path, server.source(sha256=sha256)) == first
    assert server.ranges == [None]


def test_a_cut_transfer_is_continued_within_the_same_run(server, tmp_path):
    server.send_only = [1000]
    (path,) = get(tmp_path, server.source())
    assert path.read_bytes() == BODY
    assert server.ranges == [None, "bytes=1000-"]


def test_a_later_run_continues_where_the_earlier_was_cut(server, tmp_path):
    cut_off(server, tmp_path, kept=5000)
    assert (tmp_path / "a.zip.part").read_bytes() == BODY[:5000]
    (path,) = get(tmp_path, server.source())
    assert path.read_bytes() == BODY
    assert server.ranges == ["bytes=5000-"]
    assert names(tmp_path) == {"a.zip", "a.zip.sha256"}


def test_a_truncated_transfer_is_told_with_its_counts_and_never_put_in_place(server, tmp_path):
    server.send_only = [7000, 0, 0]
    with pytest.raises(DataError, match=r"a\.zip broke off 3 times \(7,000 of 102,400 bytes arrived\); run the same"):
        get(tmp_path, server.source())
    assert not (tmp_path / "a.zip").exists()


def test_a_server_that_ignores_range_is_read_from_the_start(server, tmp_path):
    cut_off(server, tmp_path, kept=5000)
    server.honours_range = False
    assert get(tmp_path, server.source())[0].read_bytes() == BODY  # appended, it would be 5 000 bytes longer
    assert server.ranges == ["bytes=5000-"]


def test_bytes_of_two_versions_are_never_joined(server, tmp_path):
    cut_off(server, tmp_path, kept=5000)
    server.body, server.etag = BODY[::-1], '"v2"'
    assert get(tmp_path, server.source())[0].read_bytes() == BODY[::-1]


@pytest.mark.parametrize(("sha256", "asked"), [(None, None), (SHA256, "bytes=5000-")])
def test_without_a_version_tag_only_a_known_checksum_allows_continuing(server, tmp_path, sha256, asked):
    server.etag = None
    server.send_only = [0, 0, 5000]
    with pytest.raises(DataError, match="broke off"):
        get(tmp_path, server.source(sha256=sha256))
    server.ranges.clear()
    (path,) = get(tmp_path, server.source(sha256=sha256))
    assert server.ranges == [asked]
    assert path.read_bytes() == BODY


@pytest.mark.parametrize(("extra", "asked"), [(b"", ["bytes=102400-"]), (b"x", ["bytes=102401-", None])])
def test_a_part_that_is_whole_is_only_renamed_and_a_longer_one_fetched_anew(server, tmp_path, extra, asked):
    (tmp_path / "a.zip.part").write_bytes(BODY + extra)
    (tmp_path / "a.zip.part.tag").write_text(server.etag)
    (path,) = get(tmp_path, server.source())
    assert server.ranges == asked
    assert path.read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server, tmp_path):
    with pytest.raises(DataError) as refusal:
        get(tmp_path, server.source(sha256="0" * 64))
    assert str(refusal.value) == (
        f"a.zip has SHA-256 {SHA256}, expected {'0' * 64}; it was not kept: run the same command again."
    )
    assert names(tmp_path) == set()


def test_a_file_damaged_after_the_download_is_refused_but_not_deleted(server, tmp_path):
    (path,) = get(tmp_path, server.source())
    path.write_bytes(BODY[:-1])
    found = hashlib.sha256(BODY[:-1]).hexdigest()
    with pytest.raises(DataError, match=f"SHA-256 {found}, expected {SHA256}; delete .*a.zip and run"):
        get(tmp_path, server.source())
    assert path.read_bytes() == BODY[:-1]


def test_a_file_the_publisher_has_changed_is_refused_until_the_record_is_deleted(server, tmp_path):
    (path,) = get(tmp_path, server.source())
    path.unlink()
    server.body, server.etag = BODY[::-1], '"v2"'
    with pytest.raises(DataError, match=r"first delete .*a\.zip\.sha256"):
        get(tmp_path, server.source())
    assert names(tmp_path) == {"a.zip.sha256"}
    (tmp_path / "a.zip.sha256").unlink()
    assert get(tmp_path, server.source())[0].read_bytes() == BODY[::-1]


def test_an_unreachable_host_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as closed:  # bound, then closed: nothing listens on its port
        source = closed.source()
    with pytest.raises(DataError, match=r"^Cannot reach 127\.0\.0\.1:\d+ \(.*refused\); check the network[^.]*\.$"):
        get(tmp_path, source)


def test_a_missing_file_and_a_web_page_in_its_place_are_one_sentence_each(server, tmp_path):
    server.status = 404
    with pytest.raises(DataError, match=r"answered 404 Not Found; try later, or fetch a\.zip by hand from there\.$"):
        get(tmp_path, server.source(page="there"))
    server.status, server.kind = 200, "text/html; charset=utf-8"
    with pytest.raises(DataError, match=r"sent a web page instead of the file; fetch a\.zip by hand from there\.$"):
        get(tmp_path, server.source(page="there"))
    assert names(tmp_path) == set()


@pytest.mark.parametrize("url", ["http://example.org/a.zip", "ftp://127.0.0.1/a.zip"])
def test_only_https_is_fetched_also_after_a_redirect(server, tmp_path, url):
    with pytest.raises(DataError, match="not an https address"):
        get(tmp_path, server.source(url=url))
    assert server.ranges == []
    server.redirect = url
    with pytest.raises(DataError, match="not an https address"):
        get(tmp_path, server.source())
    assert names(tmp_path) == set()


def test_a_folder_that_cannot_be_made_or_written_is_one_sentence(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^Cannot write to .*file.in \(Not a directory\); make room"):
        get(tmp_path / "file" / "in", server.source())

    def full_disk(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "open", full_disk, raising=False)
    with pytest.raises(DataError, match=r"^Cannot write to .* \(No space left on device\); make room there or"):
        get(tmp_path, server.source())
    assert not (tmp_path / "a.zip").exists()


def test_a_zip_inside_the_zip_is_unpacked_beside_it_and_only_once(server, tmp_path):
    rows = b"TRIP_ID,POLYLINE\n" * 5000
    server.body = zip_of({"train.csv.zip": zip_of({"train.csv": rows})})
    outer, train = get(tmp_path, server.source(inner="train.csv.zip"))
    assert (train, train.read_bytes()) == (tmp_path / "train.csv", rows)
    written = train.stat().st_mtime_ns
    assert get(tmp_path, server.source(inner="train.csv.zip")) == [outer, train]
    assert train.stat().st_mtime_ns == written
    assert names(tmp_path) == {"a.zip", "a.zip.sha256", "train.csv"}


@pytest.mark.parametrize("name", ["../evil.csv", "/tmp/../{}/evil.csv", "deep/../../evil.csv", "a.zip"])
def test_a_member_that_would_leave_the_folder_is_refused_before_anything_is_unpacked(server, tmp_path, name):
    inner = zip_of({"train.csv": b"first", name.format(str(tmp_path)[1:]): b"evil"})
    server.body = zip_of({"train.csv.zip": inner})
    folder = tmp_path / "raw"
    with pytest.raises(DataError, match=r"has no place in its folder; refused\.$"):
        get(folder, server.source(inner="train.csv.zip"))
    assert names(folder) == {"a.zip", "a.zip.sha256"}
    assert names(tmp_path) == {"raw"}


def test_a_zip_without_the_inner_one_and_no_zip_at_all_are_one_sentence_each(server, tmp_path):
    server.body = zip_of({"readme": b""})
    with pytest.raises(DataError, match=r"holds no train\.csv\.zip"):
        get(tmp_path / "a", server.source(inner="train.csv.zip"))
    server.body = BODY
    with pytest.raises(DataError, match=r"cannot be unpacked \(File is not a zip file\); delete it"):
        get(tmp_path / "b", server.source(inner="train.csv.zip"))


def test_optional_files_are_fetched_only_when_asked_for(server, tmp_path):
    sources = (server.source(), server.source(name="b.zip", optional=True))
    assert get(tmp_path, *sources) == [tmp_path / "a.zip"]
    assert get(tmp_path, *sources, optional=True) == [tmp_path / "a.zip", tmp_path / "b.zip"]


def test_the_catalogue_has_the_four_datasets_over_https_under_distinct_names():
    assert set(SOURCES) == {"tdrive", "geolife", "porto", "manhattan"}
    for files in SOURCES.values():
        assert all(source.url.startswith("https://") for source in files)
        assert len({source.name for source in files}) == len(files) == len({source.url for source in files})


def test_the_command_line_lists_without_fetching_and_refuses_an_unknown_dataset(capsys, tmp_path):
    assert module.main(["porto", "--list"]) == 0
    assert capsys.readouterr().out.startswith("porto.zip (about 534 MB)  https://archive.ics.uci.edu/")
    with pytest.raises(SystemExit):
        module.main(["porto"])
    with pytest.raises(DataError, match="no dataset 'rome' to download; choose one of tdrive, geolife"):
        download("rome", tmp_path, Console(file=io.StringIO()))
