"""Maximum greens that follow the vehicles on each approach; nothing is learned, and nothing was tuned.

Every five seconds a cycle of 112 s is divided anew: each phase gets green in proportion to the vehicles that head for
it, per lane, half as they are now and half as they were on average over two minutes. A green still ends as soon as
nobody comes, so a cycle is shorter whenever it can be. There is no waiting guard.
"""

from collections import deque

import numpy as np

from experiments.methods.method import Method
from sim.nema import ACTUATED, MIN_GREEN, OWN_MIN, Detectors, NemaController, Plan, existing_phases
from sim.network import Network
from stream_jax.task import PHASES

CYCLE_S = 112.0  # of which no full cycle is longer
RENEWED_S = 5  # between two plans
MEAN_S = 120  # that the mean looks back
LOST_S = float(ACTUATED.yellow_s + ACTUATED.all_red_s)  # of each phase that follows another
NOBODY = 1e-3  # vehicles per lane that a phase has at least, so that shares exist on an empty road


class Splits(NemaController):
    """The actuated NEMA controller under a plan of its own; it ignores the one that it is told."""

    def reset(self, network: Network) -> None:
        super().reset(network)
        self._lanes = np.array([[max(len(lanes), 1) for lanes in phases] for phases in network.phase_lanes])
        self._is_nema, self._exists = np.asarray(network.is_nema), existing_phases(network)
        self._loads: deque[np.ndarray] = deque(maxlen=MEAN_S)
        self._second = 0

    def update(self, detectors: Detectors, plan: Plan) -> np.ndarray:
        self._loads.append(detectors.present / self._lanes)
        if self._second % RENEWED_S == 0:
            load = 0.5 * self._loads[-1] + 0.5 * np.mean(self._loads, axis=0)
            green = np.where(self._is_nema[:, None], ring_greens(load), sequence_greens(load, self._exists))
            self._plan = Plan(green, np.full(len(green), np.inf))
        self._second += 1
        return super().update(detectors, self._plan)


def ring_greens(load: np.ndarray) -> np.ndarray:
    """Maximum greens of dual rings [I, 8] in seconds: each ring's greens and changes fill the cycle exactly.

    A side of the barrier is as long as its busier ring asks for, and each ring shares it by its own two loads.

    Args:
        load: [I, 8] vehicles per lane of each phase.
    """
    by_side = np.maximum(load, NOBODY).reshape(-1, 2, 2, 2)  # [I, ring, side, phase]
    least = MIN_GREEN.reshape(2, 2, 2)[0]  # [side, phase], the same in both rings
    spare = CYCLE_S - 4 * LOST_S - least.sum()
    side = by_side.sum(-1).max(axis=1)  # [I, side]
    extra = spare * side / side.sum(-1, keepdims=True)
    share = by_side / by_side.sum(-1, keepdims=True)
    return (least + extra[:, None, :, None] * share).reshape(-1, PHASES)


def sequence_greens(load: np.ndarray, exists: np.ndarray) -> np.ndarray:
    """Maximum greens of phases that follow each other [I, 8] in seconds. Args: load, exists [I, 8]."""
    load = np.where(exists, np.maximum(load, NOBODY), 0.0)
    spare = CYCLE_S - (LOST_S + OWN_MIN) * exists.sum(1, keepdims=True)
    return OWN_MIN + spare * load / np.maximum(load.sum(1, keepdims=True), NOBODY)


def driver() -> Splits:
    """Sees the vehicles of each phase, on the approach and waiting to enter it."""
    return Splits()


METHOD = Method("splits", driver=driver)
