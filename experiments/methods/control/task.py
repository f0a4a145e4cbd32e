"""A control task as the learning rivals meet it: rows that act, and what each of them is paid and charged.

On the road a row is an intersection, and all rows share one policy as ours do; a public benchmark task has one row.
Reward and costs are known functions of a step, to the rivals as to LyCon-WRL+.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

SMALLEST = 1e-6
Credit = Callable[[Array, Any, Array, Any], Array]  # standardised reward [R], state, action, next state -> [R, 1 + C]


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Pure functions of one moment; R rows, D observed numbers, A actions in [-1, 1], C costs, P predicted numbers.

    The last three are what a world model needs: what it sees, what it answers, and the state that its answer leads to.
    """

    actions: int
    costs: int
    observe: Callable[[Any], Array]  # state -> [R, D]
    reward: Callable[[Any, Array, Any], Array]  # state, action [R, A], next state -> [R]
    credited: Credit  # what each row's action is judged by
    own: Credit  # as `credited`, of what happens at the row itself
    charged: Callable[[Any, Array, Any], Array]  # state, action, next state -> [C], what the limits are about
    inputs: Callable[[Any, Array], Array]  # state, action -> [R, inputs]
    predicted: Callable[[Any], Array]  # state -> [R, P]
    advance: Callable[[Any, Array, Array], Any]  # state, action, predicted numbers of the next moment -> next state
    driven: Callable[[Any, Array], Array] = lambda state, action: executed(action)  # what the environment is given
    reach: float = 1.0  # rows that share the credit for what happens at one: all act, so the whole moves this much more


class Trajectories(NamedTuple):
    """E rollouts of T steps; an end is that of the recording, never that of the task."""

    states: Any  # leaves [E, T + 1, ...]
    action: Array  # [E, T, R, A] as drawn; executed is what remains inside [-1, 1]
    log_prob: Array  # [E, T, R]


class Units(NamedTuple):
    """Of the first rollouts: a unit must not move while values are learned in it."""

    reward_mean: Array  # []
    reward_sd: Array  # []


class Experience(NamedTuple):
    """Rollouts as rows to learn from."""

    observed: Array  # [E, T + 1, R, D]
    action: Array  # [E, T, R, A]
    log_prob: Array  # [E, T, R]
    signals: Array  # [E, T, R, 1 + C] reward and costs


def executed(action: Array) -> Array:
    """What the environment makes of a draw."""
    return jnp.clip(action, -1.0, 1.0)


def signals(credit: Credit, task: Task, units: Units, state: Any, action: Array, following: Any) -> Array:
    """[R, 1 + C] what each row is judged by. Args: credit: the task's `credited` or `own`."""
    reward = (task.reward(state, action, following) - units.reward_mean) / units.reward_sd
    return credit(reward, state, action, following)


def experience(task: Task, units: Units, rollouts: Trajectories) -> Experience:
    """Everything a model-free learner looks at."""
    observed = jax.vmap(jax.vmap(task.observe))(rollouts.states)
    paid = _over_steps(lambda *step: signals(task.credited, task, units, *step), rollouts)
    return Experience(observed, rollouts.action, rollouts.log_prob, paid)


def measure_units(task: Task, rollouts: Trajectories) -> Units:
    """Mean and standard deviation of a row's reward."""
    reward = _over_steps(task.reward, rollouts)
    return Units(reward.mean(), jnp.maximum(reward.std(), SMALLEST))


def mean_cost(task: Task, rollouts: Trajectories) -> Array:
    """[C] per step, as the limits mean it."""
    return _over_steps(task.charged, rollouts).mean((0, 1))


def mean_reward(task: Task, rollouts: Trajectories) -> Array:
    """[] per step and row, in its own unit."""
    return _over_steps(task.reward, rollouts).mean()


def remembered(history: list[Trajectories], capacity: int) -> Trajectories:
    """The newest rollouts, repeated in turn until there are `capacity`: what is compiled sees one shape. Host only."""
    together = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *history)
    count = together.log_prob.shape[0]
    places = count - 1 - np.arange(capacity) % count  # what is left over after whole turns is the newest
    return jax.tree.map(lambda leaf: leaf[places], together)


def _over_steps(function: Callable, rollouts: Trajectories) -> Array:
    before, after = (jax.tree.map(lambda leaf, c=c: leaf[:, c], rollouts.states) for c in (slice(-1), slice(1, None)))
    return jax.vmap(jax.vmap(function))(before, executed(rollouts.action), after)
