"""Settings small enough for the toy road, shared by the tests of the controller."""

from stream_jax.fit import TrainConfig
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.lyapunov import LyapunovConfig
from stream_jax.rl.objective import RewardConfig
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig
from stream_jax.rl.safety import SafetyConfig
from stream_jax.rl.world_network import WorldConfig
from tests.rl.toy_road import HORIZON

CFG = AgentConfig(
    policy=PolicyConfig(hidden=16, std=0.3),
    reward=RewardConfig(discount=0.9),
    ppo=PPOConfig(epochs=6, minibatch=64, learning_rate=3e-3, critic_rate=1e-2, discount=0.9, trace=0.9),
    world=WorldConfig(members=3, hidden=32, layers=1, horizon=6, held_out_block=6, power_iterations=1),
    world_training=TrainConfig(learning_rate=3e-3, batch=32, epochs=30, patience=5),
    lyapunov=LyapunovConfig(hidden=(4,), held_out_block=6, power_iterations=1),
    lyapunov_training=TrainConfig(learning_rate=3e-3, batch=64, epochs=5, patience=3),
    safety=SafetyConfig(num_projections=2),
    forecast_horizon=HORIZON,
    iterations=2,
    episodes=8,
    rounds=8,
    imagined=4.0,
    margin_block=2,
    validation_episodes=4,
    validate_every=2,
)
