"""Rules that choose among the green phases of each signal's own program every few seconds: greedy and max-pressure.

They are RESCO's baselines (Ault & Sharon, 2021): sensors see vehicles up to 200 m before the stop line, in lanes that
may be served by several phases. Greedy shows the phase whose lanes hold the most vehicles. Max-pressure shows the phase
whose queues most exceed those ahead (Varaiya, 2013); guarded, a driver who waited a minute at red goes first. None of
them is tuned.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np

from sim.eyes import Eyes
from sim.nema import GREEN, YELLOW
from sim.network import Network
from sim.stages import Stages, read_stages, state_string


@dataclasses.dataclass(frozen=True)
class RuleConfig:
    """When a rule decides, what it sees, and whom it lets go first."""

    is_pressure: bool  # queues against those ahead; else all vehicles that come
    decision_s: int = 10
    yellow_s: int = 3
    reach_m: float = 200.0
    guard_s: float = math.inf  # a driver of a red movement who waited longer goes first


class PhaseRule:
    """A signal driver that sees vehicles; the prices that it is told have no meaning for it."""

    def __init__(self, cfg: RuleConfig) -> None:
        self.cfg = cfg

    def reset(self, network: Network) -> None:
        """Prepares for a new episode."""
        self._network, self._stages = network, read_stages(network, "own")
        self._eyes = Eyes(network, self._stages, self.cfg.reach_m)
        self._seen = self._eyes.look((), (), (), lambda _: ())
        self._weight = _weights(network, self._stages, self._seen.count.shape[1], self.cfg.is_pressure)
        self._stage = np.zeros(len(network.ids), int)
        self._target = self._stage.copy()
        self._time = 0

    def see(
        self,
        vehicles: Iterable,
        pending: Iterable[str],
        gone: Iterable[str],
        route_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        """Takes in one second; vehicles that could not enter yet are beyond the sensors."""
        self._seen = self._eyes.look(vehicles, (), gone, route_of)

    def states(self, prices: np.ndarray) -> list[tuple[str, str]]:
        """(signal, state string) of the signals that change for the coming second."""
        since, self._time = self._time % self.cfg.decision_s, self._time + 1
        if since == 0:
            self._target = self._choose()
            leaves = np.flatnonzero(self._target != self._stage) if self._time > 1 else range(len(self._stage))
            return [self._shown(signal, YELLOW) for signal in leaves if self._stages.states[signal]]
        if since == self.cfg.yellow_s:
            arrives = np.flatnonzero(self._target != self._stage)
            self._stage = self._target
            return [self._shown(signal, GREEN) for signal in arrives if self._stages.states[signal]]
        return []

    def _shown(self, signal: int, colour: int) -> tuple[str, str]:
        pair = int(self._stage[signal]), int(self._target[signal])
        return self._network.ids[signal], state_string(self._stages.states[signal], *pair, colour)

    def _choose(self) -> np.ndarray:
        """[I] the best stage of each signal, the present one where it is as good."""
        signals, stages = np.arange(len(self._stage)), self._stages.tables.stages
        is_counted = (self._seen.waited > 0) if self.cfg.is_pressure else True
        vehicles = (self._seen.count * is_counted).sum(axis=2)  # [I, L]
        score = np.tensordot(self._weight, vehicles, 2)  # [I, S]
        score[signals, self._stage] += 1e-6
        is_stage = np.arange(score.shape[1]) < stages[:, None]
        return np.where(is_stage & self._is_allowed(), score, -np.inf).argmax(axis=1)

    def _is_allowed(self) -> np.ndarray:
        """[I, S] where somebody has waited too long at red, only the stages that serve whoever waited longest."""
        serves = self._stages.tables.serves
        rows = np.arange(len(serves))
        waited = np.zeros(serves.shape[::2])
        where = np.broadcast_to(rows[:, None, None], self._seen.movement.shape), self._seen.movement
        np.maximum.at(waited, where, self._seen.waited * (self._seen.count > 0))
        waited[serves[rows, self._stage]] = 0.0
        serving = serves[rows, :, waited.argmax(axis=1)]
        is_guarded = (waited.max(axis=1) > self.cfg.guard_s) & serving.any(axis=1)
        return serving | ~is_guarded[:, None]


def _weights(network: Network, stages: Stages, lanes: int, is_pressure: bool) -> np.ndarray:
    """[I, S, I, L] what a vehicle in each lane counts for each stage.

    1 in the lanes that have green in it. For pressure, each of these also takes away the mean queue of the lanes ahead
    on the links that it has green for.
    """
    rows = [sorted({link.lane for link in links}) for links in network.links]
    place = {lane: (signal, row) for signal, names in enumerate(rows) for row, lane in enumerate(names)}
    ahead = [[place[lane] for lane in network.lane_turns[edge] if lane in place] for edge in network.stop_edges]
    weight = np.zeros((*stages.tables.serves.shape[:2], len(rows), lanes))
    for signal, links in enumerate(network.links):
        for stage, state in enumerate(stages.states[signal]):
            green = [link for link in links if state[link.index] in "Gg"]
            for lane in {link.lane for link in green}:
                weight[signal, stage][place[lane]] = 1.0
                targets = {link.to_edge for link in green if link.lane == lane}
                fed = [ahead[network.approach_of[edge]] for edge in targets if edge in network.approach_of]
                for there in fed if is_pressure else ():
                    for one in there:
                        weight[signal, stage][one] -= 1.0 / len(targets) / len(there)
    return weight
