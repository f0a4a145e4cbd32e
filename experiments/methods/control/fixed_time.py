"""Fixed timing: a cycle of 90 s in four equal parts, whatever the traffic. The paper's weakest reference."""

import numpy as np

from experiments.methods.control.static_plan import StaticPlan
from experiments.methods.method import Method
from sim.nema import NemaConfig

CYCLE_S = 90.0


def driver() -> StaticPlan:
    """Each of the four parts has its share of the cycle less its clearance, in whole seconds."""
    share = CYCLE_S / 4 - clearance_s()
    return from_greens(np.array([np.floor(share), np.ceil(share)] * 4))


def from_greens(green: np.ndarray) -> StaticPlan:
    """A fixed cycle with these greens. Args: green: [8] or [I, 8] seconds."""
    return StaticPlan(green, cfg=NemaConfig(fixed_time=True))


def clearance_s() -> float:
    """Yellow and all-red of one phase."""
    cfg = NemaConfig()
    return float(cfg.yellow_s + cfg.all_red_s)


METHOD = Method(
    "fixed_time",
    driver=driver,
    paper_label={"Fixed Timing": "fixed_time"},
    tables={"rl": ("fixed_time",)},
)
