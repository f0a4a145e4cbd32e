"""The gymnasium face of a session: one agent tells all intersections what to do, once a control step.

What an action means, prices or greens, is the session's driver's; `sim.environments` makes both from a network.

Observation: the physical state x of Section 4.3 (queues, longest wait, share not served, in the controller's units) and
the action in force. Reward: `traffic_reward`. The normalised violations of C1..C3 stand in `info["cost"]`, apart from
the reward, because safety is a constraint here and not a price.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from sim.render import draw_road
from sim.session import Scenario, Session
from stream_jax.task import ACTIONS, LOCAL, Limits, costs, physical_state, traffic_reward
from stream_jax.types import RoadMeasurement


class SignalEnv(gymnasium.Env):
    """Box actions [I, 9] in [-1, 1]; the seed of `reset` chooses the scenario."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012 (gymnasium reads this name)

    def __init__(
        self,
        session: Session,
        make_scenario: Callable[[int], Scenario],
        limits: Limits | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Args: make_scenario: an episode for each seed, always the same one."""
        self.session, self.make_scenario, self.limits = session, make_scenario, limits or Limits()
        self.render_mode = render_mode
        size = len(session.network.ids)
        self._shape = (size, ACTIONS)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, self._shape, np.float32)
        low = np.concatenate([np.zeros(size * LOCAL), np.full(size * ACTIONS, -1.0)]).astype(np.float32)
        high = np.concatenate([np.full(size * LOCAL, np.inf), np.ones(size * ACTIONS)]).astype(np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Starts the scenario of `seed`, or of a seed drawn from the environment's own generator."""
        super().reset(seed=seed)
        episode = seed if seed is not None else int(self.np_random.integers(2**31))
        self.road = self.session.reset(self.make_scenario(episode))
        self.action = np.zeros(self._shape, np.float32)
        return self._observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One control step; an episode ends by the clock, so it is truncated and never terminated."""
        self.action = np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        self.road = self.session.step(self.action)
        reward = float(traffic_reward(self.road, self.session.cfg.control_s))
        return self._observe(), reward, False, self.session.done, self._info()

    def render(self) -> np.ndarray | None:
        """Queues and longest waits of all intersections. [pixels, pixels, 3] uint8"""
        return draw_road(self.session.network, self.road) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.session.close()

    def _observe(self) -> np.ndarray:
        return np.concatenate([np.asarray(physical_state(self.road)).ravel(), self.action.ravel()])

    def _info(self) -> dict[str, Any]:
        return {"cost": np.asarray(costs(physical_state(self.road), self.limits)), "road": self.road}


def local_observations(road: RoadMeasurement, action: np.ndarray) -> np.ndarray:
    """What each intersection sees of itself, [I, 19]: its part of x and its plan."""
    return np.concatenate([np.asarray(physical_state(road)), action], axis=1).astype(np.float32)
