"""Reads a SUMO configuration (.sumocfg): its network, routes, additional files, begin and end.

SUMO itself reads the same file whole when it drives; this reader says beforehand what is missing, in one sentence.
"""

from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple
from xml.parsers import expat

from sumolib.miscutils import parseTime

from sim.errors import RoadError

ENDING = ".sumocfg"
# SUMO takes each option under several names.
NETWORK, ROUTES = ("net-file", "net", "n"), ("route-files", "routes", "r")
ADDITIONAL, BEGIN, END = ("additional-files", "additional", "a"), ("begin", "b"), ("end", "e")


class SumoConfig(NamedTuple):
    """What a configuration says; every file of it exists."""

    file: Path
    network: Path
    routes: tuple[Path, ...]
    additional: tuple[Path, ...]  # detectors, programs, flows and whatever else SUMO loads
    begin_s: int  # SUMO's clock when it begins, 0 unless the file says it
    end_s: int | None  # None: no end is given


def is_sumocfg(path: Path) -> bool:
    """Whether a file is a configuration by its name."""
    return Path(path).suffix == ENDING


def read_sumocfg(path: Path) -> SumoConfig:
    """Reads a configuration; paths in it are relative to its folder, as SUMO takes them.

    Raises:
        RoadError: it is no XML, names no network, or names a file that does not exist.
    """
    path = Path(path)
    options = _options(path)

    def files(names: tuple[str, ...]) -> tuple[Path, ...]:
        found = _first(options, names).split(",")
        return tuple(_existing(path, name.strip()) for name in found if name.strip())

    networks = files(NETWORK)
    if not networks:
        raise RoadError(f"{path} names no net-file")
    begin, end = _seconds(path, options, BEGIN), _seconds(path, options, END)
    end = None if end is None or end < 0 else end  # SUMO writes no end as -1
    if end is not None and end <= (begin or 0):
        raise RoadError(f"{path} ends at {end} s, which is not after its begin")
    return SumoConfig(path.resolve(), networks[0], files(ROUTES), files(ADDITIONAL), begin or 0, end)


def demand_of(config: SumoConfig) -> Path:
    """A file with the configuration's vehicles; additional files may hold them too.

    Raises:
        RoadError: there is no such file.
    """
    found = (*config.routes, *config.additional)
    if not found:
        raise RoadError(f"{config.file} names no route-files, so nothing would drive; add some or give --routes")
    return found[0]


def _options(path: Path) -> dict[str, str]:
    """Every element with a value."""
    options: dict[str, str] = {}

    def begins(name: str, attributes: dict[str, str]) -> None:
        value = attributes.get("value", attributes.get("v"))
        if value is not None:
            options[name] = value

    try:
        with path.open("rb") as stream:
            parse(path, stream, begins)
    except OSError as error:
        raise RoadError(f"{path} cannot be read: {error.strerror or error}") from None
    return options


def parse(path: Path, stream: IO[bytes], begins: Callable[[str, dict[str, str]], None]) -> None:
    """Reads XML piece by piece. Args: begins: is told every element's name and attributes."""
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EntityDeclHandler = begins, _refuse(path)
    try:
        parser.ParseFile(stream)
    except expat.ExpatError as error:
        kind = "configuration" if is_sumocfg(path) else "file"
        raise RoadError(f"{path} is no readable SUMO {kind}: {error}") from None


def _refuse(path: Path) -> Callable[..., None]:
    """Entities are refused: these files have no use for them, an attacker has."""

    def refuse(*_: object) -> None:
        raise RoadError(f"{path} declares XML entities, which are not expanded here; write their text instead")

    return refuse


def _first(options: dict[str, str], names: tuple[str, ...]) -> str:
    return next((options[name] for name in names if name in options), "")


def _existing(config: Path, name: str) -> Path:
    path = config.parent / name
    if not path.is_file():
        raise RoadError(f"{config} names {name}, which does not exist")
    return path.resolve()


def _seconds(config: Path, options: dict[str, str], names: tuple[str, ...]) -> int | None:
    text = _first(options, names)
    if not text:
        return None
    try:
        seconds = parseTime(text)
        if seconds is None:
            raise ValueError("a word such as triggered is no time")
        return round(seconds)
    except (ValueError, OverflowError):
        raise RoadError(
            f"{config} has {names[0]}={text!r}, which is no time; give seconds or hours:minutes:seconds"
        ) from None
