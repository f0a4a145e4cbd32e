"""What a residual is judged against: its neighbours' and its own past, encoded in one vector per cell.

Section 4.2, Eq. (context), with two changes. The paper's query is the very residual whose density is wanted; the flow's
Jacobian at a fixed context is then not the true one and the "density" need not integrate to 1. Ours is the cell's
embedding, the clock, the forecast's spread and the cell's previous residual. The paper's keys are the neighbours'
residuals of the same step, which makes a normal cell look anomalous beside an anomaly; ours are from the step before,
and none beyond a limit of one standard deviation: an anomaly that lasts would explain itself away.
"""

import dataclasses
from typing import Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.types import RoadGraph

MASKED_LOGIT = -1e9
UNIT_LIMITS = (1e-3, 10.0)


@dataclasses.dataclass(frozen=True)
class ContextConfig:
    """Sizes of the encoder; the paper gives none, and a week of residuals supports no more."""

    features: int = 32  # of the context: half from the neighbours, half from the cell's own past
    lags: int = 4  # steps of the past that are seen
    heads: int = 2
    layers: int = 1  # of the causal transformer
    embedding: int = 2  # numbers learned per cell
    clip: float = 1.0  # residuals enter a context within +-clip
    # A residual beyond it, by its root mean square, is no context, as if it had not been observed, or is shown as
    # +-clip; shown so, an anomaly that lasts explains itself away (detector `flow_clipped` of the detect stage).
    beyond: Literal["left_out", "clipped"] = "left_out"
    contemporaneous: bool = False  # also neighbours' residuals of the same step, as in the paper: contaminates them

    def __post_init__(self) -> None:
        if min(self.lags, self.heads, self.layers, self.embedding) < 1 or self.clip <= 0.0:
            raise ValueError("lags, heads, layers and embedding must be at least 1 and clip positive")
        if self.beyond not in ("left_out", "clipped"):
            raise ValueError(f"beyond must be left_out or clipped, not {self.beyond!r}")
        if self.features % (2 * self.heads):
            raise ValueError(f"features {self.features} must be a multiple of twice the {self.heads} heads")


class Neighbours(NamedTuple):
    """Who is listened to: the graph's senders without the cell itself."""

    index: Array  # [N, K] int32; padding points to the cell itself
    mask: Array  # [N, K] bool


class FlowData(NamedTuple):
    """Residuals of consecutive steps; what came before the first row counts as not observed."""

    z: Array  # [T, N, D] normalised residuals
    observed: Array  # [T, N] bool: may be tested and may be looked back at
    unit: Array  # [T, N, D] one vehicle in units of z, known before the step: tells quiet cells from busy ones
    clock: Array  # [T, 4] sin and cos of the local time of day, then of the local day of week
    neighbours: Neighbours


class FlowStep(NamedTuple):
    """One step and the past that its context may read."""

    z: Array  # [N, D], 0 where not observed
    observed: Array  # [N] bool
    unit: Array  # [N, D]
    past: Array  # [lags, N, D] oldest first, 0 where not observed
    past_observed: Array  # [lags, N] bool
    clock: Array  # [4]
    neighbours: Neighbours


def neighbour_table(graph: RoadGraph) -> Neighbours:
    """Builds the padded table on the host, self-loops left out."""
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    num_nodes = graph.position.shape[0]
    others = [senders[(receivers == node) & (senders != node)] for node in range(num_nodes)]
    width = max(1, *(len(row) for row in others))
    index = np.tile(np.arange(num_nodes, dtype=np.int32)[:, None], (1, width))
    mask = np.zeros((num_nodes, width), bool)
    for node, row in enumerate(others):
        index[node, : len(row)], mask[node, : len(row)] = row, True
    return Neighbours(jnp.asarray(index), jnp.asarray(mask))


def step_at(data: FlowData, row: int | Array, lags: int) -> FlowStep:
    """Row `row` of the data with the rows before it."""
    before = row - lags + jnp.arange(lags)
    # Indices below 0 would wrap around to the end of the recording.
    past_observed = data.observed[jnp.maximum(before, 0)] & (before >= 0)[:, None]
    past = jnp.where(past_observed[..., None], data.z[jnp.maximum(before, 0)], 0.0)
    z = jnp.where(data.observed[row][:, None], data.z[row], 0.0)
    return FlowStep(z, data.observed[row], data.unit[row], past, past_observed, data.clock[row], data.neighbours)


