"""The road as a task for the learning rivals: state, action, reward and costs are exactly LyCon-WRL+'s.

What is ours stays with ours: no filter, no widening by uncertainty, no certificate. The reward's term in the forecast's
sigma is the same for every action and is left out.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.methods.control.task import Task, Trajectories, executed
from stream_jax.rl import objective, world_model
from stream_jax.rl.agent import AgentConfig, Decision
from stream_jax.rl.episodes import Episode, states
from stream_jax.rl.learning import PolicyStep
from stream_jax.rl.safety import POLICY
from stream_jax.rl.state import advance_clock, clip_physical, features, make_state, physical, with_neighbours
from stream_jax.task import costs
from stream_jax.types import Certificate, CityView, RLState

NO_SIGMA = jnp.array([0.0, jnp.inf])  # mean and unit under which the forecast's sigma counts nothing
Plan = Callable[[RLState], Array]  # state -> [I, 9] in [-1, 1]
MakeStep = Callable[[Array, Any, bool], PolicyStep]  # key, learner, whether to explore


def default_plan(state: RLState) -> Array:
    """What an action of 0 everywhere is."""
    return jnp.zeros_like(state.plan)


def road_task(adjacency: Array, cfg: AgentConfig, plan: Plan = default_plan) -> Task:
    """A row is an intersection, which sees its neighbours' mean and is credited with its neighbourhood.

    Args:
        plan: what a rival's actions are corrections of, and what it begins with.
    """

    def driven(state: RLState, action: Array) -> Array:
        return executed(plan(state) + executed(action))

    def reward(state: RLState, action: Array, following: RLState) -> Array:
        still = jnp.zeros_like(action)
        return objective.local_rewards(state, following, still, jnp.zeros(()), NO_SIGMA, cfg.limits, cfg.reward)

    def credited(paid: Array, state: RLState, action: Array, following: RLState) -> Array:
        return objective.credited(paid, physical(following), adjacency, cfg.limits, cfg.reward)

    def own(paid: Array, state: RLState, action: Array, following: RLState) -> Array:
        return objective.credited(paid, physical(following), jnp.zeros_like(adjacency), cfg.limits, cfg.reward)

    def charged(state: RLState, action: Array, following: RLState) -> Array:
        return objective.saturated(costs(physical(following), cfg.limits), cfg.reward)

    def advance(state: RLState, action: Array, x_next: Array) -> RLState:
        clock = advance_clock(state.clock, cfg.world.control_s, cfg.world.forecast_s)
        return state._replace(local=clip_physical(x_next), plan=driven(state, action), clock=clock)

    return Task(
        actions=cfg.action.size,
        costs=len(cfg.limits.bounds),
        observe=lambda state: with_neighbours(features(state), adjacency),
        reward=reward,
        credited=credited,
        own=own,
        charged=charged,
        inputs=lambda state, action: world_model.inputs(state, driven(state, action), adjacency),
        predicted=physical,
        advance=advance,
        driven=driven,
        reach=float(np.asarray((adjacency > 0).sum(-1).max()) + 1),
    )


def trajectories(episodes: Episode, cfg: AgentConfig) -> Trajectories:
    """Collected episodes [E, ...] as rivals learn from them."""
    seen = jax.vmap(lambda episode: states(episode, cfg.state))(episodes)
    return Trajectories(seen, jnp.asarray(episodes.proposed), jnp.asarray(episodes.log_prob))


def step_maker(method: ModuleType, settings: Any, task: Task, cfg: AgentConfig) -> MakeStep:
    """What gives a host loop its policy; draws depend on an episode's seed and step, not on its batch."""

    def decide(
        key: Array, learner: Any, seeds: Array, times: Array, seen: tuple[Array, CityView, Array, Array], explore: bool
    ) -> Decision:
        def one(seed: Array, time: Array, x: Array, view: CityView, plan: Array, clock: Array) -> Decision:
            draw_key = jax.random.fold_in(jax.random.fold_in(key, seed), time // cfg.hold)
            state = make_state(x, view, plan, clock, cfg.state)
            proposed, likelihood = method.act(draw_key, learner, task.observe(state), settings, explore)
            return Decision(task.driven(state, proposed), proposed, likelihood, no_certificate())

        return jax.vmap(one)(seeds, times, *seen)

    compiled = jax.jit(decide, static_argnames="explore")

    def make(key: Array, learner: Any, explore: bool) -> PolicyStep:
        def step(seeds: np.ndarray, time: Any, x: Array, view: CityView, plan: Array, clock: Array) -> Decision:
            times = np.broadcast_to(np.asarray(time), np.shape(seeds))
            made = compiled(key, learner, np.asarray(seeds), times, (x, view, plan, clock), explore=explore)
            return jax.tree.map(np.asarray, made)

        return step

    return make


def no_certificate() -> Certificate:
    """Of a controller that promises nothing."""
    zero = jnp.zeros(())
    return Certificate(zero, zero, zero, zero, zero, jnp.array(False), jnp.asarray(POLICY, jnp.int32))


def passes(cfg: AgentConfig) -> float:
    """How often ours sees each row in an iteration, over real and imagined ones: what off-policy rivals get, too."""
    return cfg.rounds * cfg.ppo.epochs * (1.0 + cfg.imagined)
