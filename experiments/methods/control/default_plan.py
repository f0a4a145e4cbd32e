"""The default plan: the actuated NEMA controller under action 0 (left 30 s, through 70 s, guard 85 s)."""

from sim.nema import NemaController


def driver() -> NemaController:
    """Follows the action, which without a learned agent is 0."""
    return NemaController()
