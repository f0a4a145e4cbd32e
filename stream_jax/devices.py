"""A fit with several seeds on several devices.

Seeds share nothing, so the seed axis is cut between the devices; a single seed's batches are cut instead, which adds
one sum of gradients a step. The numbers are those of one device up to the order in which float32 sums are taken.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stream_jax.fit import BATCH_AXIS

SEED_AXIS = "seed"


def mesh_for(seeds: int, devices: Sequence[Any] | None = None) -> Mesh:
    """One axis over as many devices as share the seeds evenly; over all of them along the batch for a single seed."""
    devices = list(devices or jax.devices())
    if seeds == 1:
        return Mesh(np.array(devices), (BATCH_AXIS,))
    count = max(n for n in range(1, len(devices) + 1) if seeds % n == 0)
    return Mesh(np.array(devices[:count]), (SEED_AXIS,))


def fit_seeds(fit: Callable, keys: Array, data: Any, *settings: Any, devices: Sequence | None = None) -> Any:
    """`fit(keys, data, *settings)` on a mesh; any front door's fit that takes keys [S] will do.

    Args:
        keys: [S] typed keys.
        data: pytree of arrays, copied to every device.
    """
    mesh = mesh_for(keys.shape[0], devices)
    along = PartitionSpec(SEED_AXIS) if SEED_AXIS in mesh.axis_names else PartitionSpec()
    keys = jax.device_put(keys, NamedSharding(mesh, along))
    data = jax.device_put(data, NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        return fit(keys, data, *settings)
