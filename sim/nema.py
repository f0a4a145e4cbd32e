"""Actuated NEMA dual-ring signal control of all intersections at once, legal by construction.

Section 4.3 names NEMA phases and leaves the controller open. Ours is actuated (gap-out, maximum green, phase skipping,
barriers crossed together) because a fixed cycle loses far more travel time than anything learned on top can win back.
The action sets each phase's maximum green and the waiting guard: a driver at the stop line of a red phase who has
waited longer than the guard cuts the conflicting greens.

Phases 1..8 have index 0..7: ring 1 is 0..3, ring 2 is 4..7; {0, 1, 4, 5} stands on one side of the barrier and
{2, 3, 6, 7} on the other; even indices are the protected lefts. Every second `advance` sees the detectors and says what
the coming second shows.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from sim.errors import RoadError
from sim.network import Network
from stream_jax.task import GREENS, PHASES

RED, GREEN, YELLOW = 0, 1, 2

MIN_GREEN = np.array([5.0, 7.0] * 4)  # [8] s: lefts, throughs
DEFAULT_GREEN = np.array([30.0, 70.0] * 4)  # [8] s
OWN_MIN, OWN_DEFAULT = 7.0, 45.0  # s, of the greens of a program of its own, which are neither lefts nor throughs
LONGEST_GREEN = 120.0  # s
GUARD_RANGE = (45.0, 85.0, 115.0)  # s: least, default, most

_RING = np.arange(PHASES) // 4
_SIDE = np.arange(PHASES) // 2 % 2
CONFLICT = ((_RING[:, None] == _RING) | (_SIDE[:, None] != _SIDE)) & ~np.eye(PHASES, dtype=bool)  # [8, 8]


@dataclasses.dataclass(frozen=True)
class NemaConfig:
    """Timing that no action changes; not given in the paper."""

    passage_s: int = 1  # a green ends when its detectors were empty this long; their 40 m are 3 s of driving already
    yellow_s: int = 3
    all_red_s: int = 2
    guard_green_s: int = 10  # green that the waiting guard leaves to what it cuts
    fixed_time: bool = False  # every phase is always called and lasts its maximum green: a fixed cycle


ACTUATED = NemaConfig()


class Plan(NamedTuple):
    """What the controllers are told for one control step."""

    max_green: np.ndarray  # [I, 8] s
    guard: np.ndarray  # [I] s


class Detectors(NamedTuple):
    """What is measured every second."""

    occupied: np.ndarray  # [I, 8] bool: a vehicle stands or drives shortly before the stop line of a lane of the phase
    front_wait: np.ndarray  # [I, 8] s, longest wait among those vehicles
    queue: np.ndarray  # [I, 8] halting vehicles, upstream and not yet inserted ones too
    downstream: np.ndarray  # [I, 8] halting vehicles on the links that the phase feeds
    present: np.ndarray  # [I, 8] vehicles on the approach that head for the phase, not yet inserted ones too


class SignalState(NamedTuple):
    """Where each ring of each intersection stands (R = 2, or 1 for a plain sequence of phases)."""

    phase: np.ndarray  # [I, R] int, the phase that is green or being cleared
    stage: np.ndarray  # [I, R] GREEN, YELLOW, or RED for the all-red after yellow
    timer: np.ndarray  # [I, R] s shown of this stage
    target: np.ndarray  # [I, R] int, the phase to come after the clearance
    gap: np.ndarray  # [I, R] s since the green phase's detectors saw a vehicle
    pressed: np.ndarray  # [I, R] s of this green during which a conflicting call existed


class SignalDriver(Protocol):
    """Whatever turns detectors into lights, once per simulated second."""

    def reset(self, network: Network) -> None:
        """Prepares for a new episode on this network."""

    def update(self, detectors: Detectors, plan: Plan) -> np.ndarray:
        """Light [I, 8] of RED, GREEN or YELLOW for the coming second."""
        ...


@runtime_checkable
class SeeingDriver(Protocol):
    """Whatever sees every vehicle and sets the signals by prices, such as `sim.lookahead`."""

    def reset(self, network: Network) -> None:
        """Prepares for a new episode on this network."""

    def see(
        self,
        vehicles: Iterable,
        pending: Iterable[str],
        gone: Iterable[str],
        route_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        """Takes in one second."""

    def states(self, prices: np.ndarray) -> list[tuple[str, str]]:
        """(signal, state string) of the signals that change for the coming second. Args: prices [I, 9]."""
        ...


class NemaController:
    """Steps the rings of recognised intersections and the phase sequences of all others."""

    def __init__(self, cfg: NemaConfig = ACTUATED) -> None:
        self.cfg = cfg

    def reset(self, network: Network) -> None:
        self._exists = existing_phases(network)
        self._nema = np.flatnonzero(network.is_nema)
        self._other = np.flatnonzero(~network.is_nema)
        self._rings = start(self._exists[self._nema])
        self._sequences = start_sequence(self._exists[self._other])

    def update(self, detectors: Detectors, plan: Plan) -> np.ndarray:
        light = np.zeros(self._exists.shape, np.int8)
        for rows, name, step in ((self._nema, "_rings", advance), (self._other, "_sequences", advance_sequence)):
            if len(rows):
                seen = Detectors(*(field[rows] for field in detectors))
                told = Plan(plan.max_green[rows], plan.guard[rows])
                state = step(getattr(self, name), seen, told, self._exists[rows], self.cfg)
                setattr(self, name, state)
                light[rows] = lights(state, self._exists[rows])
        return light


def decode_action(action: np.ndarray, is_nema: np.ndarray | None = None) -> Plan:
    """The plan that an action stands for; 0 is the default plan, values outside [-1, 1] are clipped.

    Maximum green is log-scaled from the minimum green over the default to 120 s, the guard linear from 45 over 85 to
    115 s.

    Args:
        action: [I, 9] eight maximum greens, then the guard.
        is_nema: [I] bool, whether the phases are lefts and throughs by turns; None: everywhere.
    """
    action = np.asarray(action, np.float64)
    if action.ndim != 2 or action.shape[1] != GREENS.size or np.isnan(action).any():
        raise RoadError(
            f"an action must be numbers of shape [intersections, {GREENS.size}], got {action.shape}, maybe NaN"
        )
    action = np.clip(action, -1.0, 1.0)
    green, guard = action[:, GREENS.place("max_green")], action[:, GREENS.place("guard")][:, 0]
    shortest, usual = _greens(np.ones(len(action), bool) if is_nema is None else is_nema)
    ratio = np.where(green >= 0, LONGEST_GREEN / usual, usual / shortest)
    least, default, most = GUARD_RANGE
    span = np.where(guard >= 0, most - default, default - least)
    return Plan(usual * ratio**green, default + span * guard)


def _greens(is_nema: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimum and default maximum greens [I, 8] in s."""
    nema = np.asarray(is_nema)[:, None]
    return np.where(nema, MIN_GREEN, OWN_MIN), np.where(nema, DEFAULT_GREEN, OWN_DEFAULT)


