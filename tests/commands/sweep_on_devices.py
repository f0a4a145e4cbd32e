"""Fits a line and a flow on one device and on all of them and prints what came out; run with forced host devices."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.devices import fit_seeds
from stream_jax.fit import Examples, FitResult, TrainConfig, train
from stream_jax.flows import crfn_by
from stream_jax.flows.context import ContextConfig, FlowData, Neighbours

jax.config.update("jax_disable_most_optimizations", True)


def fit_line(keys: Array, data: Examples, cfg: TrainConfig) -> FitResult:
    """Least squares with noisy gradients, so that a seed's draws matter."""

    def start(key: Array) -> Array:
        return jax.random.normal(key, (3,))

    def loss(key: Array, params: Array, batch: tuple, weight: Array, shared: None) -> Array:
        noise = jax.random.normal(key, params.shape)
        error = batch[0] @ params - batch[1]
        return (weight * error**2).sum() / weight.sum() + 0.1 * noise @ params

    def each(params: Array, batch: tuple, shared: None) -> Array:
        return (batch[0] @ params - batch[1]) ** 2

    return train(keys, start, loss, each, data, cfg)


def fit_flow(keys: Array, data: FlowData) -> FitResult:
    cfg = crfn_by.FlowConfig(num_layers=2, hidden=4, context=ContextConfig(features=4, heads=1))
    return crfn_by.fit_with_history(keys, data, cfg, TrainConfig(epochs=1, patience=1, batch=8))[1]


def line_data() -> Examples:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=80)).astype(np.float32)
    return Examples((jnp.asarray(x[:64]), jnp.asarray(y[:64])), (jnp.asarray(x[64:]), jnp.asarray(y[64:])))


def flow_data() -> FlowData:
    z = jax.random.normal(jax.random.key(1), (40, 3, 4))
    neighbours = Neighbours(jnp.array([[1, 2], [0, 2], [0, 1]]), jnp.ones((3, 2), bool))
    return FlowData(z, jnp.ones((40, 3), bool), jnp.zeros_like(z), jnp.zeros((40, 4)), neighbours)


def compare(fit: Callable, seeds: int, data: Any, *settings: Any) -> dict:
    """What the fit gives on one device and on all."""
    keys, found = jax.random.split(jax.random.key(0), seeds), {}
    for name, devices in (("one", jax.devices()[:1]), ("all", jax.devices())):
        result = fit_seeds(fit, keys, data, *settings, devices=devices)
        leaf = jax.tree.leaves(result.params)[0]
        found[name] = {
            "loss": np.asarray(result.train_history).tolist(),
            "val": np.asarray(result.val_history).tolist(),
            "params": np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(result.params)]).tolist(),
            "places": len(leaf.sharding.device_set),
            "whole": leaf.sharding.is_fully_replicated,
        }
    return found


if __name__ == "__main__":
    cfg = TrainConfig(learning_rate=0.05, epochs=4, patience=4, batch=16)
    found = {
        "line, 8 seeds": compare(fit_line, 8, line_data(), cfg),
        "line, 1 seed": compare(fit_line, 1, line_data(), cfg),
        "line, 1 seed, uneven batch": compare(fit_line, 1, line_data(), dataclasses.replace(cfg, batch=12)),
        "flow, 4 seeds": compare(fit_flow, 4, flow_data()),
    }
    print(json.dumps(found))
