"""Signal plans without look-ahead, as references: stages follow each other for fixed greens, or until nobody comes.

Functions of the same state, eyes and tables as the look-ahead controller, so they drive SUMO and compiled roads alike.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.road.controller import GREEN, RED, YELLOW, LookaheadState, start
from stream_jax.road.tables import Seen, Tables
from stream_jax.road.world import Controller

YELLOW_S, ALL_RED_S = 3, 2


class PlanConfig(NamedTuple):
    """A cycle through the stages that movements count for; numbers or arrays, so one program serves all plans."""

    green_s: float | Array = 30.0  # of each stage; the longest one if greens may end early
    first_s: float | Array = 0.0  # of the signal's first stage, if it is another
    gap_out: bool | Array = False  # a green ends when nobody comes to it, and stages that nobody wants are left out
    near_s: float | Array = 3.0  # vehicles that arrive so soon are seen


def plan(cfg: PlanConfig) -> Controller:
    """A plan as a controller; it does not listen to any action."""
    return Controller(start, lambda state, seen, action, tables: advance_plan(state, seen, tables, cfg))


def advance_plan(state: LookaheadState, seen: Seen, tables: Tables, cfg: PlanConfig) -> tuple[LookaheadState, Array]:
    """All signals one second later, and the colour of each movement [I, M]; as `controller.advance`."""
    return jax.vmap(_advance, in_axes=(0, 0, 0, None))(state, seen, tables, cfg)


def _advance(state: LookaheadState, seen: Seen, tables: Tables, cfg: PlanConfig) -> tuple[LookaheadState, Array]:
    """One signal."""
    to_red = (state.colour == YELLOW) & (state.timer >= YELLOW_S)
    to_green = (state.colour == RED) & (state.timer >= ALL_RED_S)
    stage = jnp.where(to_green, state.target, state.stage)
    colour = jnp.where(to_red, RED, jnp.where(to_green, GREEN, state.colour))
    timer = jnp.where(to_red | to_green, 0.0, state.timer)

    stages = jnp.arange(tables.serves.shape[0])
    is_used = (tables.home[None] == stages[:, None]).any(1) & (stages < tables.stages)
    is_wanted = (tables.serves & _wanted(seen, tables, cfg)).any(1) | ~jnp.asarray(cfg.gap_out)
    is_first = (stage == is_used.argmax()) & (jnp.asarray(cfg.first_s) > 0)
    green_s = jnp.where(is_first, cfg.first_s, cfg.green_s)
    least = jnp.where(tables.serves[stage], tables.min_green, 0.0).max()
    is_over = (timer >= jnp.maximum(green_s, least)) | (timer >= least) & ~is_wanted[stage]
    order = jnp.mod(stage + 1 + stages, len(stages))
    follows = (is_used & is_wanted)[order] & (order != stage)
    leaves = (colour == GREEN) & is_over & follows.any()
    target = jnp.where(leaves, order[follows.argmax()], jnp.where(colour == GREEN, stage, state.target))
    colour = jnp.where(leaves, YELLOW, colour)
    timer = jnp.where(leaves, 0.0, timer) + 1.0

    stays = tables.serves[stage] & tables.serves[target] & (colour != GREEN)
    now = tables.serves[stage] & (colour == GREEN) | stays
    shown = jnp.where(now, GREEN, jnp.where(tables.serves[stage] & (colour == YELLOW), YELLOW, RED))
    whole = lambda value: value.astype(jnp.int32)  # noqa: E731
    return state._replace(stage=whole(stage), target=whole(target), colour=whole(colour), timer=timer), shown


def _wanted(seen: Seen, tables: Tables, cfg: PlanConfig) -> Array:
    """[M] movements that somebody waits for or comes to soon."""
    comes = (seen.count > 0) & ((seen.eta <= cfg.near_s) | (seen.waited > 0))
    return ((seen.movement[..., None] == jnp.arange(tables.phase.shape[0])) & comes[..., None]).any((0, 1))
