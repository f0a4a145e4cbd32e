"""A learning run on disk: its state after every iteration (orbax), its log, and the episodes it has seen.

Not in the paper. Whatever is on disk is whole: a kill loses at most the iteration that was running.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from stream_jax import store
from stream_jax.rl import replay
from stream_jax.rl.episodes import Episode

Row = dict[str, Any]


class AgentStore:
    """One folder; without a folder nothing is kept."""

    def __init__(
        self,
        folder: Path | str | None,
        fingerprint: str,
        first_folder: Path | str | None = None,
        trial_folder: Path | str | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.folder = None if folder is None else Path(folder).absolute()
        self.first_folder = Path(first_folder) if first_folder else self._inside("first")
        self.trial_folder = Path(trial_folder) if trial_folder else self._inside("trial")
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
        states = self._inside("state")
        self.manager = None if states is None else ocp.CheckpointManager(states, options=options)

    def restore(self, first: Any) -> tuple[Any, list[Row]]:
        """The newest state and its log, or `first` and an empty one; refuses what is damaged or another run's."""
        if self.manager is None or self.folder is None:
            return first, []
        self._claim(self.folder)
        step = self.manager.latest_step()
        if step is None:
            return first, []
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), first)
        items = ocp.args.Composite(state=ocp.args.StandardRestore(like), log=ocp.args.JsonRestore())
        try:
            found = self.manager.restore(step, args=items)
        except Exception as error:  # orbax raises many kinds; to the caller they all mean one thing
            raise ValueError(f"the checkpoint in {self.folder} cannot be read: remove it to start again") from error
        return found["state"], found["log"]["rows"]

    def save(self, step: int, state: Any, rows: list[Row]) -> None:
        """Keeps the state after `step` iterations, whole or not at all."""
        if self.manager is not None:
            items = ocp.args.Composite(state=ocp.args.StandardSave(state), log=ocp.args.JsonSave({"rows": rows}))
            self.manager.save(step, args=items)

    def remembered(self, iteration: int) -> Episode:
        """The stacked episodes of an iteration that is over."""
        found = None if self.folder is None else replay.read(self.folder / "replay", iteration)
        if found is None:
            raise ValueError(f"{self.folder} lacks the episodes of iteration {iteration}: remove it to start again")
        return found

    def kept(self, iteration: int, collect: Callable[[], list[Episode]]) -> Episode:
        """The stacked episodes of an iteration: from disk if they are there, else collected and kept."""
        found = None if self.folder is None else replay.read(self.folder / "replay", iteration)
        if found is None:
            # The first are driven before anything is learned: agents that begin alike have them in common.
            found = self._first(collect) if iteration == 0 else replay.stack(collect())
            if self.folder is not None:
                replay.write(self.folder / "replay", iteration, found)
        return found

    def scores(self, plan: str, get: Callable[[], np.ndarray]) -> np.ndarray:
        """What a plan scored in the trial: from disk if it is there, else driven and kept."""
        if self.trial_folder is None:
            return get()
        path = self.trial_folder / f"{plan}.npy"
        if not path.exists():
            scores = get()
            with store.whole_file(path) as draft, open(draft, "wb") as stream:
                np.save(stream, scores)
        return np.load(path, allow_pickle=False)

    def _first(self, collect: Callable[[], list[Episode]]) -> Episode:
        if self.first_folder is None:
            return replay.stack(collect())
        found = replay.read(self.first_folder, 0)
        if found is None:
            found = replay.stack(collect())
            replay.write(self.first_folder, 0, found)
        return found

    def close(self) -> None:
        """Waits for nothing, but frees the folder."""
        if self.manager is not None:
            self.manager.close()

    def _inside(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name

    def _claim(self, folder: Path) -> None:
        """Marks an empty folder as this run's and refuses another run's."""
        mark = folder / "fingerprint"
        if not mark.exists():
            store.write_text(mark, self.fingerprint)
        if mark.read_text() != self.fingerprint:
            raise ValueError(f"{self.folder} belongs to another run: settings, key or road differ")
