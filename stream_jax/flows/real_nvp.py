"""A conditional coupling flow between residual vectors and a standard normal, with exact densities.

Section 4.2, Eq. (flow_density): six Real-NVP layers; their widths are not in the paper. Coupling needs two coordinates
to hold one fixed while it moves the other, so a single coordinate gets a monotone rational-quadratic spline instead.
"""

import math

import chex
import distrax
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammainc, gammaincc, gammaln

LARGEST_LOG_SCALE = 2.0  # one layer stretches by at most e^2
# The networks see coordinates squeezed into +-this. Beyond the data a layer is then affine with a bounded shift, so an
# absurd residual cannot be explained away by a network's extrapolation.
CONDITIONER_LIMIT = 5.0
SPLINE_LIMIT = 5.0  # outside the spline is the identity
SMALLEST_TAIL = 1e-30  # float32 tail probabilities below this are taken from their asymptotic series
LOG_TWO_PI = math.log(2.0 * math.pi)


class ConditionalFlow(nn.Module):
    """An invertible map z -> u whose parameters depend on a context; the identity until it is trained."""

    dim: int
    num_layers: int = 6
    hidden: int = 64
    spline_bins: int = 8  # for dim = 1 only

    def setup(self) -> None:
        num_networks, outputs = (self.num_layers, 2 * self.dim) if self.dim > 1 else (1, 2 + 3 * self.spline_bins + 1)
        self.conditioners = [_Conditioner(self.hidden, outputs) for _ in range(num_networks)]

    def __call__(self, z: Array, context: Array) -> tuple[Array, Array]:
        """Args: z [..., D], context [..., C]. Returns: u [..., D], log |det du/dz| [...]."""
        log_det = jnp.zeros(z.shape[:-1])
        for layer in self._layers(context):
            moved, change = layer.forward_and_log_det(z)
            z, log_det = jnp.asarray(moved), log_det + change
        return z, log_det

    def inverse(self, base: Array, context: Array) -> tuple[Array, Array]:
        """Args: base u [..., D], context [..., C]. Returns: z [..., D], log |det dz/du| [...]."""
        log_det = jnp.zeros(base.shape[:-1])
        for layer in reversed(self._layers(context)):
            moved, change = layer.inverse_and_log_det(base)
            base, log_det = jnp.asarray(moved), log_det + change
        return base, log_det

    def _layers(self, context: Array) -> list[distrax.Bijector]:
        """From residuals to the base, in order of application."""
        if self.dim == 1:
            params = self.conditioners[0](context)[..., None, :]  # [..., 1, 2 + 3 bins + 1]
            affine = _affine(params[..., :2])
            spline = distrax.RationalQuadraticSpline(params[..., 2:], -SPLINE_LIMIT, SPLINE_LIMIT, "identity")
            return [distrax.Block(affine, 1), distrax.Block(spline, 1)]

        def coupling(mask: np.ndarray, network: _Conditioner) -> distrax.Bijector:
            def parameters(fixed: chex.Array) -> chex.Array:  # [..., D] -> [..., D, 2]
                seen = CONDITIONER_LIMIT * jnp.tanh(fixed / CONDITIONER_LIMIT)
                raw = network(jnp.concatenate([seen, context], axis=-1))
                return raw.reshape(*raw.shape[:-1], self.dim, 2)

            return distrax.MaskedCoupling(jnp.asarray(mask), parameters, _affine)

        masks = coupling_masks(self.dim, self.num_layers)
        return [coupling(mask, network) for mask, network in zip(masks, self.conditioners, strict=True)]


def standard_normal_log_density(base: Array) -> Array:
    """log p_0 of [..., D], in nats."""
    return -0.5 * (jnp.square(base).sum(-1) + base.shape[-1] * LOG_TWO_PI)


def two_sided_radius(base: Array) -> Array:
    """-log(2 min(F, 1 - F)) with F the chi distribution of the radius of [..., D]: large if too long or too short.

    Orders cells as |F - 1/2| does, but does not run out of digits where F rounds to 1.
    """
    shape, energy = base.shape[-1] / 2.0, 0.5 * jnp.square(base).sum(-1)
    upper = gammaincc(shape, energy)
    # 1 - F = x^(a-1) e^(-x) (1 + (a-1)/x + (a-1)(a-2)/x^2 + ...) / Gamma(a)
    large = jnp.maximum(energy, 1.0)
    series = jnp.maximum(1.0 + (shape - 1.0) / large * (1.0 + (shape - 2.0) / large), SMALLEST_TAIL)
    log_far = (shape - 1.0) * jnp.log(large) - energy - gammaln(shape) + jnp.log(series)
    log_upper = jnp.where(upper > SMALLEST_TAIL, jnp.log(jnp.maximum(upper, SMALLEST_TAIL)), log_far)
    log_lower = jnp.log(jnp.maximum(gammainc(shape, energy), SMALLEST_TAIL))
    return -jnp.log(2.0) - jnp.minimum(log_upper, log_lower)


def coupling_masks(dim: int, num_layers: int) -> np.ndarray:
    """Which coordinates each layer leaves alone: [num_layers, dim] bool, dim >= 2.

    Layers come in pairs with opposite halves. Pair k separates coordinates by the parity of the bits that they share
    with k, which is a fixed permutation before every pair; with four coordinates three pairs meet all three ways to
    cut them in half.
    """
    num_cuts = 2 ** (dim - 1).bit_length() - 1
    pattern = [1 + pair % num_cuts for pair in range((num_layers + 1) // 2)]
    first = np.array([[(i & k).bit_count() % 2 == 0 for i in range(dim)] for k in pattern])  # [pairs, dim]
    return np.stack([first, ~first], axis=1).reshape(-1, dim)[:num_layers]


class _Conditioner(nn.Module):
    """Two hidden layers; the last layer starts at zero, which makes every flow layer start as the identity."""

    hidden: int
    outputs: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        for _ in range(2):
            inputs = nn.gelu(nn.Dense(self.hidden)(inputs))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.zeros)(inputs)


def _affine(params: Array) -> distrax.Bijector:
    """u = exp(2 tanh(a)) z + b from [..., 2]."""
    log_scale = LARGEST_LOG_SCALE * jnp.tanh(params[..., 0])
    return distrax.ScalarAffine(shift=params[..., 1], log_scale=log_scale)
