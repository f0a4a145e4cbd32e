"""The network of the world model: one module for all intersections, all members at once.

Section 4.3, "Ensemble World Model". A correction to the present state with a Gaussian head, every layer's spectral norm
held down; the paper gives no sizes, and without the skip a contraction could not model a road that hardly changes.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
from jax import Array

from stream_jax.rl.spectral import ACTIVATIONS, Layer, affine, init_layers, normalised
from stream_jax.task import LOCAL


@dataclasses.dataclass(frozen=True)
class WorldConfig:
    """Members and horizon are the paper's; sizes, bounds and the residual form are ours."""

    members: int = 5
    hidden: int = 64  # for one intersection: all of them share the network
    layers: int = 2
    horizon: int = 15  # control steps of an imagined rollout
    activation: str = "tanh"  # has slope 1 at its origin, so that a bounded norm still passes small signals whole
    coefficient: float = 2.0  # largest spectral norm of a layer, standardised units; the paper's 1 underfits a toy road
    power_iterations: int = 5  # while training
    log_sigma: tuple[float, float] = (-4.0, 1.5)  # bounds of the head, in units of the typical change
    held_out_block: int = 20  # consecutive transitions that are kept or held out together
    held_out_every: int = 5  # of so many blocks one is held out, for early stopping and the disagreement's limit
    limit_quantile: float = 0.95  # of the held-out disagreement: beyond it imagination ends
    control_s: float = 60.0
    forecast_s: float = 900.0

    def __post_init__(self) -> None:
        if min(self.members, self.hidden, self.layers, self.horizon, self.held_out_block) < 1:
            raise ValueError("members, hidden, layers, horizon and held_out_block must be at least 1")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, not {self.activation!r}")
        if not (self.coefficient > 0 and self.held_out_every >= 2 and 0 < self.limit_quantile <= 1):
            raise ValueError("coefficient must be positive, held_out_every at least 2 and limit_quantile in (0, 1]")


class Network(NamedTuple):
    """One member, or all of them with a leading axis [K]; D inputs, see `inputs`."""

    trunk: tuple[Layer, ...]
    mean: Layer  # correction, in units of the typical change
    spread: Layer  # before it is squeezed between the bounds of log sigma


class Scaling(NamedTuple):
    """Units of the network."""

    centre: Array  # [D]
    scale: Array  # [D]
    change: Array  # [10] root mean square of x' - x


@partial(jax.jit, static_argnames=("num_inputs", "cfg"))
def init_network(key: Array, num_inputs: int, cfg: WorldConfig) -> Network:
    """Random members, leaves [K, ...]."""

    def one(member_key: Array) -> Network:
        trunk_key, mean_key, spread_key = jax.random.split(member_key, 3)
        trunk = init_layers(trunk_key, (num_inputs,) + (cfg.hidden,) * cfg.layers)
        heads = [init_layers(head_key, (cfg.hidden, LOCAL))[0] for head_key in (mean_key, spread_key)]
        return Network(trunk, *heads)

    return jax.vmap(one)(jax.random.split(key, cfg.members))


def normalised_network(network: Network, cfg: WorldConfig) -> Network:
    """Every member with its norms held down by power iteration, for training."""
    return jax.vmap(lambda one: normalised(one, cfg.coefficient, cfg.power_iterations))(network)


def apply(network: Network, scaled: Array, cfg: WorldConfig) -> tuple[Array, Array]:
    """Means and log sigmas [K, ..., 10] of all members, in units of the typical change."""
    bend = ACTIVATIONS[cfg.activation][0]
    low, high = cfg.log_sigma

    def one(member: Network) -> tuple[Array, Array]:
        hidden = scaled
        for layer in member.trunk:
            hidden = bend(affine(layer, hidden))
        return affine(member.mean, hidden), low + (high - low) * jax.nn.sigmoid(affine(member.spread, hidden))

    return jax.vmap(one)(network)
