"""Lipschitz bounds of the Lyapunov function and of the world model, exact in float64 on the host.

Proposition "Upper Bounds via Spectral Normalization" and the appendix "Safety Constraints and Lyapunov Details". The
paper's constant for L leaves out the network's slope and the radius; a quadratic has no global constant. With Lam the
bound of f's slope, on the ball of radius R around the empty road (joint x, mean over I intersections):

    |grad L| = sqrt(sum_i |grad l(x_i)|^2) / I <= 2 (Lam^2 + eta lambda_max(Q)) R / I
"""

from typing import NamedTuple

import numpy as np
from jax import Array

from stream_jax.rl import lyapunov
from stream_jax.rl.lyapunov import LyapunovConfig, LyapunovParams
from stream_jax.rl.spectral import ACTIVATIONS, exact_norm, lipschitz, mlp
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import WorldConfig
from stream_jax.task import ACTIONS, LOCAL


class LyapunovConstants(NamedTuple):
    """What bounds L: slope of f and extreme eigenvalues of Q."""

    slope: float
    largest: float
    smallest: float


class JacobianBound(NamedTuple):
    """Bounds of the joint ensemble mean's Jacobian norm, everything else held."""

    state: float  # with respect to x [I, 10]: 1 + correction
    action: float  # with respect to the action [I, A]


def lyapunov_constants(params: LyapunovParams, cfg: LyapunovConfig) -> LyapunovConstants:
    """Exact norms in float64."""
    factor = np.asarray(params.factor, np.float64)
    raw = factor @ factor.T + cfg.smallest * np.eye(len(factor))
    eigenvalues = np.linalg.eigvalsh(raw * (len(factor) / np.trace(raw)))
    return LyapunovConstants(float(lipschitz(params.layers, cfg.activation)), eigenvalues[-1], eigenvalues[0])


def lipschitz_on_ball(params: LyapunovParams, radius: float, num_intersections: int, cfg: LyapunovConfig) -> float:
    """Lipschitz bound of L on the ball ||x|| <= radius, x the joint state of all intersections."""
    slope, largest, _ = lyapunov_constants(params, cfg)
    return 2.0 * (slope**2 + cfg.eta * largest) * radius / num_intersections


def value_gap(params: LyapunovParams, y: Array, error: float, cfg: LyapunovConfig) -> float:
    """Bound of |L(x) - L(y)| for every x with ||x - y|| <= error, from the state y [I, 10] itself: no ball needed."""
    slope, largest, _ = lyapunov_constants(params, cfg)
    network = float(np.linalg.norm(np.asarray(lyapunov.centred(params, y, cfg), np.float64)))
    weighted = np.asarray(y, np.float64) @ np.asarray(lyapunov.weighting(params, cfg), np.float64)
    quadratic = 2.0 * float(np.linalg.norm(weighted)) * error + largest * error**2
    return ((2.0 * network + slope * error) * slope * error + cfg.eta * quadratic) / y.shape[0]


def noise_gap(params: LyapunovParams, mu: Array, sigma: Array, cfg: LyapunovConfig) -> float:
    """Bound of E L(x') - L(mu) for noise of mean 0 and standard deviations sigma [I, 10] (Eq. lyap_constraint's E)."""
    slope = lyapunov_constants(params, cfg).slope
    variance = np.asarray(sigma, np.float64) ** 2
    network = np.linalg.norm(np.asarray(lyapunov.centred(params, mu, cfg), np.float64), axis=1)  # [I]
    total = variance.sum(axis=1)  # [I] trace of each intersection's covariance
    exact = cfg.eta * variance @ np.diag(np.asarray(lyapunov.weighting(params, cfg), np.float64))  # eta tr(Q Sigma)
    return float((exact + 2.0 * network * slope * np.sqrt(total) + slope**2 * total).mean())


def paper_lipschitz(params: LyapunovParams, x: Array, cfg: LyapunovConfig) -> float:
    """The paper's constant 2 ||SN-MLP(x)||_inf + 2 eta ||Q||_2 at one intersection's x [10]: not a bound."""
    largest = lyapunov_constants(params, cfg).largest
    return 2.0 * float(np.abs(np.asarray(mlp(params.layers, x, cfg.activation))).max()) + 2.0 * cfg.eta * largest


def world_jacobian(params: WorldParams, adjacency: Array, cfg: WorldConfig, actions: int = ACTIONS) -> JacobianBound:
    """Jacobian bound of `mean_next` over all states: mu = x + change * net(own row, A rows, own action, A actions).

    The first layer acts on the joint x as I (x) own + A (x) near, with the input's units folded into own and near;
    every later layer acts on each intersection alone, with the output's units folded into the last. The mean over
    members is bounded by the mean of their bounds, and clipping to the physical range is a projection.

    Args:
        actions: entries of an intersection's action.
    """
    first = (
        np.asarray(params.network.trunk[0].weight, np.float64) / np.asarray(params.scaling.scale)[:, None]
    )  # [K, D, h]
    head = np.asarray(params.network.mean.weight, np.float64) * np.asarray(params.scaling.change, np.float64)
    later = [exact_norm(layer.weight) for layer in params.network.trunk[1:]] + [exact_norm(head)]
    slope = ACTIVATIONS[cfg.activation][1] ** len(params.network.trunk)
    rest = slope * np.prod(later, axis=0)  # [K]
    row = (first.shape[1] - 2 * actions) // 2
    state = _coupled_norm(first[:, :LOCAL], first[:, row : row + LOCAL], adjacency)
    action = _coupled_norm(first[:, 2 * row : 2 * row + actions], first[:, 2 * row + actions :], adjacency)
    return JacobianBound(1.0 + float((state * rest).mean()), float((action * rest).mean()))


def _coupled_norm(own: np.ndarray, near: np.ndarray, adjacency: Array) -> np.ndarray:
    """Bound of ||I (x) own + A (x) near||: the smaller of the triangle's and of ||[I; A]|| ||[own; near]||, [K]."""
    dense = np.asarray(adjacency, np.float64)
    triangle = exact_norm(own) + exact_norm(dense) * exact_norm(near)
    stacked = exact_norm(np.concatenate([np.eye(len(dense)), dense]))
    return np.minimum(triangle, stacked * exact_norm(np.concatenate([own, near], axis=1)))
