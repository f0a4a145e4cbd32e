"""Experience on disk: one npz of stacked episodes for each iteration of learning, written whole or not at all.

Algorithm 1 keeps what was collected; the paper does not say how. The files hold plain arrays and nothing that could be
executed when read.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stream_jax import store
from stream_jax.rl.episodes import Episode
from stream_jax.types import Certificate, CityView, on_host

_DAMAGE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error)


def stack(episodes: list[Episode]) -> Episode:
    """Episodes of equal length as one pytree with leading axis [E], in host memory."""
    if not episodes:
        raise ValueError("no episode was collected: num_episodes must be at least 1")
    if len({np.shape(episode.x) for episode in episodes}) > 1:
        raise ValueError("episodes differ in length or in intersections: collect them with one setting")
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *episodes)


def write(folder: Path, iteration: int, episodes: Episode) -> Path:
    """Writes the stacked episodes of an iteration; a kill leaves the old file, the new one, or none."""
    path = _path(folder, iteration)
    with store.whole_file(path) as draft, open(draft, "wb") as stream:
        np.savez(stream, allow_pickle=False, **_named(episodes))
    return path


def read(folder: Path, iteration: int) -> Episode | None:
    """The episodes of an iteration, or None when it has none; raises ValueError when the file is damaged."""
    path = _path(folder, iteration)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _tree({name: archive[name] for name in archive.files})
    except _DAMAGE as error:
        raise ValueError(f"{path} cannot be read: delete it and its iteration will be collected again") from error


def _path(folder: Path, iteration: int) -> Path:
    return folder / f"episodes_{iteration:04d}.npz"


def _named(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    named = {}
    for name, value in tree._asdict().items():
        nested = hasattr(value, "_asdict")
        named |= _named(value, f"{name}.") if nested else {prefix + name: np.asarray(value)}
    return named


def _tree(arrays: dict[str, np.ndarray]) -> Episode:
    parts = {
        "view": CityView(**{name: on_host(arrays.pop(f"view.{name}")) for name in CityView._fields}),
        "certificate": Certificate(
            **{name: on_host(arrays.pop(f"certificate.{name}")) for name in Certificate._fields}
        ),
    }
    if set(arrays) | set(parts) != set(Episode._fields):
        raise ValueError(f"unknown arrays {sorted(arrays)}")
    return Episode(**arrays, **parts)
