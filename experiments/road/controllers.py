"""Controllers that drive SUMO and compiled roads alike: good ones, plain ones, and some that are bad on purpose."""

import functools
from typing import NamedTuple

import numpy as np

from sim.plan_driver import ControllerDriver
from stream_jax.road.controller import LookaheadConfig
from stream_jax.road.plans import PlanConfig, plan
from stream_jax.road.tables import PRICES
from stream_jax.road.world import Controller, lookahead

SIDES = np.array([1.0, 1.0, -1.0, -1.0] * 2 + [0.0])  # the two sides of the barrier
LEFTS = np.array([1.0, -1.0] * 4 + [0.0])


class Entry(NamedTuple):
    """One controller."""

    plan: PlanConfig | None = None  # its cycle; None: look-ahead
    cfg: LookaheadConfig = LookaheadConfig()
    prices: np.ndarray = np.zeros(PRICES)
    is_bad: bool = False  # on purpose


CONTROLLERS = {
    "look_ahead": Entry(),
    "patient": Entry(prices=np.eye(PRICES)[-1] * -1.0),
    "urgent": Entry(prices=np.eye(PRICES)[-1]),
    "lefts_first": Entry(prices=0.7 * LEFTS),
    "throughs_first": Entry(prices=-0.7 * LEFTS),
    "one_street": Entry(prices=SIDES, is_bad=True),
    "short_sighted": Entry(cfg=LookaheadConfig(horizons_s=(2.0, 4.0), hysteresis=1.0)),
    "sluggish": Entry(cfg=LookaheadConfig(hysteresis=4.0)),
    "actuated_20": Entry(PlanConfig(20.0, gap_out=True)),
    "actuated_40": Entry(PlanConfig(40.0, gap_out=True)),
    "actuated_80": Entry(PlanConfig(80.0, gap_out=True)),
    "cycle_60": Entry(PlanConfig(10.0)),
    "cycle_80": Entry(PlanConfig(15.0)),
    "cycle_120": Entry(PlanConfig(25.0)),
    "cycle_160": Entry(PlanConfig(35.0)),
    "cycle_240": Entry(PlanConfig(55.0), is_bad=True),
    "flicker": Entry(PlanConfig(5.0), is_bad=True),
    "starving": Entry(PlanConfig(12.0, first_s=110.0), is_bad=True),
}
TRAINING = ("cycle_80", "cycle_120", "actuated_40")  # that drive the hours of fitting


def driver(name: str, programs: str = "nema") -> ControllerDriver:
    """A driver of SUMO; a function of a module, so that other processes can call it."""
    entry = CONTROLLERS[name]
    return ControllerDriver(controller(entry), functools.partial(_told, entry.prices), programs=programs)


def controller(entry: Entry) -> Controller:
    """Whatever decides in both worlds."""
    return lookahead(entry.cfg) if entry.plan is None else plan(entry.plan)


def _told(prices: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.broadcast_to(prices, (len(action), PRICES)).astype(np.float32)