def existing_phases(network: Network) -> np.ndarray:
    """[I, 8] bool: whether the phase serves any lane."""
    return np.array([[len(links) > 0 for links in phases] for phases in network.phase_links], bool)


def start(exists: np.ndarray) -> SignalState:
    """Both rings green in their through phase of the first side (2 and 6)."""
    return _started(np.tile([1, 5], (len(exists), 1)))


def start_sequence(exists: np.ndarray) -> SignalState:
    """The first phase green."""
    return _started(np.zeros((len(exists), 1), np.int64))


def advance(
    state: SignalState, detectors: Detectors, plan: Plan, exists: np.ndarray, cfg: NemaConfig = ACTUATED
) -> SignalState:
    """The rings one second later; `lights` of the result is what the coming second shows. Args: exists [I, 8]."""
    state = _clear(state, cfg)
    calls, urgent = _calls(state, detectors, plan, exists, cfg)
    state, done = _finished(state, calls, urgent, detectors, plan, exists, cfg)
    leaves, target = _next_in_rings(state.phase, done, calls, exists)
    return _leave(state, leaves, target)


def advance_sequence(
    state: SignalState, detectors: Detectors, plan: Plan, exists: np.ndarray, cfg: NemaConfig = ACTUATED
) -> SignalState:
    """Like `advance` for phases that all exclude each other and follow in order, those without call skipped."""
    state = _clear(state, cfg)
    calls, urgent = _calls(state, detectors, plan, exists, cfg)
    others, least = ~np.eye(PHASES, dtype=bool), np.full(PHASES, OWN_MIN)
    state, done = _finished(state, calls, urgent, detectors, plan, exists, cfg, others, least)
    order = (state.phase + 1 + np.arange(PHASES)) % PHASES  # [I, 8] the others first, itself last
    ahead = np.argmax(np.take_along_axis(calls, order, 1), axis=1)
    target = np.take_along_axis(order, ahead[:, None], 1)
    return _leave(state, done & (target != state.phase), target)


