"""Graph attention whose logits prefer confident neighbours, with a reference and a fast implementation.

Section 4.1 of the paper, Eqs. (base_attn), (pairwise_term), (final_attn), (feat_update) and (unc_update).
The receiver's own sigma is the same in every logit of its softmax and cancels there, so the pairwise term is a
bias per sender; it only moves weight between neighbours and the self-loop through each sender's sigma.

Arrays are node-major, [N, ..., D]: gathering a neighbour then copies one long row instead of many short ones.
"""

import dataclasses
from typing import Literal, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import jraph
import numpy as np
from jax import Array

from stream_jax.types import RoadGraph

Mode = Literal["pairwise", "none", "unconstrained", "temperature"]
NEGATIVE_SLOPE = 0.2  # LeakyReLU of Eq. (base_attn); the usual choice for graph attention
MASKED_LOGIT = -1e9
EPS = 1e-6
UNROLL = 3  # neighbour slots per turn of the gather loop; measured


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """How uncertainty enters the attention logits."""

    mode: Mode = "pairwise"  # "none" is plain graph attention; "temperature" is Eq. (temp_scaling)
    temperature: float = 1.0  # beta of Eq. (temp_scaling); not given in the paper
    self_bias: float | None = None  # a fixed delta; None learns it, starting from 0
    normalise_sigma: bool = True  # divide sigma by its mean over the graph, which fixes the scale of gamma
    reference: bool = False  # segment sums over edges instead of the padded gather


class Neighbours(NamedTuple):
    """A graph as padded tables, so that message passing and its gradient are both gathers.

    Row i lists the senders of i; the transposed table lists where i itself appears as a sender.
    """

    index: Array  # [N, D] int32 sender in each slot; padding points to the node itself
    mask: Array  # [N, D] bool
    is_self: Array  # [N, D] bool
    back_index: Array  # [N, M] int32 receivers that listen to this node
    back_slot: Array  # [N, M] int32 slot in which they list it
    back_mask: Array  # [N, M] bool
    senders: Array  # [E] int32, for the reference implementation
    receivers: Array  # [E] int32


def neighbour_table(graph: RoadGraph) -> Neighbours:
    """Builds the padded tables on the host; raises ValueError unless every node has exactly one self-loop."""
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    num_nodes = graph.position.shape[0]
    loops = np.bincount(receivers[senders == receivers], minlength=num_nodes)
    if not np.array_equal(loops, np.ones(num_nodes)):
        raise ValueError("every node of the road graph needs exactly one self-loop, or delta has nothing to act on")
    slot, width = _slots(receivers, num_nodes)
    back, back_width = _slots(senders, num_nodes)
    index = np.tile(np.arange(num_nodes, dtype=np.int32)[:, None], (1, width))
    mask = np.zeros((num_nodes, width), bool)
    index[receivers, slot], mask[receivers, slot] = senders, True
    back_index, back_slot, back_mask = (np.zeros((num_nodes, back_width), t) for t in (np.int32, np.int32, bool))
    back_index[senders, back], back_slot[senders, back], back_mask[senders, back] = receivers, slot, True
    is_self = mask & (index == np.arange(num_nodes)[:, None])
    table = (index, mask, is_self, back_index, back_slot, back_mask, senders, receivers)
    return Neighbours(*(jnp.asarray(part) for part in table))


