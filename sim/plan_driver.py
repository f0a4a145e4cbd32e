"""Drives SUMO's signals by any controller of a compiled road, with the eyes of the look-ahead controller."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sim.lookahead import LookaheadDriver
from sim.network import Network
from stream_jax.road.world import Controller


class ControllerDriver(LookaheadDriver):
    """Like `LookaheadDriver`; the action of a control step, prices [I, 9], is changed by a function of its own.

    Args:
        controller: whatever decides.
        told: what the controller is told, from the session's action; None: that action itself.
    """

    def __init__(
        self, controller: Controller, told: Callable[[np.ndarray], np.ndarray] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._controller, self._told = controller, told or (lambda action: action)
        self._decide = jax.jit(controller.advance)

    def reset(self, network: Network) -> None:
        super().reset(network)
        self._state = self._controller.start(self._tables)

    def states(self, prices: np.ndarray) -> list[tuple[str, str]]:
        self._state, _ = self._decide(self._state, self._seen, self._told(prices), self._tables)
        return self._news()
