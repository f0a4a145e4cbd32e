"""Gymnasium's Pendulum-v1 by its published equations, as a task that rivals learn in compiled code.

The state is what Gymnasium shows, cos, sin and speed, the speed in units of its largest value, 8 rad/s. A cost is
charged for effort, the square of the torque over its largest value: gentle swings are cheaper and slower.
"""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.methods.control.task import (
    Task,
    Trajectories,
    mean_cost,
    mean_reward,
    measure_units,
    remembered,
)

STEPS, MAX_SPEED, MAX_TORQUE, STEP_S, GRAVITY = 200, 8.0, 2.0, 0.05, 10.0


def angle_of(state):
    return jnp.arctan2(state[0, 1], state[0, 0])


def reward(state, action, _):
    torque = MAX_TORQUE * action[0, 0]
    speed = MAX_SPEED * state[0, 2]
    return -(angle_of(state) ** 2 + 0.1 * speed**2 + 0.001 * torque**2)[None]


def effort(state, action, _):
    return jnp.square(action[0])


def step(state, action):
    """One step of mass 1 and length 1. Args: state [1, 3]; action [1, 1] in [-1, 1], torque over its largest value."""
    angle, torque = angle_of(state), MAX_TORQUE * jnp.clip(action[0, 0], -1.0, 1.0)
    speed = MAX_SPEED * state[0, 2] + (1.5 * GRAVITY * jnp.sin(angle) + 3.0 * torque) * STEP_S
    speed = jnp.clip(speed, -MAX_SPEED, MAX_SPEED)
    return shown(angle + speed * STEP_S, speed)


def shown(angle, speed):
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed / MAX_SPEED])[None]


def upright_circle(state, _, predicted):
    """A predicted state, put back on the circle of angles."""
    length = jnp.sqrt(jnp.square(predicted[:, :2]).sum(-1, keepdims=True) + 1e-6)
    return jnp.concatenate([predicted[:, :2] / length, jnp.clip(predicted[:, 2:], -1.0, 1.0)], axis=-1)


def credited(paid, state, action, _):
    return jnp.concatenate([paid[:, None], effort(state, action, _)[None]], axis=-1)


TASK = Task(
    actions=1,
    costs=1,
    observe=lambda state: state,
    reward=reward,
    credited=credited,
    own=credited,
    charged=effort,
    inputs=lambda state, action: jnp.concatenate([state, action], axis=-1),
    predicted=lambda state: state,
    advance=upright_circle,
)
BLANK = jnp.zeros((1, 3))


def begin(key):
    """Gymnasium's start: any angle, speed within 1 rad/s."""
    angle_key, speed_key = jax.random.split(key)
    angle = jax.random.uniform(angle_key, (), minval=-jnp.pi, maxval=jnp.pi)
    return shown(angle, jax.random.uniform(speed_key, (), minval=-1.0, maxval=1.0))


def drive(key, act, episodes):
    """Rollouts of STEPS steps under act(key, observed) -> action, log_prob."""

    def one(episode_key):
        start_key, act_key = jax.random.split(episode_key)

        def tick(state, step_key):
            action, log_prob = act(step_key, state)
            following = step(state, action)
            return following, (following, action, log_prob)

        first = begin(start_key)
        _, (later, action, log_prob) = jax.lax.scan(tick, first, jax.random.split(act_key, STEPS))
        return Trajectories(jnp.concatenate([first[None], later]), action, log_prob)

    return jax.vmap(one)(jax.random.split(key, episodes))


def learn(method, cfg, iterations, episodes, seed=0):
    """The learner after so many iterations of `episodes` episodes, and each iteration's (return, mean cost)."""
    start_key, drive_key, learn_key = jax.random.split(jax.random.key(seed), 3)
    learner = method.start(start_key, TASK, BLANK, cfg)

    @jax.jit
    def driven(key, learner):
        fresh = drive(key, lambda k, state: method.act(k, learner, state, cfg, True), episodes)
        return fresh, jnp.stack([STEPS * mean_reward(TASK, fresh), mean_cost(TASK, fresh)[0]])

    measured_units = jax.jit(lambda rollouts: measure_units(TASK, rollouts))
    improved = jax.jit(lambda *inputs: method.improve(*inputs, TASK, cfg))
    history, units, seen = [], None, []
    for index in range(iterations):
        fresh, shown = driven(jax.random.fold_in(drive_key, index), learner)
        units = measured_units(fresh) if units is None else units
        history.append(fresh)
        memory = remembered(history, iterations * episodes)
        learner, _ = improved(jax.random.fold_in(learn_key, index), learner, memory, fresh, units)
        seen.append(np.asarray(shown))
    return learner, np.array(seen)


def evaluate(method, cfg, learner, episodes=100, seed=1):
    """Mean return and mean cost without exploration."""

    def measured(learner):
        rollouts = drive(jax.random.key(seed), lambda key, state: method.act(key, learner, state, cfg, False), episodes)
        return mean_reward(TASK, rollouts), mean_cost(TASK, rollouts)[0]

    reward, cost = jax.jit(measured)(learner)
    return STEPS * float(reward), float(cost)