class PUGATLayer(nn.Module):
    """One round of confidence-monotonic message passing, then the node's new uncertainty."""

    features: int
    heads: int
    attention: AttentionConfig
    # Heads averaged instead of concatenated. Each is then as wide as the output, with its W factored through
    # features / heads numbers and a second factor that all heads share, so both kinds cost the same.
    average: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(self, nodes: Array, sigma: Array, neighbours: Neighbours, train: bool = False) -> tuple[Array, Array]:
        """Args: nodes [N, ..., D], sigma [N, ...] > 0. Returns both after the layer, nodes [N, ..., features]."""
        width, per_head = self.features, self.features // self.heads
        flat = nodes.reshape(-1, nodes.shape[-1])  # one plain matrix product is twice as fast as a batched one
        kernel = self.param("kernel", nn.initializers.glorot_uniform(), (nodes.shape[-1], self.heads * per_head))
        messages = (flat @ kernel).reshape(*nodes.shape[:-1], self.heads, per_head)
        # a^T [W h_i || W h_j] is one number of the receiver plus one of the sender.
        scores = self.param("scores", nn.initializers.glorot_uniform(), (2, self.heads, per_head))
        at_ends = flat @ jnp.einsum("dhp,ehp->deh", kernel.reshape(-1, self.heads, per_head), scores).reshape(
            flat.shape[1], -1
        )
        at_receiver, at_sender = jnp.split(at_ends.reshape(*nodes.shape[:-1], -1), 2, axis=-1)  # [N, ..., heads]
        gamma, delta = self._biases()
        scaled = sigma / jnp.maximum(sigma.mean(0), EPS) if self.attention.normalise_sigma else sigma
        attend = attend_segments if self.attention.reference else attend_padded
        pooled = attend(messages, at_receiver, at_sender, scaled, gamma, delta, neighbours, self.attention)
        if self.average:
            pooled = nn.Dense(width, use_bias=False, name="lift")(pooled.mean(-2).reshape(-1, per_head))
        update = nn.elu(pooled.reshape(*nodes.shape[:-1], width))
        update = nn.Dropout(self.dropout, broadcast_dims=(0,), deterministic=not train)(update)
        residual = nodes if nodes.shape[-1] == width else nn.Dense(width, name="residual")(nodes)
        nodes = nn.LayerNorm(name="norm")(residual + update)
        return nodes, nn.softplus(nn.Dense(1, name="sigma")(nodes)[..., 0])

    def _biases(self) -> tuple[Array, Array]:
        """gamma and delta, one of each per head."""
        cfg = self.attention
        zeros = nn.initializers.zeros
        if cfg.mode not in ("pairwise", "unconstrained"):
            return jnp.zeros(self.heads), jnp.zeros(self.heads)
        raw = self.param(
            "gamma", zeros if cfg.mode == "pairwise" else nn.initializers.constant(jnp.log(2.0)), self.heads
        )
        gamma = nn.softplus(raw) if cfg.mode == "pairwise" else raw
        if cfg.self_bias is not None:
            return gamma, jnp.full(self.heads, cfg.self_bias)
        return gamma, self.param("delta", zeros, (self.heads,))


def pairwise_logits(
    base: Array, sigma_receiver: Array, sigma_sender: Array, is_self: Array, gamma: Array, delta: Array
) -> Array:
    """e_ij + gamma (sigma_i - sigma_j) + delta 1[j = i], Eqs. (base_attn) and (pairwise_term)."""
    return base + gamma * (sigma_receiver - sigma_sender) + delta * is_self


def temperature_logits(base: Array, sigma_receiver: Array, beta: float) -> Array:
    """e_ij / (1 + beta sigma_i), Eq. (temp_scaling): blind to which neighbour is uncertain."""
    return base / (1.0 + beta * sigma_receiver)


def attention_weights(
    at_receiver: Array,
    at_sender: Array,
    sigma: Array,
    gamma: Array,
    delta: Array,
    neighbours: Neighbours,
    cfg: AttentionConfig,
) -> Array:
    """Padded attention weights; zero in the padding.

    Args: at_receiver, at_sender [N, ..., heads]; sigma [N, ...]. Returns [N, slots, ..., heads].
    """
    middle = (1,) * (at_receiver.ndim - 2)
    base = nn.leaky_relu(at_receiver[:, None] + at_sender[neighbours.index], NEGATIVE_SLOPE)
    mask = neighbours.mask.reshape(*neighbours.mask.shape, *middle, 1)
    is_self = neighbours.is_self.reshape(mask.shape)
    if cfg.mode == "temperature":
        logits = temperature_logits(base, sigma[:, None, ..., None], cfg.temperature)
    elif cfg.mode == "none":
        logits = base
    else:
        # sigma_i is left out: a constant inside each softmax.
        logits = pairwise_logits(base, jnp.zeros(()), sigma[neighbours.index][..., None], is_self, gamma, delta)
    return nn.softmax(jnp.where(mask, logits, MASKED_LOGIT), axis=1)


