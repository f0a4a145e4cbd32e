"""What the road hands to the learner: whole episodes, as the host recorded them, and the steps inside them.

Section 4.3 and Algorithm 1, "Collect trajectories". States are rebuilt from what was seen, so that an ablation of the
state needs no new recording.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.rl.state import StateConfig, make_state
from stream_jax.task import Limits, costs
from stream_jax.types import Certificate, CityView, RLState, Transition


class Episode(NamedTuple):
    """T control steps and the T + 1 moments around them; stacked episodes have a leading axis."""

    x: Array  # [T + 1, I, 10] physical state
    view: CityView  # leaves [T + 1, ...]
    clock: Array  # [T + 1, 5]
    plan: Array  # [T + 1, I, A] the action in force when the moment was seen; the next entry is the action taken
    proposed: Array  # [T, I, A] before the filter
    log_prob: Array  # [T, I] of what was proposed
    certificate: Certificate  # leaves [T]
    traffic: Array  # [T] the measured traffic reward, for reports


def states(episode: Episode, cfg: StateConfig) -> RLState:
    """The T + 1 states of one episode, leaves [T + 1, ...]."""
    build = jax.vmap(lambda x, view, plan, clock: make_state(x, view, plan, clock, cfg))
    return build(episode.x, episode.view, episode.plan, episode.clock)


def transitions(episode: Episode, limits: Limits, cfg: StateConfig) -> Transition:
    """The T steps of one episode; an episode ends because the clock does, so no discount is 0."""
    seen = states(episode, cfg)
    before, after = (jax.tree.map(lambda leaf, cut=cut: leaf[cut], seen) for cut in (slice(None, -1), slice(1, None)))
    return Transition(
        state=before,
        action=episode.plan[1:],
        proposed=episode.proposed,
        reward=episode.traffic,
        cost=jax.vmap(lambda x: costs(x, limits))(episode.x[1:]),
        next_state=after,
        discount=jnp.ones_like(episode.traffic),
    )


def flat_transitions(episodes: Episode, limits: Limits, cfg: StateConfig) -> Transition:
    """All steps of stacked episodes one after another, leaves [E T, ...]."""
    stacked = jax.vmap(lambda episode: transitions(episode, limits, cfg))(episodes)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), stacked)
