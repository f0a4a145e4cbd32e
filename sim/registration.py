"""Tells Gymnasium the name of our environment; loads neither SUMO nor JAX until one is made.

An installed stream_jax names `register` in its entry points, so that Gymnasium calls it by itself. Where the code is
used without being installed, importing `sim.env` or `sim.environments` does.
"""

ENV_ID = "stream_jax/Signals-v0"


def register() -> None:
    """Adds the environment to Gymnasium's registry, once."""
    from gymnasium.envs import registration  # Gymnasium is half imported when it calls its entry points

    if ENV_ID not in registration.registry:
        registration.register(id=ENV_ID, entry_point="sim.environments:signal_env")
