"""One SUMO process under one signal driver, measured once per control step.

Section 5's road. Control steps last 60 s; signals are set every simulated second by a driver that is held to one plan
during a step. The only file that imports libsumo or traci.
"""

import contextlib
import io
import subprocess
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import libsumo
import numpy as np
import sumolib
import traci
from traci import constants

from sim import scenario as scenarios
from sim.closures import Closures
from sim.detectors import Tracker, no_detectors
from sim.errors import RoadError
from sim.lookahead import decode_prices
from sim.nema import Plan, SeeingDriver, SignalDriver, decode_action
from sim.network import Network
from sim.scenario import Scenario, SessionConfig
from sim.states import GreenClock, StateWriter
from stream_jax.task import ACTIONS
from stream_jax.types import RoadMeasurement

_VEHICLE = (constants.VAR_LANE_ID, constants.VAR_LANEPOSITION, constants.VAR_SPEED)
_DEPARTED = constants.VAR_DEPARTED_VEHICLES_IDS
_ARRIVED = constants.VAR_ARRIVED_VEHICLES_IDS
_FORCED = constants.VAR_TELEPORT_STARTING_VEHICLES_IDS
_PENDING = constants.VAR_PENDING_VEHICLES
EMPTY_S = 600  # nothing departs for so long, or in a whole shorter episode: an error
_FAILURES = (
    libsumo.TraCIException,
    libsumo.FatalTraCIError,
    traci.exceptions.TraCIException,
    traci.exceptions.FatalTraCIError,
    OSError,
)


