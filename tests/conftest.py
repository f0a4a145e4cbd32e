"""What the tests share: compiled programs on disk, one Spark session, and a console that writes to memory."""

import gc
import io
import os
import platform
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from experiments.cli import compiled

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream_jax"
os.environ["JAX_PLATFORMS"] = "cpu"
# The tests compile much and compute little: without XLA's costly passes they take half the time.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# What one test has compiled is read from disk by every other, by the commands that tests start, and by the next run.
os.environ.setdefault(compiled.FOLDER, str(CACHE / f"tests-{platform.node()}"))
compiled.keep()  # before jax is imported: it reads its environment then
# A Java machine that lives for a minute gains nothing from its second compiler and its parallel collector.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

import jax  # noqa: E402
import pytest  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from rich.console import Console  # noqa: E402

from data.spark_etl.session import spark_session  # noqa: E402


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Gives each process whole files, and all files that need Spark to one process: it has the only Java machine."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "spark" if needs_spark(config.rootpath / file) else file

    return Files(config, log)


@cache
def needs_spark(file: Path) -> bool:
    """Whether a test or a fixture of the file takes the session below."""
    return re.search(r"^def \w+\((?:[^)]*, )?spark\b", file.read_text(), re.M) is not None


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
