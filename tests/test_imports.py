"""The walls of the house: which module may import which, read from the source with ast."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("stream_jax", "data", "sim", "experiments")
FENCED = {
    "jraph": ("stream_jax/gnn/attention.py",),
    "distrax": ("stream_jax/flows/real_nvp.py", "stream_jax/rl/policy.py"),
    "pyspark": ("data/spark_etl/",),
    "libsumo": ("sim/session.py",),
    "traci": ("sim/session.py",),
}
ALLOWED = {
    "stream_jax/types.py": (),
    "stream_jax/store.py": (),
    "stream_jax/task.py": ("stream_jax.types",),
    "stream_jax/fit.py": ("stream_jax.types", "stream_jax.store"),
    "stream_jax/conformal/": ("stream_jax.types", "stream_jax.conformal"),
    "stream_jax/gnn/": ("stream_jax.types", "stream_jax.fit", "stream_jax.conformal", "stream_jax.gnn"),
    "stream_jax/flows/": ("stream_jax.types", "stream_jax.fit", "stream_jax.conformal", "stream_jax.flows"),
    "stream_jax/rl/": (
        "stream_jax.types",
        "stream_jax.task",
        "stream_jax.fit",
        "stream_jax.conformal.p_values",
        "stream_jax.conformal.order_statistics",
        "stream_jax.conformal.bootstrap",
        "stream_jax.store",
        "stream_jax.rl",
    ),
    "stream_jax/road/": ("stream_jax.types", "stream_jax.task", "stream_jax.road"),
    "stream_jax/": ("stream_jax",),
    "sim/city_road.py": ("sim", "stream_jax.store", "data.coverage", "data.errors", "data.loader"),
    "sim/keeping.py": ("sim", "data.errors", "data.loader"),
    "sim/": (
        "sim",
        "stream_jax.store",
        "stream_jax.types",
        "stream_jax.road",
        "stream_jax.task",
    ),
    "data/spark_etl/": ("stream_jax.store", "data.errors", "data.spark_etl"),
    "data/loader.py": ("data.errors", "data.spark_etl.shards", "stream_jax.types"),
    "data/": ("data",),
    "experiments/": OURS,
}


def sources() -> list[str]:
    files = (path for top in OURS for path in (ROOT / top).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in files)


def imported(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("path", sources())
def test_a_module_imports_only_what_its_room_may(path):
    allowed = next(rooms for prefix, rooms in ALLOWED.items() if path.startswith(prefix))
    for name in imported(path):
        if name.split(".")[0] in OURS:
            assert any(within(name, room) for room in allowed), f"{path} imports {name}"


@pytest.mark.parametrize("path", sources())
def test_fenced_libraries_stay_in_their_files(path):
    for name in imported(path):
        places = FENCED.get(name.split(".")[0])
        assert places is None or path.startswith(places), f"{path} imports {name}"


@pytest.mark.parametrize("path", sources())
def test_no_file_grows_beyond_three_hundred_lines(path):
    assert (ROOT / path).read_text().count("\n") <= 300, f"{path} is too long to read in one sitting"
