"""The legal stages of every signal of a network, as arrays for the look-ahead controller and as strings for SUMO."""

from typing import Literal, NamedTuple

import numpy as np

from sim.nema import CONFLICT, MIN_GREEN, PHASES, YELLOW
from sim.network import Network
from stream_jax.road.controller import GREEN
from stream_jax.road.tables import Tables, make_tables

Programs = Literal["nema", "own"]
OWN_MIN_GREEN_S = 5.0  # of the green phases of a program of its own: SUMO's own default


class Stages(NamedTuple):
    """What is green together."""

    tables: Tables
    states: tuple[tuple[str, ...], ...]  # [I][S] SUMO's letters, one for each link
    turns: tuple[tuple[tuple[str, str], ...], ...]  # [I][M] stop edge and next edge of each movement
    movement_of: dict[tuple[str, str], tuple[int, int]]  # stop edge, next edge -> signal, movement


def read_stages(network: Network, programs: Programs = "nema", own_min_green_s: float = OWN_MIN_GREEN_S) -> Stages:
    """The stages of a network.

    Args:
        programs: "nema": pairs of NEMA phases where an intersection is recognised, green phases of its own program
            elsewhere; "own": those everywhere.
        own_min_green_s: minimum green of the phases of a program of its own.
    """
    signals = [_signal(network, i, programs, own_min_green_s) for i in range(len(network.ids))]
    turns = tuple(signal.turns for signal in signals)
    where = {turn: (i, m) for i, of in enumerate(turns) for m, turn in enumerate(of)}
    served, yielding, phase, least = (list(column) for column in zip(*(signal[2:] for signal in signals), strict=True))
    tables = make_tables(served, yielding, phase, least)
    return Stages(tables, tuple(signal.states for signal in signals), turns, where)


class _Signal(NamedTuple):
    """One signal's row of the tables."""

    states: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]
    served: np.ndarray  # [S, M] bool
    yielding: np.ndarray  # [S, M] bool
    phase: np.ndarray  # [M]
    min_green: np.ndarray  # [M] s


def _signal(network: Network, signal: int, programs: Programs, own_min_green_s: float) -> _Signal:
    is_nema = programs == "nema" and bool(network.is_nema[signal])
    states = _nema_states(network.green_states[signal]) if is_nema else network.own_greens[signal]
    states = states if len(states) > 1 else ()  # nothing to choose: SUMO keeps the program
    turns: dict[tuple[str, str], list[int]] = {}
    for link in network.links[signal]:
        turns.setdefault((link.edge, link.to_edge), []).append(link.index)
    letters = [[{state[index] for index in links} for links in turns.values()] for state in states]
    shape = len(states), len(turns)
    green = np.array([[bool(of & set("Gg")) for of in row] for row in letters], bool).reshape(shape)
    firm = np.array([["G" in of for of in row] for row in letters], bool).reshape(shape)
    if is_nema:
        phase = np.array([network.phase_of[turn] for turn in turns])
        return _Signal(states, tuple(turns), green, green & ~firm, phase, MIN_GREEN[phase])
    best = np.where(firm.any(0), firm, green)
    phase = best.argmax(0) % PHASES if states else np.zeros(len(turns), int)
    return _Signal(states, tuple(turns), green, green & ~firm, phase, np.full(len(turns), own_min_green_s))


def state_string(states: tuple[str, ...], stage: int, target: int, colour: int, clears_turns: bool = False) -> str:
    """What SUMO shows of one signal: a stage, or the clearance between two stages.

    Args: clears_turns: a link that goes on, but must yield from then on, is cleared like one that ends.
    """
    now = states[stage]
    if colour == GREEN:
        return now
    ends = "y" if colour == YELLOW else "r"
    links = zip(now, states[target], strict=True)
    return "".join(ends if (a in "Gg" and b not in "Gg") or (clears_turns and a + b == "Gg") else a for a, b in links)


def _nema_states(phases: tuple[str, ...]) -> tuple[str, ...]:
    """Every pair of phases that may be green together; a phase alone where it has no partner."""
    pairs = [(a, b) for a in range(4) for b in range(4, PHASES) if not CONFLICT[a, b]]
    shown = [[phases[p] for p in pair if phases[p]] for pair in pairs]
    merged = [
        "".join("G" if "G" in of else "g" if "g" in of else "r" for of in zip(*both, strict=True))
        for both in shown
        if both
    ]
    return tuple(dict.fromkeys(merged))
