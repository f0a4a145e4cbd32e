"""Final controllers in files of their own: what learning ended with, small enough to publish and to drive elsewhere.

A controller has the same weights at every intersection, so that one that learned on a grid drives any network as it is.
"""

import dataclasses
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data.errors import DataError
from experiments.stages import packed_weights
from stream_jax.checkpoint import first_difference
from stream_jax.rl.agent import AgentConfig
from stream_jax.task import GREENS, PRICES, ActionSpace

FOLDER = "controllers"  # of a control stage and of published results
ABOUT = "about"  # the one entry that is no weight
DEFAULTS = json.loads(json.dumps(dataclasses.asdict(AgentConfig())))  # of settings that are newer than a file


class Controller(NamedTuple):
    """What acts, and where it comes from."""

    weights: Any  # the pytree that a method acts by
    config: dict  # it was learned with, as JSON keeps it
    curve: list[dict]  # rows of its learning
    origin: dict  # network, level, vehicles_per_hour, dataset, data and data_hash of its learning


def file_of(folder: Path, name: str, seed: int, action: ActionSpace = GREENS) -> Path:
    """Where a controller of a folder is kept; the names of those that set greens do not say so."""
    sets = "" if action == GREENS else f"-{action.name}"
    return folder / f"{name.replace(':', '-')}{sets}-seed{seed}.npz"


def action_of(folder: Path, names: Sequence[str]) -> ActionSpace:
    """What the controllers of a folder set: prices if it has any of these that do, else greens."""
    sets_prices = any(file_of(folder, name, 0, PRICES).exists() for name in names)
    return PRICES if sets_prices else GREENS


def content(path: Path) -> bytes:
    """A controller's file as it is; says what to do where there is none."""
    if not path.is_file():
        raise DataError(
            f"There is no {path}: name a folder with the final controllers of these methods and seeds, or leave "
            "--trained out to learn here."
        )
    return path.read_bytes()


def write(path: Path, controller: Controller) -> None:
    """Writes a controller, whole or not at all; arrays and JSON only."""
    about = json.dumps(controller._replace(weights=None)._asdict(), default=str).encode()
    packed_weights.write(path, _named(controller.weights) | {ABOUT: np.frombuffer(about, np.uint8)})


def read(path: Path, like: Any, config: dict) -> Controller:
    """Reads a controller back; refuses what is damaged, of another shape or learned with other settings.

    Args:
        like: a pytree of the shapes and types that are expected.
        config: the settings that the controller will act with, as `dataclasses.asdict` gives them.
    """
    stored = content(path)
    try:
        arrays = packed_weights.read(path, stored)
        found = Controller(**json.loads(arrays.pop(ABOUT).tobytes()))
    except FileNotFoundError:
        raise DataError(f"{path} needs {packed_weights.COMMON} beside it; copy the whole folder.") from None
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        raise DataError(f"{path} is damaged or no controller; get it again, or leave --trained out.") from None
    known = json.loads(json.dumps(config))
    newer = {name: DEFAULTS[name] for name in known.keys() - found.config.keys() if name in DEFAULTS}
    if found.config | newer != known:
        difference = first_difference(found.config | newer, known)
        raise DataError(f"{path} was learned with other settings ({difference}); learn it again.")
    wanted = _named(like)
    if _sizes(arrays) != _sizes(wanted):
        raise DataError(f"{path} holds weights of other sizes than this version's; learn it again.")
    leaves = [jnp.asarray(arrays[name]).reshape(leaf.shape) for name, leaf in wanted.items()]
    return found._replace(weights=jax.tree.unflatten(jax.tree.structure(like), leaves))


def _named(tree: Any) -> dict[str, np.ndarray]:
    """Leaves by their path, in the tree's order."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="|"): np.asarray(leaf) for path, leaf in pairs}


def _sizes(arrays: dict[str, np.ndarray]) -> dict[str, tuple]:
    """Shapes and types; a file keeps a single number as an array of one."""
    return {name: (np.atleast_1d(leaf).shape, leaf.dtype) for name, leaf in arrays.items()}
