"""USAD: two autoencoders with one encoder, the second trained to tell data from what the first one makes of them.

Audibert et al., "USAD: UnSupervised Anomaly Detection on Multivariate Time Series" (KDD 2020). Layer widths, ReLU and
sigmoid, Adam at 1e-3, windows of 12 steps and alpha = beta = 0.5 are those of the authors' program; the latent
dimension is the 40 given there, for the whole window, because 40 per step would leave no bottleneck. A window holds all
cells, and a cell's score is its share of the window's error at the last step. In epoch n

    encoder, first decoder   minimise   |W - AE1|^2 / n + (1 - 1/n) |W - AE2(AE1)|^2
    encoder, second decoder  minimise   |W - AE2|^2 / n - (1 - 1/n) |W - AE2(AE1)|^2

which is no loss that could be stopped early, so it has a loop of its own in place of `stream_jax.fit`. The authors'
program adds the gradients of both losses before either optimiser moves; the adversarial terms then cancel, and what is
trained is one encoder with two decoders. That is the default here too: by the paper's text, each loss moving its own
networks, the shared encoder soon serves neither. The authors set the threshold by the labels of the test part; here it
is OmniAnomaly's rule, peaks over threshold on the fitting scores.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array

from experiments.methods.detection.pot import PotConfig, pot_threshold
from experiments.methods.detection.windows import (
    cell_scores,
    flat_series,
    learning_rows,
    over_rows,
    window_ending_at,
)
from experiments.methods.method import Method
from stream_jax.flows.context import FlowData

SCORE_BATCH = 64
SMALLEST_RANGE = 1e-6


@dataclasses.dataclass(frozen=True)
class UsadConfig:
    """Sizes, training and score."""

    window: int = 12
    latent: int = 40
    alpha: float = 0.5  # weight of the first autoencoder's error; the rest is that of both in a row
    learning_rate: float = 1e-3
    batch: int = 32  # windows; the authors' 7,919 are more than a week of quarter hours has
    epochs: int = 100
    summed: bool = True  # both losses move all networks, as in the authors' program; False: each its own, as printed
    pot: PotConfig = PotConfig()

    def __post_init__(self) -> None:
        if min(self.window, self.latent, self.batch, self.epochs) < 1 or not 0.0 <= self.alpha <= 1.0:
            raise ValueError("window, latent, batch and epochs must be at least 1 and alpha in [0, 1]")


class UsadParams(NamedTuple):
    """Both autoencoders, and the range that inputs are scaled to [0, 1] by."""

    networks: Any  # {"encoder", "first", "second"}
    low: Array  # []
    range: Array  # []
    threshold: float


def fit(key: Array, data: FlowData, cfg: UsadConfig, held_out: float) -> UsadParams:
    """Learns on the steps before the held-out ones; the threshold rests on the scores of both.

    All cells share one range: their inputs are in one unit already.
    """
    values, observed = flat_series(data)
    rows, _ = learning_rows(values.shape[0], held_out)
    seen = observed & (jnp.arange(values.shape[0]) < rows.shape[0])[:, None]
    low = jnp.where(seen, values, jnp.inf).min()
    width = jnp.maximum(jnp.where(seen, values, -jnp.inf).max() - low, SMALLEST_RANGE)
    init_key, train_key = jax.random.split(key)
    start = UsadParams(_start(init_key, cfg.window * values.shape[1], cfg), low, width, float("inf"))
    params = start._replace(networks=_train(train_key, start, values, observed, rows, cfg))
    return params._replace(threshold=pot_threshold(scores(params, data, cfg), cfg.pot))


def scores(params: UsadParams, data: FlowData, cfg: UsadConfig) -> Array:
    """alpha |w - AE1(w)|^2 + (1 - alpha) |w - AE2(AE1(w))|^2 at a window's end: [T, N], NaN where not observed."""
    values, _ = flat_series(data)
    return cell_scores(_last_errors(params, values, cfg), data)


