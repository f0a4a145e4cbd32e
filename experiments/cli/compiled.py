"""Keeps compiled programs between runs: compiling is most of a short run, and of every start of a long one."""

import os
import platform
import sys
from pathlib import Path

FOLDER = "JAX_COMPILATION_CACHE_DIR"
SMALLEST_S = 0.05  # programs that compile faster are not worth a file


def keep() -> None:
    """Tells jax to keep its programs in the user's cache folder, or where JAX_COMPILATION_CACHE_DIR says.

    One folder per machine: a home that several share would hand programs to processors that cannot run them. Without
    a place to write, everything is compiled anew.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(FOLDER) or root / "stream_jax" / f"compiled-{platform.node()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    os.environ |= {FOLDER: str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SMALLEST_S)}
    if "jax" in sys.modules:  # it has read its environment already
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", str(folder))
        config.update("jax_persistent_cache_min_compile_time_secs", SMALLEST_S)
