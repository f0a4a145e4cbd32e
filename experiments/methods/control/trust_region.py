"""The step of constrained policy optimisation: best linear gain in a trust region under one linear constraint.

Achiam et al. (2017), Theorem 2 and Section 6: conjugate gradients instead of inverting the curvature H, the dual of two
multipliers in closed form, and a recovery step where the constraint cannot be met inside the region.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

TINY = 1e-8
Product = Callable[[Array], Array]  # v [P] -> H v [P]


class Step(NamedTuple):
    """Where to go, and by which of the rules."""

    direction: Array  # [P]
    recovering: Array  # [] bool, no point of the region keeps the linearised limit: only the cost goes down
    price: Array  # [] nu of the constraint


class Geometry(NamedTuple):
    """The inner products under H^-1 that the dual needs."""

    gain: Array  # [] q = g' H^-1 g
    cross: Array  # [] r = g' H^-1 b
    cost: Array  # [] s = b' H^-1 b
    excess: Array  # [] c, how far the cost is above its limit
    radius: Array | float  # delta


def conjugate_gradient(product: Product, target: Array, iterations: int, tolerance: float = 1e-10) -> Array:
    """x [P] with H x = target, exact after as many iterations as H has distinct eigenvalues."""

    def step(carry: tuple[Array, Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array, Array], None]:
        x, residual, direction, square = carry
        image = product(direction)
        is_going = square > tolerance
        length = jnp.where(is_going, square / jnp.maximum(direction @ image, TINY * tolerance), 0.0)
        x, residual = x + length * direction, residual - length * image
        following = residual @ residual
        turned = residual + following / jnp.maximum(square, TINY * tolerance) * direction
        return (x, residual, jnp.where(is_going, turned, direction), jnp.where(is_going, following, square)), None

    first = (jnp.zeros_like(target), target, target, target @ target)
    return jax.lax.scan(step, first, None, length=iterations)[0][0]


def constrained_step(
    product: Product, gain: Array, cost: Array, excess: Array, radius: float, iterations: int = 10
) -> Step:
    """The x that maximises gain' x under cost' x + excess <= 0 and x' H x / 2 <= radius.

    Args:
        product: multiplies by H, positive definite.
        gain: [P] gradient of the reward's surrogate.
        cost: [P] gradient of the cost's surrogate.
        excess: [] mean cost minus its limit.
    """
    to_gain, to_cost = (conjugate_gradient(product, vector, iterations) for vector in (gain, cost))
    # The theorem minimises g' x, so g = -gain.
    g = Geometry(gain @ to_gain, -(gain @ to_cost), jnp.maximum(cost @ to_cost, TINY), excess, radius)
    slack = 2.0 * radius - excess**2 / g.cost  # negative: the plane cost' x + excess = 0 misses the region
    is_free = (slack < 0) & (excess < 0)
    recovering = (slack < 0) & (excess >= 0)
    lagrange, price = dual(g)
    lagrange = jnp.where(is_free, jnp.sqrt(g.gain / (2.0 * radius)), lagrange)
    price = jnp.where(is_free, 0.0, price)
    best = (to_gain - price * to_cost) / jnp.maximum(lagrange, TINY)
    recovery = -jnp.sqrt(2.0 * radius / g.cost) * to_cost
    return Step(jnp.where(recovering, recovery, best), recovering, price)


def dual(g: Geometry) -> tuple[Array, Array]:
    """The multipliers lambda and nu of Theorem 2, where the constraint's plane cuts the region.

    With nu > 0 the dual is -(q - r^2 / s) / (2 lambda) - lambda (2 delta - c^2 / s) / 2 - r c / s, on the lambda with
    lambda c > r; with nu = 0 it is -q / (2 lambda) - lambda delta, on the others. The better of the two is the answer.
    """
    across = jnp.maximum(g.gain - g.cross**2 / g.cost, 0.0)
    room = jnp.maximum(2.0 * g.radius - g.excess**2 / g.cost, TINY)
    is_over = g.excess > 0
    border = g.cross / jnp.where(jnp.abs(g.excess) < TINY, jnp.where(is_over, TINY, -TINY), g.excess)
    # lambda c > r: above the border where the cost is over its limit, below it where it is not.
    tight_low, tight_high = jnp.where(is_over, border, 0.0), jnp.where(is_over, jnp.inf, border)
    loose_low, loose_high = jnp.where(is_over, 0.0, border), jnp.where(is_over, border, jnp.inf)

    def best(peak: Array, low: Array, high: Array, bend: Array, slope: Array, level: Array) -> tuple[Array, Array]:
        low = jnp.maximum(low, TINY)
        point = jnp.clip(peak, low, jnp.maximum(high, low))
        value = -0.5 * bend / point - 0.5 * slope * point + level
        return point, jnp.where(high > low, value, -jnp.inf)

    tight, tight_value = best(
        jnp.sqrt(across / room), tight_low, tight_high, across, room, -g.cross * g.excess / g.cost
    )
    reach = 2.0 * g.radius * jnp.ones(())
    loose, loose_value = best(jnp.sqrt(g.gain / reach), loose_low, loose_high, g.gain, reach, jnp.zeros(()))
    lagrange = jnp.where(tight_value >= loose_value, tight, loose)
    return lagrange, jnp.maximum(lagrange * g.excess - g.cross, 0.0) / g.cost
