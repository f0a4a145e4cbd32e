"""Trained parts to disk and back as one folder: arrays (orbax), and their config, data hash and versions as JSON.

Not in the paper. Nothing is unpickled: types come from the code's own annotations, and what is on disk either fits them
or is refused in one sentence. A folder is replaced whole or not at all.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import types
import typing
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax import Array

from stream_jax import store
from stream_jax.flows.crfn_by import Calibration, FlowConfig, FlowParams
from stream_jax.gnn.pu_gat_plus import ForecasterConfig, ForecasterParams
from stream_jax.pipeline import SystemConfig, SystemParams
from stream_jax.types import ConformalState

FORMAT = store.VERSIONS["checkpoint"]
PACKAGES = ("jax", "flax", "stream_jax")  # whose versions are recorded
ARRAYS, META = "arrays", "checkpoint.json"
FACTS = ("config", "data_hash")  # fields of a checkpoint that are no arrays
STAGES = {"forecaster": "forecast", "detector": "detect", "system": "control"}  # who writes each kind


class ForecasterCheckpoint(NamedTuple):
    """Everything that forecasting with calibrated intervals needs besides the recording."""

    params: ForecasterParams
    conformal: ConformalState
    config: ForecasterConfig
    data_hash: str


class DetectorCheckpoint(NamedTuple):
    """Everything that detection needs besides the forecasts, for one seed."""

    params: FlowParams
    factor: Array  # [H, N] static calibration of the forecast's sigma
    calibration: Calibration
    config: FlowConfig
    data_hash: str


class System(NamedTuple):
    """Everything that a pipeline needs besides the recording that it starts from."""

    params: SystemParams
    conformal: ConformalState
    config: SystemConfig
    data_hash: str  # of the dataset's manifest


def save(folder: Path, system: System) -> None:
    """Writes a trained system; an older one in the same folder is replaced."""
    _write(folder, "system", system)


def load(folder: Path, data_hash: str | None = None, config: SystemConfig | None = None) -> System:
    """Reads a trained system; refuses a damaged one, and one of other data or another config than those given."""
    return _read(folder, "system", System, data_hash, config)


def save_forecaster(folder: Path, checkpoint: ForecasterCheckpoint) -> None:
    """Writes the checkpoint; an older one in the same folder is replaced."""
    _write(folder, "forecaster", checkpoint)


def load_forecaster(folder: Path, data_hash: str | None = None) -> ForecasterCheckpoint:
    """Reads a checkpoint; refuses a damaged one, and one that was trained on other data than `data_hash`."""
    return _read(folder, "forecaster", ForecasterCheckpoint, data_hash, None)


def save_detector(folder: Path, checkpoint: DetectorCheckpoint) -> None:
    """Writes the checkpoint; an older one in the same folder is replaced."""
    _write(folder, "detector", checkpoint)


def load_detector(folder: Path, data_hash: str | None = None) -> DetectorCheckpoint:
    """Reads a checkpoint; refuses a damaged one, and one that was trained on other data than `data_hash`."""
    return _read(folder, "detector", DetectorCheckpoint, data_hash, None)


def config_from_plain(kind: Any, value: Any) -> Any:
    """A config of type `kind` from what JSON kept of it, by its annotations; raises ValueError if it does not fit.

    Settings that are newer than the file get their defaults: a new one must leave everything as it was by default.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if not isinstance(value, dict) or not _required(kind) <= set(value) <= set(hints):
            raise ValueError(f"its {kind.__name__} has other fields than this version's")
        return kind(**{name: config_from_plain(hints[name], plain) for name, plain in value.items()})
    if origin is tuple:
        hints = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        return tuple(config_from_plain(hint, one) for hint, one in zip(hints, value, strict=True))
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in parts if _is_a(part, value)]
        if parts:
            return config_from_plain(parts[0], value)
    elif (origin is Literal and value in parts) or _is_a(kind, value):
        return float(value) if kind is float else value
    raise ValueError(f"{value!r} is no {kind}")


def _required(kind: Any) -> set[str]:
    """Names of a config's fields that have no default."""
    nothing = dataclasses.MISSING
    return {one.name for one in dataclasses.fields(kind) if one.default is nothing and one.default_factory is nothing}


def _is_a(kind: Any, value: Any) -> bool:
    """Whether JSON's value can stand for a type."""
    if dataclasses.is_dataclass(kind):
        return isinstance(value, dict)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list)
    return type(value) is kind


