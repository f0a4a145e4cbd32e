"""Drives SUMO's signals by the look-ahead controller: eyes, one compiled call a second, state strings.

The controller itself is `stream_jax/road/controller.py`; its action is prices, 0 = the controller as tuned.
"""

from collections.abc import Callable, Iterable

import jax
import numpy as np

from sim.errors import RoadError
from sim.eyes import REACH_M, Eyes
from sim.network import Network
from sim.stages import OWN_MIN_GREEN_S, Programs, read_stages, state_string
from stream_jax.road.controller import LookaheadConfig, advance, start
from stream_jax.road.tables import PRICES


class LookaheadDriver:
    """A signal driver that sees vehicles instead of detectors and takes prices [I, 9] instead of a plan."""

    def __init__(
        self,
        cfg: LookaheadConfig | None = None,
        programs: Programs = "nema",
        own_min_green_s: float = OWN_MIN_GREEN_S,
        reach_m: float = REACH_M,
    ) -> None:
        self.cfg = cfg or LookaheadConfig()
        self._options: tuple[Programs, float] = programs, own_min_green_s
        self._reach_m = reach_m
        self._network: Network | None = None

    def reset(self, network: Network) -> None:
        """Prepares for a new episode on this network."""
        if self._network is not network:
            self._network, self._ids = network, network.ids
            self._stages = read_stages(network, *self._options)
            self._tables = jax.tree.map(jax.numpy.asarray, self._stages.tables)
            self._eyes = Eyes(network, self._stages, self._reach_m)
        self._eyes.forget()
        self._seen = self._eyes.look((), (), (), _no_route)
        self._state = start(self._tables)
        self._shown: dict[int, tuple[int, int, int]] = {}

    def see(
        self,
        vehicles: Iterable,
        pending: Iterable[str],
        gone: Iterable[str],
        route_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        """Takes in one second. Args: as `sim.eyes.Eyes.look`."""
        self._seen = self._eyes.look(vehicles, pending, gone, route_of)

    def states(self, prices: np.ndarray) -> list[tuple[str, str]]:
        """(signal, state string) of the signals that change for the coming second. Args: prices [I, 9]."""
        self._state, _ = advance(self._state, self._seen, prices, self._tables, self.cfg)
        return self._news()

    def _news(self) -> list[tuple[str, str]]:
        stage, target, colour = (np.asarray(part).tolist() for part in self._state[:3])
        news = []
        for signal, options in enumerate(self._stages.states):
            now = stage[signal], target[signal], colour[signal]
            if options and self._shown.get(signal) != now:
                self._shown[signal] = now
                news.append((self._ids[signal], state_string(options, *now, clears_turns=True)))
        return news


def decode_prices(action: np.ndarray) -> np.ndarray:
    """The prices that an action stands for, [I, 9] float32 within [-1, 1]."""
    action = np.asarray(action, np.float32)
    if action.ndim != 2 or action.shape[1] != PRICES or np.isnan(action).any():
        raise RoadError(f"prices must be numbers of shape [intersections, {PRICES}], got {action.shape}, maybe NaN")
    return np.clip(action, -1.0, 1.0)


def _no_route(name: str) -> tuple[str, ...]:
    return ()