class Session:
    """Runs scenarios on one network; `with Session(...) as road:` closes SUMO whatever happens."""

    _open_libsumo: ClassVar["Session | None"] = None  # SUMO's library holds one simulation per process

    def __init__(self, network: Network, driver: SignalDriver | SeeingDriver, cfg: SessionConfig | None = None) -> None:
        self.network, self.driver, self.cfg, self.done = network, driver, cfg or SessionConfig(), True
        self._is_native = getattr(driver, "native", False)
        self._seeing = driver if isinstance(driver, SeeingDriver) else None
        self._sumo: Any = None  # libsumo itself or a connection of traci: two modules with the same calls
        self._process: subprocess.Popen | None = None
        self._tracker, self._has_begun = Tracker(network, self.cfg.control_s, self._route), False
        self._writer, self._greens = StateWriter(network), GreenClock(network)
        self.green = self._greens.read()  # [I, 8] seconds that each phase was green in the last control step

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self, scenario: Scenario, warm_up: bool = True) -> RoadMeasurement:
        """Starts the scenario, warms up under the default plan and returns the warm-up's last control step.

        Without `warm_up` the caller drives the warm-up too, by as many whole steps as it has; a rest comes before them,
        under the default plan.
        """
        self.close()
        scenarios.check(scenario)
        self._scenario, self._time = scenario, 0
        self._empty_at = min(EMPTY_S, scenario.warmup_s + scenario.duration_s)
        self._closures = Closures(self.network, scenario.incidents)
        self._allowed: dict[str, list[str]] = {}  # what a closed lane admits again later
        self._start()
        self._tracker = Tracker(self.network, self.cfg.control_s, self._route)
        self._detectors = no_detectors(len(self.network.ids))
        self.driver.reset(self.network)
        self._writer.reset()
        self._greens.reset()
        self.done, self._has_begun = False, True
        measured = self._tracker.measure()
        if scenario.warmup_s == 0:
            self._tracker.begin_totals()
        default = np.zeros((len(self.network.ids), ACTIONS))
        rest, whole = scenario.warmup_s % self.cfg.control_s, scenario.warmup_s // self.cfg.control_s
        # An uneven warm-up begins with the shorter step, so that the last one is whole.
        for seconds in [rest] * bool(rest) + [self.cfg.control_s] * (whole * warm_up):
            measured = self._run(default, seconds)
        return measured

    @property
    def control_step(self) -> int:
        """Control steps since the end of the warm-up, negative within it."""
        return (self._time - self._scenario.warmup_s) // self.cfg.control_s

    def step(self, action: np.ndarray) -> RoadMeasurement:
        """One control step under `decode_action(action)`. Args: action [I, 9]."""
        if self._sumo is None or self.done:
            raise RoadError("the episode is over or was never begun: call reset with a scenario first")
        if np.shape(action) != (len(self.network.ids), ACTIONS):
            raise RoadError(f"action has shape {np.shape(action)}, the road needs {(len(self.network.ids), ACTIONS)}")
        measured = self._run(action, self.cfg.control_s)
        self.done = self._time >= self._scenario.warmup_s + self._scenario.duration_s
        return measured

    def totals(self) -> dict[str, float]:
        """The episode so far, warm-up left out.

        `mean_travel_time_s` is over vehicles whose planned departure lies after the warm-up: their seconds so far,
        waiting to enter included, whether they have finished or not. `trips_finished` counts all that ended.
        """
        if not self._has_begun:
            raise RoadError("there are no totals before the first episode: call reset with a scenario first")
        sums = self._tracker.totals()
        return {
            "mean_travel_time_s": sums.vehicle_seconds / max(sums.vehicles, 1),
            "vehicles": sums.vehicles,
            "trips_finished": sums.finished,
            "teleports": sums.teleports,
            "mean_queue": sums.queue,
            "longest_wait_s": sums.longest_wait,
        }

    def close(self) -> None:
        """Ends SUMO; harmless when it has ended already."""
        sumo, process, self._sumo, self._process, self.done = self._sumo, self._process, None, None, True
        if Session._open_libsumo is self:
            Session._open_libsumo = None
        with contextlib.suppress(*_FAILURES):
            if sumo is not None:
                sumo.close() if process is None else sumo.close(wait=False)
        if process is not None:
            _end(process)

    @property
    def process_id(self) -> int | None:
        """SUMO's process under traci, None under libsumo."""
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        uses_library = self.cfg.backend == "libsumo" and not self.cfg.gui
        if uses_library and Session._open_libsumo is not None:
            raise RoadError("this process already runs a libsumo session: close it first, or use the backend traci")
        programs = getattr(self.driver, "programs", None) if self._is_native else None
        command = scenarios.command(self._scenario, self.network.net_file, self.cfg, programs)
        with self._failures("SUMO could not start"):
            if uses_library:
                libsumo.start(command)
                self._sumo, Session._open_libsumo = libsumo, self
            else:
                self._sumo = self._connect(command)

    def _connect(self, command: list[str]) -> Any:
        port = sumolib.miscutils.getFreeSocketPort() or 0
        self._process = subprocess.Popen([*command, "--remote-port", str(port)], stdout=subprocess.DEVNULL)
        options: dict[str, Any] = {"numRetries": 600, "proc": self._process, "waitBetweenRetries": 0.1}
        with contextlib.redirect_stdout(io.StringIO()):  # traci prints while it waits for SUMO's port
            sumo: Any = traci.connect(port, **options)
        sumo.simulation.subscribe([_DEPARTED, _ARRIVED, _FORCED, _PENDING])
        return sumo

    def _run(self, action: np.ndarray, seconds: int) -> RoadMeasurement:
        plan = decode_prices(action) if self._seeing else decode_action(action, self.network.is_nema)
        with self._failures("SUMO stopped in mid-episode"):
            for _ in range(seconds):
                self._second(plan)
        measured, self.green = self._tracker.measure(), self._greens.read()
        if self._time == self._scenario.warmup_s:
            self._tracker.begin_totals()
        return measured

    def _second(self, plan: Plan | np.ndarray) -> None:
        sumo = self._sumo
        news = self._news(plan)
        for signal, state in news:
            sumo.trafficlight.setRedYellowGreenState(signal, state)
        for lane, is_closed in self._closures.changes(self._time):
            self._close_lane(lane) if is_closed else sumo.lane.setAllowed(lane, self._allowed[lane])
        sumo.simulationStep()
        self._time += 1
        self._greens.second(self._own_states() if self._is_native else news)
        seen, pending, gone, forced = self._ask() if self._process is None else self._receive()
        if self._seeing:
            seen = list(seen)
            self._seeing.see(seen, pending, gone, self._route)
        self._detectors = self._tracker.second(seen, pending, gone, forced)
        if self._time == self._empty_at and not self._tracker.has_met:
            self.close()
            source, begin = self._scenario.config or self._scenario.route_file, self._scenario.begin_s
            when = f"in the {self._time / 60:g} minutes from second {begin}"
            raise RoadError(f"no vehicle of {source} departed {when}: check when its trips depart, and where it begins")

    def _news(self, plan: Plan | np.ndarray) -> list[tuple[str, str]]:
        """(signal, state) of the signals that change."""
        if self._is_native:
            return []
        if self._seeing:
            return self._seeing.states(np.asarray(plan))
        return self._writer.changed(cast(SignalDriver, self.driver).update(self._detectors, cast(Plan, plan)))

    def _own_states(self) -> list[tuple[str, str]]:
        """(signal, state) of all signals, where SUMO runs their programs itself."""
        return [(name, self._sumo.trafficlight.getRedYellowGreenState(name)) for name in self.network.ids]

    def _ask(self) -> tuple:
        """What `Tracker.second` wants, asked value by value: inside one process thrice as fast as subscriptions."""
        vehicle, simulation = self._sumo.vehicle, self._sumo.simulation
        lane, position, speed = vehicle.getLaneID, vehicle.getLanePosition, vehicle.getSpeed
        seen = ((name, (lane(name), position(name), speed(name))) for name in vehicle.getIDList())
        gone, forced = simulation.getArrivedIDList(), simulation.getStartingTeleportIDList()
        return seen, simulation.getPendingVehicles(), gone, forced

    def _receive(self) -> tuple:
        """The same by subscriptions, which arrive together with the step's answer."""
        news = self._sumo.simulation.getSubscriptionResults()
        for name in news[_DEPARTED]:
            self._sumo.vehicle.subscribe(name, _VEHICLE)
        lane, position, speed = _VEHICLE
        results = self._sumo.vehicle.getAllSubscriptionResults()
        seen = ((name, (at[lane], at[position], at[speed])) for name, at in results.items())
        return seen, news[_PENDING], news[_ARRIVED], news[_FORCED]

    def _close_lane(self, lane: str) -> None:
        self._allowed[lane] = self._sumo.lane.getAllowed(lane) or ["all"]  # SUMO says "all" by an empty list
        self._sumo.lane.setDisallowed(lane, ["all"])

    def _route(self, vehicle: str) -> tuple[str, ...]:
        return self._sumo.vehicle.getRoute(vehicle)

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            self.close()
            reason = " ".join(str(error).split()) or "no reason given"
            files = f"{self.network.net_file} with {self._scenario.route_file}"
            raise RoadError(f"{what} on {files}: {reason}") from error


def _end(process: subprocess.Popen) -> None:
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