class ContextEncoder(nn.Module):
    """Cross-attention to the neighbours beside a causal transformer over the cell's own past."""

    cfg: ContextConfig

    @nn.compact
    def __call__(self, step: FlowStep) -> Array:
        """Returns: [N, features]; row i does not depend on z of cell i at this step, nor on anything later."""
        past = _tokens(step.past, step.past_observed, self.cfg)  # [lags, N, D + 1]
        num_nodes, heard = past.shape[1], past[..., -1] > 0.0  # [lags, N]
        cell = self.param("cell", nn.initializers.normal(0.1), (num_nodes, self.cfg.embedding))
        count = jnp.maximum(heard.sum(0), 1)[:, None]
        level = past[..., :-1].sum(0) / count  # [N, D] mean over the lags
        seen = jnp.maximum(heard[-1].sum(), 1)
        city = past[-1, :, :-1].sum(0) / seen  # [D] what all cells had in common one step ago
        common = jnp.broadcast_to(jnp.concatenate([step.clock, city]), (num_nodes, 4 + city.shape[0]))
        # How coarse a count is here: the residuals of a quiet cell are few, far apart and skew.
        coarse = jnp.log(jnp.clip(step.unit[:, :1], *UNIT_LIMITS))
        query = jnp.concatenate([cell, common, coarse, past[-1]], axis=-1)
        message = jnp.concatenate([cell, level, past[-1]], axis=-1)
        if self.cfg.contemporaneous:
            message = jnp.concatenate([message, _tokens(step.z, step.observed, self.cfg)], axis=-1)
        spatial = _CrossAttention(self.cfg, name="neighbours")(query, message, step.neighbours)
        temporal = _CausalTransformer(self.cfg, name="past")(past.swapaxes(0, 1), heard.T)
        return jnp.concatenate([spatial, temporal], axis=-1)


class _CrossAttention(nn.Module):
    """One round of attention from every cell to its neighbours; a cell without any keeps its query alone."""

    cfg: ContextConfig

    @nn.compact
    def __call__(self, query: Array, message: Array, neighbours: Neighbours) -> Array:
        width, heads = self.cfg.features // 2, self.cfg.heads

        def by_head(inputs: Array, name: str) -> Array:  # [N, ·] -> [N, heads, width / heads]
            return nn.Dense(width, name=name)(inputs).reshape(-1, heads, width // heads)

        keys = by_head(message, "key")[neighbours.index]  # [N, K, heads, width / heads]
        values = by_head(message, "value")[neighbours.index]
        logits = jnp.einsum("nhd,nkhd->nkh", by_head(query, "query"), keys) / jnp.sqrt(width / heads)
        mask = neighbours.mask[..., None]
        weights = mask * nn.softmax(jnp.where(mask, logits, MASKED_LOGIT), axis=1)
        attended = jnp.einsum("nkh,nkhd->nhd", weights, values).reshape(-1, width)
        # Starts deaf: what neighbours say enters only as far as the likelihood asks for it, not as noise to unlearn.
        heard = nn.Dense(width, kernel_init=nn.initializers.zeros, name="heard")(attended)
        hidden = nn.gelu(nn.Dense(width, name="own")(query) + heard)
        return nn.Dense(width, name="out")(hidden)


class _CausalTransformer(nn.Module):
    """Reads a cell's past from the oldest step to the newest and answers at the newest.

    Inputs are clipped and layers few, so there is no normalisation: it would take away how large the residuals were.
    """

    cfg: ContextConfig

    @nn.compact
    def __call__(self, tokens: Array, observed: Array) -> Array:
        """Args: tokens [N, lags, D + 1], observed [N, lags]. Returns: [N, features / 2]."""
        width, lags = self.cfg.features // 2, tokens.shape[1]
        position = self.param("position", nn.initializers.normal(0.1), (lags, width))
        hidden = nn.Dense(width, name="embed")(tokens) + position
        mask = observed[:, None, None, :] & jnp.tril(jnp.ones((lags, lags), bool))  # [N, 1, lags, lags]
        for layer in range(self.cfg.layers):
            queries = hidden if layer < self.cfg.layers - 1 else hidden[:, -1:]
            attend = nn.MultiHeadDotProductAttention(self.cfg.heads, name=f"attend_{layer}")
            update = attend(queries, hidden, mask=mask[:, :, -queries.shape[1] :])
            hidden = queries + update
            inner = nn.gelu(nn.Dense(2 * width, name=f"widen_{layer}")(hidden))
            hidden += nn.Dense(width, name=f"narrow_{layer}")(inner)
        return hidden[:, -1]


def _tokens(residual: Array, observed: Array, cfg: ContextConfig) -> Array:
    """Residuals [..., D] within the clip, 0 where they are no context, with a last number that is 1 where they are."""
    if cfg.beyond == "left_out":
        observed = observed & (jnp.square(residual).mean(-1) <= cfg.clip**2)
    seen = observed[..., None]
    clipped = jnp.where(seen, jnp.clip(residual, -cfg.clip, cfg.clip), 0.0)
    return jnp.concatenate([clipped, seen.astype(residual.dtype)], axis=-1)