def attend_padded(
    messages: Array,
    at_receiver: Array,
    at_sender: Array,
    sigma: Array,
    gamma: Array,
    delta: Array,
    neighbours: Neighbours,
    cfg: AttentionConfig,
) -> Array:
    """Fast path: messages [N, ..., heads, P] pooled over each node's padded senders, [N, ..., heads, P]."""
    weights = attention_weights(at_receiver, at_sender, sigma, gamma, delta, neighbours, cfg)
    return _pool(messages, weights, neighbours)


def attend_segments(
    messages: Array,
    at_receiver: Array,
    at_sender: Array,
    sigma: Array,
    gamma: Array,
    delta: Array,
    neighbours: Neighbours,
    cfg: AttentionConfig,
) -> Array:
    """Reference: the paper's formulas edge by edge, with jraph's segment softmax and sum."""
    senders, receivers, num_nodes = neighbours.senders, neighbours.receivers, messages.shape[0]
    logits = nn.leaky_relu(at_receiver[receivers] + at_sender[senders], NEGATIVE_SLOPE)  # [E, ..., heads]
    sigma_receiver, sigma_sender = sigma[receivers][..., None], sigma[senders][..., None]
    is_self = (senders == receivers).reshape(-1, *(1,) * (logits.ndim - 1))
    if cfg.mode == "temperature":
        logits = temperature_logits(logits, sigma_receiver, cfg.temperature)
    elif cfg.mode != "none":
        logits = pairwise_logits(logits, sigma_receiver, sigma_sender, is_self, gamma, delta)
    weights = cast(Array, jraph.segment_softmax(logits, receivers, num_nodes))
    return jraph.segment_sum(weights[..., None] * messages[senders], receivers, num_nodes)


@jax.custom_vjp
def _pool(messages: Array, weights: Array, neighbours: Neighbours) -> Array:
    """sum_k weights[i, k] messages[index[i, k]], slot by slot so that nothing of size [N, slots, ..., P] exists."""
    return _gather_sum(messages, weights, neighbours.index)


def _pool_forward(messages: Array, weights: Array, neighbours: Neighbours) -> tuple[Array, tuple]:
    return _pool(messages, weights, neighbours), (messages, weights, neighbours)


def _pool_backward(saved: tuple[Array, Array, Neighbours], cotangent: Array) -> tuple[Array, Array, None]:
    """Gathers through the transposed table; the scatter that autodiff would emit is ten times slower on a CPU."""
    messages, weights, neighbours = saved
    real = neighbours.back_mask.reshape(*neighbours.back_mask.shape, *(1,) * (weights.ndim - 2))
    back_weights = jnp.where(real, weights[neighbours.back_index, neighbours.back_slot], 0.0)

    def to_weight(_: None, senders: Array) -> tuple[None, Array]:
        return None, (cotangent * messages[senders]).sum(-1)

    _, to_weights = jax.lax.scan(to_weight, None, neighbours.index.T)  # [slots, N, ..., heads]
    return _gather_sum(cotangent, back_weights, neighbours.back_index), jnp.moveaxis(to_weights, 0, 1), None


def _gather_sum(rows: Array, weights: Array, index: Array) -> Array:
    """sum_k weights[:, k] rows[index[:, k]].

    A loop rather than a sum of terms: the compiler would fuse the terms with whatever computes `rows` and do that
    work again for every slot.
    """

    def add(total: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
        weight, nodes = slot
        return total + weight[..., None] * rows[nodes], None

    total, _ = jax.lax.scan(add, jnp.zeros_like(rows), (jnp.moveaxis(weights, 1, 0), index.T), unroll=UNROLL)
    return total


_pool.defvjp(_pool_forward, _pool_backward)


def _slots(owner: np.ndarray, num_nodes: int) -> tuple[np.ndarray, int]:
    """Running number of each edge within its owner, and the largest degree."""
    order = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[order], np.arange(num_nodes))
    slot = np.empty(len(owner), np.int32)
    slot[order] = np.arange(len(owner)) - first[owner[order]]
    return slot, int(slot.max()) + 1
