"""One episode's demand, how SUMO is run, and the command line that both come to."""

import dataclasses
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sim.binaries import find_binary
from sim.closures import RoadIncident
from sim.errors import RoadError
from sim.sumocfg import read_sumocfg


@dataclasses.dataclass(frozen=True)
class SessionConfig:
    """How SUMO is run."""

    backend: Literal["libsumo", "traci"] = "libsumo"  # inside this process, or a process of its own
    gui: bool = False  # shows the road; always through traci
    control_s: int = 60  # length of a control step
    teleport_s: int = 300  # SUMO moves a vehicle by force after standing this long at the front; -1: never
    trips_file: Path | None = None  # where SUMO writes every trip, unfinished and undeparted ones too

    def __post_init__(self) -> None:
        if (
            self.backend not in ("libsumo", "traci")
            or self.control_s < 1
            or self.teleport_s < -1
            or self.teleport_s == 0
        ):
            raise RoadError("a session needs the backend libsumo or traci, positive control_s, and teleport_s or -1")


class Scenario(NamedTuple):
    """One episode's demand and incidents."""

    route_file: Path
    incidents: tuple[RoadIncident, ...]
    warmup_s: int  # while the empty road fills: driven like the rest, and not judged
    duration_s: int  # after the warm-up
    seed: int
    first_step: int  # index of the city's step at the end of the warm-up, -1 without a city
    flow: np.ndarray  # [T, I] the city's flow behind the demand
    begin_s: int = 0  # SUMO's clock when the warm-up begins
    config: Path | None = None  # a .sumocfg that SUMO reads whole; a route file that it does not name replaces its own
    scale: float = 1.0  # what SUMO multiplies the vehicles by, leaving some out or driving some twice


def check(scenario: Scenario) -> None:
    """Refuses a scenario that SUMO could not drive."""
    if not Path(scenario.route_file).is_file():
        raise RoadError(f"the route file {scenario.route_file} does not exist")
    if scenario.warmup_s < 0 or scenario.duration_s < 1:
        raise RoadError("a scenario needs a warm-up of at least 0 s and a duration of at least 1 s")


def demand_files(scenario: Scenario) -> tuple[Path, ...]:
    """Every file that says who drives, and with a configuration whatever else SUMO loads."""
    if scenario.config is None:
        return (Path(scenario.route_file),)
    named = read_sumocfg(scenario.config)
    return (Path(scenario.route_file), named.file, *named.routes, *named.additional)


def command(scenario: Scenario, net_file: Path, cfg: SessionConfig, programs: Path | None = None) -> list[str]:
    """SUMO's command line. Args: programs: an additional file with programs that SUMO runs itself."""
    options: dict[str, object] = {"--seed": scenario.seed, "--step-length": 1, "--begin": scenario.begin_s}
    options["--time-to-teleport"] = cfg.teleport_s
    if scenario.scale != 1:
        options["--scale"] = scenario.scale
    added = [] if programs is None else [programs]
    if scenario.config is None:
        options |= {"--net-file": net_file, "--route-files": scenario.route_file}
    else:
        named = read_sumocfg(scenario.config)
        options["--configuration-file"] = scenario.config
        if Path(scenario.route_file).resolve() not in (*named.routes, *named.additional):
            options["--route-files"] = scenario.route_file
        added = [*named.additional, *added] if added else []  # SUMO's command line replaces what the file names
    if added:
        options["--additional-files"] = ",".join(map(str, added))
    flags = ["--no-step-log", "--no-warnings", "--duration-log.disable"]
    flags += ["--start", "--quit-on-end"] if cfg.gui else []
    if cfg.trips_file is not None:
        options["--tripinfo-output"] = cfg.trips_file
        flags += ["--tripinfo-output.write-unfinished", "--tripinfo-output.write-undeparted"]
    binary = find_binary("sumo-gui" if cfg.gui else "sumo")
    return [binary, *(str(part) for option in options.items() for part in option), *flags]
