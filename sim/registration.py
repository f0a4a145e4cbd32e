"""Tells Gymnasium the name of our environment; loads neither SUMO nor JAX until one is made.

`import sim` does it, and so does Gymnasium itself if it is told the module: `gymnasium.make("sim:stream_jax/...")`.
Gymnasium has no entry points by which an installed library could do without both.
"""

from gymnasium.envs import registration

ENV_ID = "stream_jax/Signals-v0"


def register() -> None:
    """Adds the environment to Gymnasium's registry, once."""
    if ENV_ID not in registration.registry:
        registration.register(id=ENV_ID, entry_point="sim.environments:signal_env")
