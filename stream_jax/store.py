"""Artefacts on disk: one atomic write for files and for folders, one key, and one version for each kind of artefact.

Not in the paper. Every room may use it, the ETL and the simulator too, so it imports nothing of ours and no jax.
"""

import contextlib
import dataclasses
import datetime
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# Bump a version when the code that makes an artefact changes what it means: artefacts of other versions are not read.
VERSIONS: Mapping[str, int] = {
    "checkpoint": 2,  # layout of a trained system or forecaster on disk
    "dataset": 1,  # layout of the shards and of their manifest
    "demand": 1,  # demand and road that an agent learns on
    "drivers": 1,  # how vehicles of a compiled road drive
    "episode": 2,  # how an episode is driven: since 2, a controller also drives its warm-up
    "forecast": 1,  # forecasts of one method and fold
    "learning": 2,  # how agents learn
    "lookahead": 2,  # what the look-ahead controller sees and how it decides
    "network": 1,  # generated grids
    "plan": 1,  # gains of a fixed plan
    "recording": 1,  # forecasts of a whole recording, for detectors
    "resco": 1,  # how an episode on a public map is driven and measured
    "rival_scores": 1,  # what other detectors read, and how
    "scores": 3,  # residuals, screening and scores of CRFN-BY
    "sensitivity": 1,  # training runs of the sensitivity tables
    "training": 1,  # state of a training run of `fit`
    "trial": 1,  # plans that are driven before learning begins
}


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the path of a draft that replaces `path` when the block ends well, and is removed when it does not.

    A killed process leaves the old file or none. Missing folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_drafts(path)
    draft = _draft_of(path)
    try:
        yield draft
        with open(draft, "rb") as stream:
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields a draft folder that replaces `target` when the block ends well, and is removed when it does not.

    A killed process leaves the old folder or none. A folder that was caught between two renames comes back.
    """
    target = Path(target).absolute()
    backup = target.with_name(f".{target.name}.old")
    target.parent.mkdir(parents=True, exist_ok=True)
    if backup.exists() and not target.exists():
        backup.rename(target)
    _remove_drafts(target)
    shutil.rmtree(backup, ignore_errors=True)
    draft = _draft_of(target)
    draft.mkdir()
    try:
        yield draft
        if target.exists():
            target.rename(backup)
        draft.rename(target)
        shutil.rmtree(backup, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if backup.exists() and not target.exists():
            backup.rename(target)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def key(kind: str, *facts: Any, length: int = 10) -> str:
    """Names an artefact by what it depends on; equal facts give equal keys, on every machine.

    Args:
        kind: of `VERSIONS`, whose version counts as a fact.
        facts: numbers, strings, arrays, configs, and containers of these.
        length: hexadecimal digits, at most 64.

    Raises:
        TypeError: a fact is of a type without a stable description.
    """
    described = json.dumps([kind, VERSIONS[kind], *map(_described, facts)], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:length]


def _described(fact: Any) -> Any:
    """A fact as JSON can write it; large ones by their hash."""
    if fact is None or isinstance(fact, str | bool | int | float):
        return fact
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        fields = {field.name: _described(getattr(fact, field.name)) for field in dataclasses.fields(fact)}
        return [type(fact).__name__, fields]
    if isinstance(fact, Mapping):
        return {str(name): _described(value) for name, value in fact.items()}
    if isinstance(fact, tuple | list):
        return [_described(one) for one in fact]
    if isinstance(fact, os.PathLike | datetime.date | datetime.time | datetime.timedelta):
        return str(fact)
    if isinstance(fact, bytes):
        return hashlib.sha256(fact).hexdigest()
    if hasattr(fact, "__array__"):
        array = np.ascontiguousarray(fact)
        return [str(array.dtype), list(np.asarray(fact).shape), hashlib.sha256(array.tobytes()).hexdigest()]
    raise TypeError(f"a {type(fact).__name__} cannot name an artefact; describe it by numbers, strings or arrays")


def _draft_of(path: Path) -> Path:
    """A hidden name beside the path, one for each process."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def _remove_drafts(path: Path) -> None:
    """Removes what killed processes left of this path."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        if not _is_running(draft.name.rsplit("-", 1)[1]):
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def _is_running(pid: str) -> bool:
    """Whether another process has this number; our own was used before us by a process that is gone."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return int(pid) != os.getpid()
