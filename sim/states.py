"""Lights of phases -> SUMO's state strings, one letter a link."""

import numpy as np

from sim.nema import GREEN, YELLOW
from sim.network import Network


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
