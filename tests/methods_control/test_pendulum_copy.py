"""The compiled pendulum that rivals are tried on is Gymnasium's, step by step."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from tests.methods_control import pendulum


def test_a_hundred_random_steps_are_those_of_gymnasium():
    env = gymnasium.make("Pendulum-v1")
    seen, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    both = jax.jit(lambda state, action: (pendulum.step(state, action), pendulum.reward(state, action, None)))
    for _ in range(100):
        state = jnp.asarray(seen / np.array([1.0, 1.0, 8.0]), jnp.float32)[None]
        action = rng.uniform(-1.3, 1.3, (1, 1)).astype(np.float32)  # torques beyond the largest are cut off by both
        after, _ = both(state, action)
        _, paid = both(state, np.clip(action, -1.0, 1.0))
        seen, reward, *_ = env.step(2.0 * action[0])
        np.testing.assert_allclose(after[0] * np.array([1.0, 1.0, 8.0]), seen, atol=1e-5)
        np.testing.assert_allclose(paid[0], reward, atol=1e-5)


def test_episodes_are_as_long_as_gymnasiums():
    assert gymnasium.spec("Pendulum-v1").max_episode_steps == pendulum.STEPS
