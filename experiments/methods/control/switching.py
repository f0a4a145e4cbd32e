"""Changing from one set of green phases to another with yellow and all-red, for controllers that choose freely."""

from typing import NamedTuple

import numpy as np

from sim.nema import CONFLICT, GREEN, YELLOW, existing_phases
from sim.network import Network
from stream_jax.task import PHASES

YELLOW_S, ALL_RED_S = 3, 2  # as in the NEMA controller


class SwitchState(NamedTuple):
    """What each intersection shows; phases that stay green through a change are not interrupted."""

    green: np.ndarray  # [I, 8] bool
    leaving: np.ndarray  # [I, 8] bool: yellow, or in the all-red after it
    coming: np.ndarray  # [I, 8] bool: green when the clearance is over
    timer: np.ndarray  # [I] s of the clearance, or s since the last one ended
    clearing: np.ndarray  # [I] bool


def stages_of(network: Network) -> np.ndarray:
    """[I, P, 8] bool: the sets of phases that may be green together; P pairs at a NEMA intersection, else singles."""
    pairs = [(a, b) for a in range(4) for b in range(4, PHASES) if not CONFLICT[a, b]]
    paired = np.zeros((len(pairs), PHASES), bool)
    for stage, phases in enumerate(pairs):
        paired[stage, list(phases)] = True
    exists = existing_phases(network)
    stages = np.where(np.asarray(network.is_nema)[:, None, None], paired, np.eye(PHASES, dtype=bool))
    return stages & exists[:, None]


def started(stages: np.ndarray) -> SwitchState:
    """All intersections green in the first stage that exists."""
    first = stages.any(-1).argmax(axis=1)
    green = stages[np.arange(len(stages)), first]
    nothing = np.zeros_like(green)
    return SwitchState(green, nothing, nothing, np.zeros(len(green)), np.zeros(len(green), bool))


def switch(state: SwitchState, wanted: np.ndarray, may_change: np.ndarray) -> SwitchState:
    """One second later: ends clearances that are over, begins those that are wanted.

    Args:
        wanted: [I, 8] bool, a legal set of phases.
        may_change: [I] bool, whether `wanted` counts now; an intersection in a clearance never changes its mind.
    """
    is_over = state.clearing & (state.timer >= YELLOW_S + ALL_RED_S)
    green = np.where(is_over[:, None], state.coming, state.green)
    clearing = state.clearing & ~is_over
    timer = np.where(is_over, 0.0, state.timer)
    begins = may_change & ~state.clearing & (wanted != green).any(-1)
    leaving = np.where(begins[:, None], green & ~wanted, np.where(clearing[:, None], state.leaving, False))
    return SwitchState(
        green=np.where(begins[:, None], green & wanted, green),
        leaving=leaving,
        coming=np.where(begins[:, None], wanted, state.coming),
        timer=np.where(begins, 0.0, timer) + 1.0,
        clearing=clearing | begins,
    )


def lights(state: SwitchState) -> np.ndarray:
    """Light [I, 8] of RED, GREEN or YELLOW."""
    is_yellow = state.leaving & (state.clearing & (state.timer <= YELLOW_S))[:, None]
    return (GREEN * state.green + YELLOW * is_yellow).astype(np.int8)
