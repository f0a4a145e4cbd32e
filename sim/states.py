"""Lights of phases -> SUMO's state strings, one letter a link; and back: the seconds that phases were green."""

from collections.abc import Iterable

import numpy as np

from sim.nema import GREEN, YELLOW
from sim.network import Network
from stream_jax.task import PHASES


class GreenClock:
    """Seconds of green that each phase had since the clock was last read, from the states that signals show."""

    def __init__(self, network: Network) -> None:
        self._network, self._place = network, {name: i for i, name in enumerate(network.ids)}
        self._known: dict[tuple[int, str], np.ndarray] = {}
        self.reset()

    def reset(self) -> None:
        """A new simulation begins, in which no state is known yet."""
        none = np.zeros((len(self._network.ids), PHASES), np.float32)
        self._shown, self._seconds = none.astype(bool), none

    def second(self, news: Iterable[tuple[str, str]]) -> None:
        """Counts one second. Args: news: (signal, state) of the signals that change now."""
        for name, state in news:
            signal = self._place[name]
            if (signal, state) not in self._known:
                self._known[signal, state] = self._greens(signal, state)
            self._shown[signal] = self._known[signal, state]
        self._seconds = self._seconds + self._shown

    def read(self) -> np.ndarray:
        """[I, 8] seconds since the last reading; a phase that does not exist has 0."""
        seconds, self._seconds = self._seconds, np.zeros_like(self._seconds)
        return seconds

    def _greens(self, signal: int, state: str) -> np.ndarray:
        links = self._network.phase_links[signal]
        return np.array([len(of) > 0 and all(state[link] in "Gg" for link in of) for of in links])


class StateWriter:
    """Writes the states of signals and keeps back those that did not change."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._controlled = [i for i, phases in enumerate(network.phase_links) if any(phases)]
        self._known: dict[tuple[int, bytes], str] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets what is shown: a new simulation begins."""
        self._shown: dict[int, bytes] = {}

    def changed(self, light: np.ndarray) -> list[tuple[str, str]]:
        """(signal, state) of the signals that must be set. Args: light [I, 8]."""
        light = np.ascontiguousarray(light, np.int8)
        news = []
        for signal in self._controlled:
            row = light[signal].tobytes()
            if self._shown.get(signal) != row:
                self._shown[signal] = row
                if (signal, row) not in self._known:
                    self._known[signal, row] = self._state(signal, light[signal])
                news.append((self._network.ids[signal], self._known[signal, row]))
        return news

    def _state(self, signal: int, light: np.ndarray) -> str:
        state = ["r"] * self._network.num_links[signal]
        for phase, colour in enumerate(light):
            for link in self._network.phase_links[signal][phase]:
                if colour == GREEN:
                    state[link] = self._network.green_states[signal][phase][link]
                elif colour == YELLOW:
                    state[link] = "y"
        return "".join(state)