class _Encoder(nn.Module):
    """Flat windows [M] -> [latent]: half, a quarter, latent, ReLU after each."""

    latent: int

    @nn.compact
    def __call__(self, window: Array) -> Array:
        hidden = nn.relu(nn.Dense(max(window.shape[-1] // 2, 1))(window))
        hidden = nn.relu(nn.Dense(max(window.shape[-1] // 4, 1))(hidden))
        return nn.relu(nn.Dense(self.latent)(hidden))


class _Decoder(nn.Module):
    """[latent] -> flat windows [M] in (0, 1)."""

    outputs: int

    @nn.compact
    def __call__(self, latent: Array) -> Array:
        hidden = nn.relu(nn.Dense(max(self.outputs // 4, 1))(latent))
        hidden = nn.relu(nn.Dense(max(self.outputs // 2, 1))(hidden))
        return nn.sigmoid(nn.Dense(self.outputs)(hidden))


def _reconstructions(networks: Any, window: Array, cfg: UsadConfig) -> tuple[Array, Array, Array]:
    """AE1(w), AE2(w), AE2(AE1(w)) of flat windows [B, M]."""
    encode = partial(_Encoder(cfg.latent).apply, networks["encoder"])
    decoder = _Decoder(window.shape[-1])
    latent = encode(window)
    first = decoder.apply(networks["first"], latent)
    second = decoder.apply(networks["second"], latent)
    return first, second, decoder.apply(networks["second"], encode(first))


def _start(key: Array, size: int, cfg: UsadConfig) -> Any:
    encoder_key, first_key, second_key = jax.random.split(key, 3)
    return {
        "encoder": _Encoder(cfg.latent).init(encoder_key, jnp.zeros(size)),
        "first": _Decoder(size).init(first_key, jnp.zeros(cfg.latent)),
        "second": _Decoder(size).init(second_key, jnp.zeros(cfg.latent)),
    }


def _scaled_window(params: UsadParams, values: Array, row: Array, cfg: UsadConfig) -> Array:
    return (window_ending_at(values, row, cfg.window) - params.low) / params.range


@partial(jax.jit, static_argnames="cfg")
def _train(key: Array, start: UsadParams, values: Array, observed: Array, rows: Array, cfg: UsadConfig) -> Any:
    """The two optimisers in turn, epoch after epoch; an incomplete last batch of a shuffle is left out."""
    optimiser = optax.adam(cfg.learning_rate)
    groups = (("encoder", "first"), ("encoder", "second"))
    states = tuple(optimiser.init({name: start.networks[name] for name in group}) for group in groups)
    batch = min(cfg.batch, rows.shape[0])
    num_batches = rows.shape[0] // batch

    def step(carry: tuple[Any, Any], chosen: tuple[Array, Array]) -> tuple[tuple[Any, Any], None]:
        (networks, states), (share, batch_rows) = carry, chosen
        flat = jax.vmap(lambda row: _scaled_window(start, values, row, cfg).ravel())(batch_rows)
        seen = jax.vmap(lambda row: window_ending_at(observed, row, cfg.window).ravel())(batch_rows)
        moved, new_states = networks, []
        for number, group in enumerate(groups):
            at, players = (networks, (0, 1)) if cfg.summed else (moved, (number,))
            grads = jax.grad(_total_loss)({name: at[name] for name in group}, at, flat, seen, share, players, cfg)
            updates, state = optimiser.update(grads, states[number])
            moved = moved | optax.apply_updates({name: moved[name] for name in group}, updates)
            new_states.append(state)
        return (moved, tuple(new_states)), None

    def epoch(carry: tuple[Any, Any], number: Array) -> tuple[tuple[Any, Any], None]:
        order = jax.random.permutation(jax.random.fold_in(key, number), rows)
        batches = order[: num_batches * batch].reshape(num_batches, batch)
        share = jnp.full(num_batches, 1.0 / (number + 1.0))  # 1 / n of the first epoch is 1
        return jax.lax.scan(step, carry, (share, batches))

    (networks, _), _ = jax.lax.scan(epoch, (start.networks, states), jnp.arange(cfg.epochs))
    return networks


def _total_loss(
    part: Any, networks: Any, flat: Array, seen: Array, share: Array, players: tuple[int, ...], cfg: UsadConfig
) -> Array:
    """The losses of some of the two autoencoders as a function of some networks, per observed entry."""
    first, second, both = _reconstructions(networks | part, flat, cfg)

    def error(made: Array) -> Array:
        return jnp.where(seen, jnp.square(flat - made), 0.0).sum() / jnp.maximum(seen.sum(), 1)

    losses = (
        share * error(first) + (1.0 - share) * error(both),
        share * error(second) - (1.0 - share) * error(both),
    )
    return sum(losses[player] for player in players)


@partial(jax.jit, static_argnames="cfg")
def _last_errors(params: UsadParams, values: Array, cfg: UsadConfig) -> Array:
    """The score of every entry [T, M]."""

    def at(row: Array) -> Array:
        window = _scaled_window(params, values, row, cfg)
        first, _, both = _reconstructions(params.networks, window.ravel()[None], cfg)
        here = window[-1]
        ours, theirs = (made.reshape(window.shape)[-1] for made in (first[0], both[0]))
        return cfg.alpha * jnp.square(here - ours) + (1.0 - cfg.alpha) * jnp.square(here - theirs)

    return over_rows(at, values.shape[0], SCORE_BATCH)


METHOD = Method(
    "usad",
    UsadConfig(),
    variants={"counts": {}},
    paper_label={"USAD": "usad"},
    tables={"anomaly": ("usad",)},
)
