"""Max-pressure in which a driver who has waited a minute at a red stop line goes first: the one to beat."""

from experiments.methods.control.max_pressure import MaxPressure, MaxPressureConfig
from experiments.methods.method import Method


def driver() -> MaxPressure:
    """Priority after 60 s of waiting."""
    return MaxPressure(MaxPressureConfig(guard_s=60.0))


METHOD = Method("guarded_max_pressure", driver=driver, tables={"rl": ("guarded_max_pressure",)})
