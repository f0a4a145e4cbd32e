"""Dense layers whose spectral norms are held down in training and known exactly afterwards.

Proposition "Upper Bounds via Spectral Normalization" and the appendix "Safety Constraints and Lyapunov Details". Power
iteration approaches the norm from below, so a bound made from it certifies nothing: it is used while training only.
What is certified has been divided by its exact largest singular value, in float64 on the host.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# Activations with their largest slope; layer normalisation and attention have none that is usable.
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "tanh": (jnp.tanh, 1.0),
    "relu": (jax.nn.relu, 1.0),
    "elu": (jax.nn.elu, 1.0),
    "softplus": (jax.nn.softplus, 1.0),
    "silu": (jax.nn.silu, 1.0999),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), 1.1290),
}
# Covers the rounding of the divided weights back to float32.
ROUNDING = 1e-6
EPS = 1e-12
_START_SEED = 20  # of the vector that power iteration starts from


class Layer(NamedTuple):
    """An affine map x W + b; leaves may have leading ensemble axes."""

    weight: Array  # [in, out]
    bias: Array  # [out]


@partial(jax.jit, static_argnames="sizes")
def init_layers(key: Array, sizes: tuple[int, ...]) -> tuple[Layer, ...]:
    """Layers from sizes[0] inputs to sizes[-1] outputs: weights of variance 1 / in, no bias."""
    keys = jax.random.split(key, len(sizes) - 1)
    initialise = jax.nn.initializers.lecun_normal()
    pairs = itertools.pairwise(sizes)
    return tuple(Layer(initialise(k, pair), jnp.zeros(pair[1])) for k, pair in zip(keys, pairs, strict=True))


def affine(layer: Layer, x: Array) -> Array:
    """x W + b over the last axis."""
    return x @ layer.weight + layer.bias


def mlp(layers: tuple[Layer, ...], x: Array, activation: str) -> Array:
    """Affine maps with the activation between them, not after the last."""
    bend = ACTIVATIONS[activation][0]
    for layer in layers[:-1]:
        x = bend(affine(layer, x))
    return affine(layers[-1], x)


def power_norm(weight: Array, iterations: int) -> Array:
    """Estimate of the largest singular value of [in, out], never above it; its gradient is the outer product u v'."""
    frozen = jax.lax.stop_gradient(weight)

    def iterate(_: int, right: Array) -> Array:
        return _unit(frozen.T @ _unit(frozen @ right))

    right = jax.lax.fori_loop(0, iterations, iterate, jax.random.normal(jax.random.key(_START_SEED), weight.shape[1:]))
    return _unit(frozen @ right) @ weight @ right


def normalised(layers: Any, coefficient: float, iterations: int) -> Any:
    """Layers for training: every weight whose estimated norm exceeds the coefficient is scaled down to it."""

    def shrink(layer: Layer) -> Layer:
        norm = power_norm(layer.weight, iterations)
        return layer._replace(weight=layer.weight / jnp.maximum(norm / coefficient, 1.0))

    return jax.tree.map(shrink, layers, is_leaf=_is_layer)


def hardened(layers: Any, coefficient: float) -> Any:
    """Layers for use and for certificates: every exact norm is at most the coefficient. Host only, not traceable."""

    def shrink(layer: Layer) -> Layer:
        ratio = np.maximum(exact_norm(layer.weight) * (1.0 + ROUNDING) / coefficient, 1.0)
        weight = np.asarray(layer.weight, np.float64) / np.asarray(ratio)[..., None, None]
        return layer._replace(weight=jnp.asarray(weight, jnp.float32))

    return jax.tree.map(shrink, layers, is_leaf=_is_layer)


def exact_norm(matrix: Array | np.ndarray) -> np.ndarray:
    """Largest singular value over the last two axes, by a full decomposition in float64 on the host."""
    return np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False).max(axis=-1)


def lipschitz(layers: tuple[Layer, ...], activation: str) -> np.ndarray:
    """Upper bound of the Lipschitz constant of `mlp`: product of exact norms and of the slopes between them."""
    norms = [exact_norm(layer.weight) for layer in layers]
    return np.prod(norms, axis=0) * ACTIVATIONS[activation][1] ** (len(layers) - 1)


def _unit(vector: Array) -> Array:
    return vector / jnp.maximum(jnp.linalg.norm(vector), EPS)


def _is_layer(node: Any) -> bool:
    return isinstance(node, Layer)
