"""A compiled road as an environment: `reset(key, params)` and `step(key, state, action, params)`.

A control step is a scan over its seconds. Everything may be vmapped: keys, states, actions and parameters.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.road.look import look
from stream_jax.road.second import pass_second, rules
from stream_jax.road.trips import Demand, draw_hour
from stream_jax.road.world import NEVER, Controller, Drivers, Hour, Lanes, Road, RoadState, WorldConfig, lookahead
from stream_jax.task import PHASES
from stream_jax.types import RoadMeasurement


class Params(NamedTuple):
    """What differs between environments: how people drive, and what they want."""

    drivers: Drivers
    demand: Demand


class _Sums(NamedTuple):
    """Sums and maxima over the seconds of a control step."""

    halting: Array  # [L]
    pending: Array  # [O]
    wait: Array  # [L]
    late: Array  # [O]
    present: Array  # []


class World:
    """One network under one kind of controller; holds constants alone."""

    def __init__(self, road: Road, cfg: WorldConfig | None = None, controller: Controller | None = None) -> None:
        self.places = road.places
        self.road, self.cfg = jax.tree.map(jnp.asarray, road), cfg or WorldConfig()
        self.controller = controller or lookahead()

    def reset(self, key: Array, params: Params) -> RoadState:
        """An empty road at second 0, and an hour of trips drawn for it."""
        return self.begin(draw_hour(key, params.demand))

    def begin(self, hour: Hour) -> RoadState:
        """An empty road at second 0 of an hour whose trips are given."""
        road, cfg = self.road, self.cfg
        signals, lanes = road.turn.shape[0], jnp.zeros(road.lanes)
        whole, shape = lanes.astype(jnp.int32), (self.places, road.lanes)
        nothing = jnp.zeros(())
        return RoadState(
            now=nothing,
            lanes=Lanes(jnp.full(shape, NEVER, jnp.float32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape)),
            entered=whole,
            left=whole,
            left_at=jnp.zeros((cfg.control_s, road.lanes), jnp.int32),
            free=lanes,
            front=lanes,
            stop=lanes,
            moves=lanes > 0,
            inside=lanes > 0,
            stuck=lanes,
            yellow=jnp.zeros(road.turn.shape),
            inserted=jnp.zeros(road.origins, jnp.int32),
            due=jnp.zeros(road.origins, jnp.int32),
            leaving=jnp.zeros(cfg.leaving_s),
            finished=nothing,
            teleports=nothing,
            delay=nothing,
            window=jnp.zeros((2, cfg.window, signals)),
            signal=self.controller.start(road.tables),
            hour=jax.tree.map(jnp.asarray, hour),
        )

    def step(self, key: Array, state: RoadState, action: Array, params: Params) -> tuple[RoadState, RoadMeasurement]:
        """One control step. Args: action [I, 9], what the controller is told."""
        return self.drive(key, state, action, params.drivers)

    def drive(self, key: Array, state: RoadState, action: Array, drivers: Drivers) -> tuple[RoadState, RoadMeasurement]:
        """One control step under these drivers."""
        road, cfg = self.road, self.cfg
        rule = rules(road, drivers, state, cfg)
        noise = jax.random.normal(key, (cfg.control_s, road.origins + road.lanes))
        rest = jnp.zeros(cfg.control_s)
        begin = state._replace(leaving=state.leaving)

        def one(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
            state, sums = carry
            second, drawn = inputs
            signal, shown = self.controller.advance(state.signal, look(road, state, cfg), action, road.tables)
            state, halts = pass_second(road, drivers, rule, state._replace(signal=signal), shown, drawn, second, cfg)
            return (state, _add(sums, state, halts)), None

        zeros, origins = jnp.zeros(road.lanes), jnp.zeros(road.origins)
        sums = _Sums(zeros, origins, zeros, origins, jnp.zeros(()))
        (state, sums), _ = jax.lax.scan(one, (begin, sums), (jnp.arange(cfg.control_s), noise))
        leaving = jnp.concatenate([state.leaving[cfg.control_s :], rest])
        return self._measured(begin, state._replace(leaving=leaving), sums)

    def _measured(self, before: RoadState, state: RoadState, sums: _Sums) -> tuple[RoadState, RoadMeasurement]:
        """What `sim/detectors.py` would have measured."""
        road, cfg = self.road, self.cfg
        signals = road.turn.shape[0]
        by_origin = jax.nn.one_hot(road.origin_signal, signals)  # [O, I]
        by_signal = lambda lanes: lanes.reshape(signals, -1)  # noqa: E731  [L] -> [I, lanes]
        in_phase = jax.nn.one_hot(by_signal(road.phase), PHASES)  # [I, lanes, 8]
        queue = (by_signal(sums.halting)[..., None] * in_phase).sum(1) / cfg.control_s
        # Those who wait outside count at their origin's first phase: which one they want is not looked up.
        pending = (sums.pending @ by_origin) / cfg.control_s  # [I]
        share = in_phase.mean(1)
        queue = queue + pending[:, None] * share / jnp.maximum(share.sum(1, keepdims=True), 1e-9)
        outside = jnp.where(by_origin > 0, sums.late[:, None], 0.0).max(0)
        came = by_signal(state.entered - before.entered).sum(1)
        came = came + ((state.due - state.inserted) - (before.due - before.inserted)) @ by_origin
        served = by_signal(state.left - before.left).sum(1).astype(jnp.float32)
        window = jnp.concatenate([state.window[:, 1:], jnp.stack([served, came])[:, None]], axis=1)
        measured = RoadMeasurement(
            queue=queue,
            wait=jnp.maximum(by_signal(sums.wait).max(1), outside),
            served=served,
            arrived=came,
            served_window=window[0].sum(0),
            arrived_window=window[1].sum(0),
            travel_time=sums.present,
            finished=state.finished - before.finished,
            teleports=state.teleports - before.teleports,
        )
        return state._replace(window=window), measured


def _add(sums: _Sums, state: RoadState, halts: Array) -> _Sums:
    hour = state.hour
    waiting = state.due - state.inserted
    trip = jnp.minimum(hour.first[:-1] + state.inserted, hour.depart.shape[0] - 1)
    late = jnp.where(waiting > 0, state.now - hour.depart[trip], 0.0)
    return _Sums(
        halting=sums.halting + halts.sum(0),
        pending=sums.pending + waiting,
        wait=jnp.maximum(sums.wait, state.lanes.wait.max(0)),
        late=jnp.maximum(sums.late, late),
        present=sums.present + state.due.sum() - state.finished,
    )
