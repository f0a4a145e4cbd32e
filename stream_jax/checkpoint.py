"""The trained forecaster to disk and back (orbax), with its config, its conformal state and the data it belongs to."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from stream_jax.gnn.attention import AttentionConfig
from stream_jax.gnn.inputs import Scaler
from stream_jax.gnn.profile import ProfileConfig
from stream_jax.gnn.pu_gat_plus import ForecasterConfig, ForecasterParams
from stream_jax.types import ConformalState, Forecast, Interval

FORMAT = 1


class ForecasterCheckpoint(NamedTuple):
    """Everything that forecasting with calibrated intervals needs besides the recording."""

    params: ForecasterParams
    conformal: ConformalState
    config: ForecasterConfig
    data_hash: str


def save_forecaster(folder: Path, checkpoint: ForecasterCheckpoint) -> None:
    """Writes the checkpoint; an older one in the same folder is replaced."""
    conformal = _plain(checkpoint.conformal)
    empty = [name for name, value in conformal.items() if isinstance(value, np.ndarray) and value.size == 0]
    meta = {
        "format": FORMAT,
        "config": dataclasses.asdict(checkpoint.config),
        "data_hash": checkpoint.data_hash,
        "empty": {name: conformal.pop(name).shape for name in empty},  # orbax saves no array without entries
    }
    arrays = {"params": _plain(checkpoint.params), "conformal": conformal}
    with ocp.StandardCheckpointer() as writer:
        writer.save(folder.absolute() / "arrays", arrays, force=True)
    (folder / "checkpoint.json").write_text(json.dumps(meta, indent=1, sort_keys=True))


def load_forecaster(folder: Path, data_hash: str | None = None) -> ForecasterCheckpoint:
    """Reads a checkpoint; refuses a damaged one, and one that was trained on other data than `data_hash`."""
    try:
        meta = json.loads((folder / "checkpoint.json").read_text())
        with ocp.StandardCheckpointer() as reader:
            arrays = reader.restore(folder.absolute() / "arrays")
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}")
        config = _config(meta["config"])
    except FileNotFoundError:
        raise ValueError(f"There is no forecaster checkpoint in {folder}; run the forecast stage first.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The checkpoint in {folder} cannot be read ({error}); run the forecast stage again."
        ) from None
    if data_hash is not None and meta["data_hash"] != data_hash:
        raise ValueError(
            f"The checkpoint in {folder} was trained on data {meta['data_hash'][:12]}, not on {data_hash[:12]}; "
            "run the forecast stage on this dataset."
        )
    found = arrays["params"]
    params = ForecasterParams(found["network"], Scaler(**found["scaler"]))
    state = arrays["conformal"] | {name: np.zeros(shape, np.float32) for name, shape in meta["empty"].items()}
    state["pending_forecast"] = Forecast(**state["pending_forecast"])
    state["pending_interval"] = Interval(**state["pending_interval"])
    return ForecasterCheckpoint(params, ConformalState(**state), config, meta["data_hash"])


def _plain(tree: Any) -> Any:
    """Named tuples as dicts, which orbax restores without being told their types."""
    if hasattr(tree, "_asdict"):
        return {name: _plain(value) for name, value in tree._asdict().items()}
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return jax.tree.map(np.asarray, tree)


def _config(fields: dict) -> ForecasterConfig:
    nested = {"attention": AttentionConfig, "profile": ProfileConfig}
    values = {name: nested[name](**_tuples(value)) if name in nested else value for name, value in fields.items()}
    return ForecasterConfig(**_tuples(values))


def _tuples(fields: dict) -> dict:
    """JSON knows lists only; a config must be hashable."""
    to_tuple = lambda value: tuple(map(to_tuple, value)) if isinstance(value, list) else value  # noqa: E731
    return {name: to_tuple(value) for name, value in fields.items()}
