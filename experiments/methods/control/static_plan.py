"""The actuated NEMA controller under one plan that never changes: maximum greens of lefts and throughs, and a guard.

Plans of this family are the strongest that needs no learning; the zero action is one of them.
"""

import math
from functools import partial

import numpy as np

from experiments.methods.method import Method
from sim.nema import Detectors, NemaConfig, NemaController, Plan
from sim.network import Network


class StaticPlan(NemaController):
    """A NEMA controller that keeps its own plan and ignores the one that it is told."""

    def __init__(self, max_green: np.ndarray, guard_s: float = math.inf, cfg: NemaConfig | None = None) -> None:
        """Args: max_green: [8] for all intersections alike, or [I, 8]; guard_s: infinite is no guard."""
        super().__init__(cfg or NemaConfig())
        self.max_green, self.guard_s = np.asarray(max_green, float), guard_s

    def reset(self, network: Network) -> None:
        super().reset(network)
        size = len(network.ids)
        self.plan = Plan(np.broadcast_to(self.max_green, (size, 8)), np.full(size, self.guard_s))

    def update(self, detectors: Detectors, plan: Plan) -> np.ndarray:
        return super().update(detectors, self.plan)


def driver(left_s: float, through_s: float, guard_s: float = math.inf) -> StaticPlan:
    """The same maximum greens at every intersection."""
    return StaticPlan(np.array([left_s, through_s] * 4), guard_s)


MIDDLE = Method("static_20_45", driver=partial(driver, 20.0, 45.0))
SHORT = Method("static_14_32", driver=partial(driver, 14.0, 32.0))
LONG = Method("static_30_70", driver=partial(driver, 30.0, 70.0))
GUARDED = Method("static_20_45_guard", driver=partial(driver, 20.0, 45.0, 85.0))
SHORT_GUARDED = Method("static_14_32_guard", driver=partial(driver, 14.0, 32.0, 85.0))