def lights(state: SignalState, exists: np.ndarray) -> np.ndarray:
    """Light [I, 8] of RED, GREEN or YELLOW."""
    light = np.zeros(exists.shape, np.int8)
    np.put_along_axis(light, state.phase, state.stage.astype(np.int8), axis=1)
    return light * exists


def _started(phase: np.ndarray) -> SignalState:
    zeros = np.zeros(phase.shape)
    return SignalState(phase, np.full(phase.shape, GREEN), zeros, phase, zeros, zeros)


def _clear(state: SignalState, cfg: NemaConfig) -> SignalState:
    """Ends yellows and all-reds that have been shown long enough."""
    to_red = (state.stage == YELLOW) & (state.timer >= cfg.yellow_s)
    to_green = (state.stage == RED) & (state.timer >= cfg.all_red_s)
    fresh = to_red | to_green
    return SignalState(
        phase=np.where(to_green, state.target, state.phase),
        stage=np.where(to_red, RED, np.where(to_green, GREEN, state.stage)),
        timer=np.where(fresh, 0.0, state.timer),
        target=state.target,
        gap=np.where(fresh, 0.0, state.gap),
        pressed=np.where(fresh, 0.0, state.pressed),
    )


def _calls(
    state: SignalState, detectors: Detectors, plan: Plan, exists: np.ndarray, cfg: NemaConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Which phases are wanted [I, 8], and which of them are red for longer than the guard allows [I, 8]."""
    if cfg.fixed_time:
        return exists, np.zeros_like(exists)
    urgent = exists & (lights(state, exists) != GREEN) & (detectors.front_wait > plan.guard[:, None])
    return exists & (detectors.occupied | urgent), urgent


def _finished(
    state: SignalState,
    calls: np.ndarray,
    urgent: np.ndarray,
    detectors: Detectors,
    plan: Plan,
    exists: np.ndarray,
    cfg: NemaConfig,
    conflict: np.ndarray = CONFLICT,
    least: np.ndarray = MIN_GREEN,
) -> tuple[SignalState, np.ndarray]:
    """Updates the greens' timers and says which greens have lasted long enough [I, R]."""

    def own(by_phase: np.ndarray) -> np.ndarray:
        return np.take_along_axis(by_phase, state.phase, 1)

    against = conflict[state.phase]  # [I, R, 8]
    wanted = (against & calls[:, None]).any(-1)  # without it, rest in green
    forced = (against & urgent[:, None]).any(-1) & (state.timer >= cfg.guard_green_s)
    gap = np.where(own(detectors.occupied & exists) | cfg.fixed_time & own(exists), 0.0, state.gap + 1.0)
    is_over = (gap >= cfg.passage_s) | (state.pressed >= own(plan.max_green)) | forced
    is_served = state.timer >= own(np.where(exists, least, 0.0))
    done = (state.stage == GREEN) & is_served & wanted & (is_over | ~own(exists))
    return state._replace(gap=gap, pressed=np.where(wanted, state.pressed + 1.0, 0.0)), done


def _next_in_rings(
    phase: np.ndarray, done: np.ndarray, calls: np.ndarray, exists: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which rings leave their green [I, 2], and for which phase [I, 2].

    A ring serves the second phase of its side alone; the barrier is crossed only when both rings are ready in the same
    second. Where nobody waits beyond the barrier, it is crossed and crossed back at once: a ring returns to its first
    phase while the other ring stays green.
    """
    is_first = phase % 2 == 0
    side = _SIDE[phase[:, 0]]  # [I], the same in both rings
    beyond = np.any(np.where(side[:, None] == _SIDE, False, calls), axis=1, keepdims=True)  # [I, 1]
    partner = phase ^ 1
    is_partner_called = np.take_along_axis(calls, partner, 1)
    alone = done & is_partner_called & (is_first | ~beyond)
    is_ready = done & ~(is_first & is_partner_called)
    cross = is_ready.all(1, keepdims=True) & beyond
    first = np.array([0, 4]) + 2 * (1 - side)[:, None]  # [I, 2] first phase beyond the barrier in each ring
    takes_first = np.take_along_axis(calls, first, 1) | ~np.take_along_axis(exists, first + 1, 1)
    return alone | cross, np.where(cross, np.where(takes_first, first, first + 1), partner)


def _leave(state: SignalState, leaves: np.ndarray, target: np.ndarray) -> SignalState:
    """Turns the greens that end yellow and lets one second pass."""
    return state._replace(
        stage=np.where(leaves, YELLOW, state.stage),
        timer=np.where(leaves, 0.0, state.timer) + 1.0,
        target=np.where(leaves, target, state.target),
    )
