"""What the look-ahead controller knows of its signals: legal stages, and which movements each of them serves.

A stage is a set of links that may be green together: a pair of NEMA phases, or a green phase of a program of the
user's own. A movement is a way from one stop edge into one next edge. A lane is a queue at the stop line.
Axes: I signals, S stages, M movements, L lanes, K places in a lane counted from the stop line.
"""

from typing import NamedTuple

import numpy as np
from jax import Array

from stream_jax.types import on_host

PRICES = 9  # eight phases, then how fast weight grows with waiting
MOST_STAGES = 32  # stages of a movement are kept as the bits of a 32-bit number


class Tables(NamedTuple):
    """Constants of a network; rows of signals with fewer stages or movements are filled up with False and 0."""

    stages: Array  # [I] int32 number of stages, 0: not controlled
    serves: Array  # [I, S, M] bool: the movement has green, perhaps yielding
    yields: Array  # [I, S, M] bool: it has green, but must yield to others
    home: Array  # [I, M] int32 stage that the movement counts for when the seconds of a cycle are divided
    phase: Array  # [I, M] int32 which of the eight prices the movement has
    min_green: Array  # [I, M] s


class Seen(NamedTuple):
    """What a controller sees before each second. A place holds one vehicle, or all that arrive within one second.

    Places of a lane are in order of arrival; those behind the last vehicle have count 0.
    """

    eta: Array  # [I, L, K] s until the vehicle could reach the stop line without any queue
    count: Array  # [I, L, K] vehicles at this place, 0 if it is empty
    waited: Array  # [I, L, K] s that they have waited, their mean
    movement: Array  # [I, L, K] int32
    room: Array  # [I, M] vehicles that still fit behind the stop line, per lane


def make_tables(
    served: list[np.ndarray], yielding: list[np.ndarray], phase: list[np.ndarray], min_green: list[np.ndarray]
) -> Tables:
    """Tables out of one entry for each signal.

    Args:
        served: [S, M] bool of each signal.
        yielding: [S, M] bool of each signal.
        phase: [M] of each signal, the price that each movement has.
        min_green: [M] s of each signal.
    """
    most_stages = max(1, *(len(one) for one in served))
    most_movements = max(1, *(one.shape[1] for one in served))
    if most_stages > MOST_STAGES:
        raise ValueError(f"a signal has {most_stages} stages, at most {MOST_STAGES} can be compared")

    def filled(rows: list[np.ndarray], shape: tuple[int, ...], dtype: type) -> Array:
        full = np.zeros((len(rows), *shape), dtype)
        for row, values in zip(full, rows, strict=True):
            row[tuple(slice(size) for size in np.shape(values))] = values
        return on_host(full)

    return Tables(
        stages=on_host(np.array([len(one) for one in served], np.int32)),
        serves=filled(served, (most_stages, most_movements), bool),
        yields=filled(yielding, (most_stages, most_movements), bool),
        home=filled([_home(*pair) for pair in zip(served, yielding, strict=True)], (most_movements,), np.int32),
        phase=filled(phase, (most_movements,), np.int32),
        min_green=filled(min_green, (most_movements,), np.float32),
    )


def _home(served: np.ndarray, yielding: np.ndarray) -> np.ndarray:
    """[M] the stage that each movement counts for: stages are taken by how many more movements they serve firmly."""
    home = np.full(served.shape[1], -1)
    for allowed in (served & ~yielding, served):
        while True:
            gain = (allowed & (home < 0)).sum(1) if len(allowed) else np.zeros(1)
            if gain.max() == 0:
                break
            home[allowed[gain.argmax()] & (home < 0)] = gain.argmax()
    return np.maximum(home, 0)
