"""The default plan: the actuated NEMA controller under action 0 (left 30 s, through 70 s, guard 85 s)."""

from experiments.methods.method import Method
from sim.nema import NemaController


def driver() -> NemaController:
    """Follows the action, which without a learned agent is 0."""
    return NemaController()


METHOD = Method(
    "default_plan",
    driver=driver,
    # The reference of paired differences.
    tables=dict.fromkeys(("rl", "covariance", "lyapunov", "ablation", "eps_floor"), ("default_plan",)),
)
