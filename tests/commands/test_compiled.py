"""Compiled programs are kept in a folder of the user's, used again, and never needed."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from experiments.cli import compiled
compiled.SMALLEST_S = 0.0
compiled.keep()
import jax
print(float(jax.jit(lambda x: jax.numpy.sin(x) @ jax.numpy.cos(x))(jax.numpy.arange(64.0))))
"""


def run(cache: Path) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    env |= {"XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)


def entries(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.rglob("jit__lambda*-cache")}


def test_a_second_run_finds_what_the_first_compiled(tmp_path: Path) -> None:
    first = run(tmp_path)
    kept = entries(tmp_path)
    assert len(kept) == 1
    assert run(tmp_path).stdout == first.stdout
    assert entries(tmp_path) == kept


def test_a_file_that_a_kill_cut_short_is_compiled_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    for path in tmp_path.rglob("*-cache"):
        path.write_bytes(path.read_bytes()[:100])
    assert run(tmp_path).stdout == first.stdout


def test_without_a_place_to_write_a_run_compiles_for_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file")
    assert done.stdout == run(tmp_path / "folder").stdout
    assert "Warning" not in done.stderr
