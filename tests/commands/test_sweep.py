"""Seeds spread over devices give the numbers of one device; their summary is Student's interval."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments import sweep
from stream_jax import devices as devices_of

ROOT = Path(__file__).parents[2]
# Devices may add a batch's float32 terms in another order: about 1e-7 a sum, some tens of sums deep.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def found() -> dict:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    argv = [sys.executable, "-m", "tests.commands.sweep_on_devices"]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["line, 8 seeds", "line, 1 seed", "line, 1 seed, uneven batch", "flow, 4 seeds"])
def test_eight_devices_give_the_numbers_of_one(found, case):
    one, every = found[case]["one"], found[case]["all"]
    for name in ("loss", "val", "params"):
        np.testing.assert_allclose(every[name], one[name], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.slow
def test_seeds_are_cut_between_the_devices_and_one_seed_is_held_by_all(found):
    assert found["line, 8 seeds"]["all"]["places"] == 8 and not found["line, 8 seeds"]["all"]["whole"]
    assert found["flow, 4 seeds"]["all"]["places"] == 4 and not found["flow, 4 seeds"]["all"]["whole"]
    assert found["line, 1 seed"]["all"]["places"] == 8 and found["line, 1 seed"]["all"]["whole"]


@pytest.mark.slow
def test_seeds_differ_from_each_other(found):
    last = [losses[-1] for losses in found["line, 8 seeds"]["one"]["val"]]
    assert len(set(last)) == 8


class Device:
    """Stands for a device that a mesh can hold."""


@pytest.mark.parametrize(
    ("seeds", "devices", "axis", "used"),
    [
        (8, 8, "seed", 8),
        (4, 8, "seed", 4),
        (10, 8, "seed", 5),
        (3, 2, "seed", 1),
        (1, 8, "batch", 8),
        (7, 1, "seed", 1),
    ],
)
def test_as_many_devices_are_used_as_share_the_seeds_evenly(seeds, devices, axis, used):
    mesh = devices_of.mesh_for(seeds, [Device() for _ in range(devices)])
    assert mesh.axis_names == (axis,) and mesh.size == used


def test_the_interval_is_students_and_infinite_from_one_seed():
    # Mean 2, deviation 1, three seeds: 2 -+ t(0.975, 2 degrees of freedom) / sqrt 3 with t = 4.3027.
    assert sweep.summarise([1.0, 2.0, 3.0]) == pytest.approx(
        (2.0, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5, 3), abs=1e-4
    )
    alone = sweep.summarise([1.0])
    assert alone.mean == 1.0 and math.isinf(alone.upper) and alone.seeds == 1


def test_without_a_mesh_a_fit_is_what_it_was():
    assert devices_of.BATCH_AXIS not in jax.sharding.get_abstract_mesh().axis_names
