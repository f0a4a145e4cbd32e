"""RESCO's public maps: where they are, their protocol, who may drive them, and one episode.

Ault & Sharon (2021). The maps and their routes come in the wheel of `sumo-rl`, an optional extra.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError
from experiments.evaluation.trips import Watch, trip_metrics
from experiments.methods.phase_rules import PhaseRule, RuleConfig
from sim.lookahead import LookaheadDriver
from sim.network import Network, read_network
from sim.own_programs import NativePrograms, actuated_programs
from sim.session import Scenario, Session, SessionConfig
from sim.sumocfg import demand_of, read_sumocfg
from stream_jax import store
from stream_jax.road.controller import LookaheadConfig
from stream_jax.task import ACTIONS

EXTRA = 'pip install "stream_jax[resco]"'
ROOT = Path(__file__).parents[2]  # of the code, whose version is part of an episode's name


@dataclasses.dataclass(frozen=True)
class Protocol:
    """RESCO's rules of the game; no map has a warm-up."""

    decision_s: int = 10  # how often rules and learners choose
    yellow_s: int = 3
    all_red_s: int = 0
    reach_m: float = 200.0  # of the sensors of rules and learners
    teleport_s: int = -1  # never


MAPS = {
    "cologne1": Protocol(),
    "cologne3": Protocol(),
    "cologne8": Protocol(),
    "ingolstadt1": Protocol(),
    "ingolstadt7": Protocol(),
    "ingolstadt21": Protocol(),
    "grid4x4": Protocol(),
    "arterial4x4": Protocol(decision_s=5, yellow_s=2),
}


@dataclasses.dataclass(frozen=True)
class ActuatedConfig:
    """SUMO's actuated programs: netconvert's own bounds of a green."""

    yellow_s: int
    min_green_s: int = 5
    max_green_s: int = 50


class Controller(NamedTuple):
    """Who may drive."""

    settings: Callable[[Protocol], Any]  # everything that its driver depends on, as a config or None
    driver: Callable[[Any, Network, Path], object]  # settings, network, a folder to write into
    sources: tuple[str, ...]  # its code, whose change makes an episode another one


_SEEING = ("sim/eyes.py", "sim/stages.py")


class Job(NamedTuple):
    """One episode to drive."""

    map: str
    controller: str
    seed: int


def _rule(is_pressure: bool, **options: float) -> Controller:
    def settings(protocol: Protocol) -> RuleConfig:
        timing = protocol.decision_s, protocol.yellow_s, protocol.reach_m
        return RuleConfig(is_pressure, *timing, **options)

    return Controller(
        settings, lambda cfg, network, folder: PhaseRule(cfg), (*_SEEING, "experiments/methods/phase_rules.py")
    )


CONTROLLERS = {
    "fixed": Controller(lambda protocol: None, lambda cfg, network, folder: NativePrograms(None), ()),
    "actuated": Controller(
        lambda protocol: ActuatedConfig(protocol.yellow_s),
        lambda cfg, network, folder: NativePrograms(
            actuated_programs(network, folder / "actuated.add.xml", cfg.yellow_s, cfg.min_green_s, cfg.max_green_s)
        ),
        ("sim/own_programs.py",),
    ),
    "greedy": _rule(is_pressure=False),
    "max_pressure": _rule(is_pressure=True),
    "guarded_max_pressure": _rule(is_pressure=True, guard_s=60.0),
    "lookahead": Controller(
        lambda protocol: LookaheadConfig(yellow_s=protocol.yellow_s, all_red_s=protocol.all_red_s),
        lambda cfg, network, folder: LookaheadDriver(cfg, programs="own"),
        (*_SEEING, "sim/lookahead.py", "stream_jax/road/controller.py", "stream_jax/road/tables.py"),
    ),
}


def maps_folder() -> Path:
    """Where the wheel of `sumo-rl` has its maps; the package itself is not imported."""
    found = importlib.util.find_spec("sumo_rl")
    folder = Path(found.submodule_search_locations[0]) / "nets" / "RESCO" if found else None
    if folder is None or not folder.is_dir():
        raise DataError(f"RESCO's maps come in the wheel of sumo-rl, which is not installed: {EXTRA}.")
    return folder


def config_file(name: str) -> Path:
    """The .sumocfg of a map."""
    path = maps_folder() / name / f"{name}.sumocfg"
    if not path.is_file():
        raise DataError(
            f"The installed sumo-rl has no map {name}; install the version that goes with this one: {EXTRA}."
        )
    return path


@functools.cache
def map_hash(name: str) -> str:
    """Of a map's network, routes and configuration."""
    config = read_sumocfg(config_file(name))
    files = (config.file, config.network, *config.routes, *config.additional)
    return store.key("resco", *(store.file_sha256(path) for path in files))


def settings_key(name: str, controller: str) -> str:
    """Names everything that an episode depends on but its seed: map, protocol, controller, code and SUMO's version."""
    who = CONTROLLERS[controller]
    code = [store.file_sha256(ROOT / source) for source in who.sources]
    facts = map_hash(name), MAPS[name], controller, who.settings(MAPS[name]), code, sumo_version()
    return store.key("resco", *facts)


def sumo_version() -> str:
    """Of the SUMO that drives."""
    return importlib.metadata.version("libsumo")


def drive(job: Job) -> dict[str, float]:
    """One episode from the map's begin to its end; its metrics, and the seconds that it took."""
    began = time.perf_counter()
    network, protocol, who = read_network(config_file(job.map)), MAPS[job.map], CONTROLLERS[job.controller]
    config = read_sumocfg(config_file(job.map))
    whole = Scenario(
        demand_of(config),
        (),
        0,
        config.end_s - config.begin_s,
        job.seed,
        -1,
        np.zeros((0, len(network.ids))),
        config.begin_s,
        config.file,
    )
    with tempfile.TemporaryDirectory() as folder:
        trips = Path(folder) / "trips.xml"
        watch = Watch(who.driver(who.settings(protocol), network, Path(folder)))
        with Session(network, watch, SessionConfig(teleport_s=protocol.teleport_s, trips_file=trips)) as session:
            session.reset(whole)
            rest = np.zeros((len(network.ids), ACTIONS))
            while not session.done:
                session.step(rest)
            forced = session.totals()["teleports"]
        found = trip_metrics(trips) | watch.measured() | {"teleports": forced}
    return found | {"seconds": time.perf_counter() - began}
