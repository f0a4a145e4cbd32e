"""The PettingZoo face of a session: one agent per intersection, all acting at once, each seeing itself.

Every agent gets the traffic reward of the whole network: intersections share their queues.
"""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pettingzoo

from sim.env import SignalEnv, local_observations
from sim.session import Scenario, Session
from stream_jax.task import ACTIONS, LOCAL, Limits


class SignalParallelEnv(pettingzoo.ParallelEnv):
    """Agents are named as the network names its intersections."""

    metadata = {"name": "signals_v0", "render_modes": ["rgb_array"]}  # noqa: RUF012 (pettingzoo reads this name)

    def __init__(
        self,
        session: Session,
        make_scenario: Callable[[int], Scenario],
        limits: Limits | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.joint = SignalEnv(session, make_scenario, limits, render_mode)
        self.render_mode = render_mode
        self.possible_agents = list(session.network.ids)
        self.agents: list[str] = []

    @functools.cache  # noqa: B019 (PettingZoo asks for the same object at every call)
    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        low = np.concatenate([np.zeros(LOCAL), np.full(ACTIONS, -1.0)]).astype(np.float32)
        high = np.concatenate([np.full(LOCAL, np.inf), np.ones(ACTIONS)]).astype(np.float32)
        return gymnasium.spaces.Box(low, high, dtype=np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Starts the scenario of `seed`."""
        _, info = self.joint.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._observe(), {agent: {"cost": info["cost"]} for agent in self.agents}

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict, dict, dict, dict, dict]:
        """One control step of all agents; an agent that says nothing keeps the default plan."""
        rest = np.zeros(ACTIONS, np.float32)
        joint = np.stack([actions.get(agent, rest) for agent in self.possible_agents])
        _, reward, _, is_over, info = self.joint.step(joint)
        each = dict.fromkeys(self.agents)
        result = (
            self._observe(),
            {agent: reward for agent in each},
            {agent: False for agent in each},
            {agent: is_over for agent in each},
            {agent: {"cost": info["cost"]} for agent in each},
        )
        self.agents = [] if is_over else self.agents
        return result

    def render(self) -> np.ndarray | None:
        return self.joint.render()

    def close(self) -> None:
        self.joint.close()

    def _observe(self) -> dict[str, np.ndarray]:
        rows = local_observations(self.joint.road, self.joint.action)
        return {agent: row for agent, row in zip(self.possible_agents, rows, strict=True) if agent in self.agents}