def _write(folder: Path, kind: str, checkpoint: System | ForecasterCheckpoint | DetectorCheckpoint) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / META).exists():
        raise ValueError(f"{folder} holds something that is no checkpoint; name an empty folder.")
    arrays = _plain({name: getattr(checkpoint, name) for name in checkpoint._fields if name not in FACTS})
    leaves = _leaves(arrays)
    meta = {
        "format": FORMAT,
        "kind": kind,
        "config": dataclasses.asdict(checkpoint.config),
        "data_hash": checkpoint.data_hash,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "digest": _digest(leaves),
        # orbax saves no array without entries
        "empty": {path: [leaf.shape, str(leaf.dtype)] for path, leaf in leaves.items() if leaf.size == 0},
    }
    with store.whole_folder(folder) as draft:
        with ocp.StandardCheckpointer() as writer:
            writer.save(draft / ARRAYS, {path: leaf for path, leaf in leaves.items() if leaf.size})
        mark = draft / ARRAYS / "commit_success.txt"
        if mark.exists():  # orbax notes the path it wrote to; only the mark's existence counts
            mark.write_text("committed\n")
        (draft / META).write_text(json.dumps(meta, indent=1, sort_keys=True))


def _read(folder: Path, kind: str, made: type, data_hash: str | None, config: Any) -> Any:
    stage = STAGES[kind]
    if not (folder / META).exists():
        raise ValueError(f"There is no {kind} checkpoint in {folder}; run the {stage} stage first.")
    hints = typing.get_type_hints(made)
    try:
        meta = json.loads((folder / META).read_text())
        if (meta["format"], meta["kind"]) != (FORMAT, kind):
            raise ValueError(f"it is a {meta['kind']} of format {meta['format']}, not a {kind} of format {FORMAT}")
        found = config_from_plain(hints["config"], meta["config"])
        arrays = _restore(folder, meta)
        parts = {name: _typed(hints[name], arrays[name]) for name in hints if name not in FACTS}
    except Exception as error:  # orbax and JSON raise many kinds; to the caller they all mean one thing
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ValueError(
            f"The checkpoint in {folder} cannot be read ({reason}); run the {stage} stage again."
        ) from None
    if data_hash is not None and meta["data_hash"] != data_hash:
        raise ValueError(
            f"The checkpoint in {folder} was trained on data {meta['data_hash'][:12]}, not on {data_hash[:12]}; "
            f"run the {stage} stage on this dataset."
        )
    if config is not None and found != config:
        difference = first_difference(dataclasses.asdict(found), dataclasses.asdict(config))
        raise ValueError(
            f"The checkpoint in {folder} was trained with another config ({difference}); "
            f"run the {stage} stage with this one."
        )
    return made(**parts, config=found, data_hash=meta["data_hash"])


def _restore(folder: Path, meta: dict) -> dict:
    """The nested arrays, after their digest was checked."""
    with ocp.StandardCheckpointer() as reader:
        leaves = reader.restore(folder.absolute() / ARRAYS)
    leaves |= {path: np.zeros(shape, dtype) for path, (shape, dtype) in meta["empty"].items()}
    if _digest({path: np.asarray(leaf) for path, leaf in leaves.items()}) != meta["digest"]:
        raise ValueError("its arrays are not those that were written")
    nested: dict = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("|")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = leaf
    return nested


def _plain(tree: Any) -> Any:
    """Tuples, named or not, as dicts, which say what is what without the code that made them."""
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or map(str, range(len(tree)))
        return {name: _plain(value) for name, value in zip(names, tree, strict=True)}
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return np.asarray(tree)


def _leaves(nested: dict) -> dict[str, np.ndarray]:
    """By path, with names joined by |."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(nested)
    return {"|".join(part.key for part in path): leaf for path, leaf in pairs}


def _typed(hint: Any, found: Any) -> Any:
    """The tuples that annotations promise, around what was found."""
    if typing.get_origin(hint) is tuple:
        return tuple(_typed(typing.get_args(hint)[0], found[str(place)]) for place in range(len(found)))
    if not hasattr(hint, "_fields"):
        return found
    hints = typing.get_type_hints(hint)
    if set(found) != set(hints):
        raise ValueError(f"its {hint.__name__} has other fields than this version's")
    return hint(**{name: _typed(part, found[name]) for name, part in hints.items()})


def _digest(leaves: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for path in sorted(leaves):
        leaf = np.ascontiguousarray(leaves[path])
        digest.update(f"{path} {leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
    return digest.hexdigest()


def first_difference(found: dict, wanted: dict, path: str = "") -> str:
    """The first setting in which two configs differ, in words; configs as `dataclasses.asdict` gives them."""
    for name in dict.fromkeys((*found, *wanted)):
        theirs, ours = found.get(name), wanted.get(name)
        if isinstance(theirs, dict) and isinstance(ours, dict) and theirs != ours:
            return first_difference(theirs, ours, f"{path}{name}.")
        if theirs != ours:
            return f"{path}{name} is {theirs!r}, not {ours!r}"
    return "another type"
