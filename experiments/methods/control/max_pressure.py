"""Max-pressure: every ten seconds the phases whose queues most exceed those that they feed (Varaiya, 2013).

It chooses any legal pair of phases, in any order, and knows no forecast. It gets no tuning: ten seconds are customary.
"""

import dataclasses
import math

import numpy as np

from experiments.methods.control import switching
from experiments.methods.method import Method
from sim.nema import Detectors, Plan
from sim.network import Network


@dataclasses.dataclass(frozen=True)
class MaxPressureConfig:
    """When it decides, and whom it lets go first."""

    decision_s: int = 10
    guard_s: float = math.inf  # a driver at a red stop line who waited longer goes first; the guarded variant's 60 s


class MaxPressure:
    """A signal driver; the plan that it is told has no meaning for it."""

    def __init__(self, cfg: MaxPressureConfig) -> None:
        self.cfg = cfg

    def reset(self, network: Network) -> None:
        self.stages = switching.stages_of(network)  # [I, P, 8]
        self.state = switching.started(self.stages)

    def update(self, detectors: Detectors, plan: Plan) -> np.ndarray:
        timer = self.state.timer
        may_change = ~self.state.clearing & (timer > 0) & (timer % self.cfg.decision_s == 0)
        wanted = best_stage(self.stages, self.state.green, detectors, self.cfg.guard_s)
        self.state = switching.switch(self.state, wanted, may_change)
        return switching.lights(self.state)


def best_stage(stages: np.ndarray, green: np.ndarray, detectors: Detectors, guard_s: float) -> np.ndarray:
    """The stage of most pressure, [I, 8] bool; the present one where it is as good.

    Args:
        stages: [I, P, 8] bool.
        green: [I, 8] bool, what is green now.
        guard_s: where a driver of a red phase has waited longer, only stages that serve the longest wait count.
    """
    pressure = (stages * (detectors.queue - detectors.downstream)[:, None]).sum(-1)  # [I, P]
    pressure = pressure + 1e-6 * (stages == green[:, None]).all(-1)
    waited = np.where(green, 0.0, detectors.front_wait)
    longest = waited.argmax(axis=1)
    serves = np.take_along_axis(stages, longest[:, None, None], axis=2)[..., 0]  # [I, P]
    is_guarded = (waited.max(axis=1) > guard_s)[:, None] & serves.any(axis=1, keepdims=True)
    allowed = np.where(is_guarded, serves, stages.any(-1))
    choice = np.where(allowed, pressure, -np.inf).argmax(axis=1)
    return stages[np.arange(len(stages)), choice]


def driver() -> MaxPressure:
    """Plain max-pressure; side streets may starve."""
    return MaxPressure(MaxPressureConfig())


METHOD = Method(
    "max_pressure",
    driver=driver,
    paper_label={"Max-Pressure": "max_pressure"},
    tables={"rl": ("max_pressure",)},
)
