"""What the tests share: one small Spark session for all of them, and a console that writes to memory."""

import gc
import io
import os
import tempfile
from collections.abc import Iterator

import jax
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from data.spark_etl.session import spark_session

os.environ["JAX_PLATFORMS"] = "cpu"  # read when jax first asks for a device, which is later than this
# The tests compile much and compute little: without XLA's costly passes they take half the time.
jax.config.update("jax_disable_most_optimizations", True)
# Many tests compile what others have compiled: each process keeps its programs on disk for as long as it lives.
PROGRAMS = tempfile.TemporaryDirectory(prefix="stream_jax_programs_", ignore_cleanup_errors=True)
jax.config.update("jax_compilation_cache_dir", PROGRAMS.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs() -> Iterator[None]:
    """Every compiled program holds memory maps, and a process may have 65,530 of them: beyond that it crashes."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("local[2]", "1g", shuffle_partitions=4)
    yield session
    session.stop()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)
