"""Artefacts on disk: written whole or not at all, and named by what they depend on."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax import store


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float = 0.1
    place: Path = Path("a")


class Limit(NamedTuple):
    wait: float
    queue: float


FACTS = (Settings(), Limit(60.0, 5.0), {"b": 2, "a": (1, None)}, np.arange(3.0), b"trips", "words", True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_with_its_folder_and_without_a_draft(tmp_path):
    store.write_text(tmp_path / "new" / "rows.jsonl", "one\n")
    store.write_text(tmp_path / "new" / "rows.jsonl", "two\n")
    assert names(tmp_path / "new") == ["rows.jsonl"]
    assert (tmp_path / "new" / "rows.jsonl").read_text() == "two\n"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "rows.jsonl"
    path.write_text("old")
    with pytest.raises(error), store.whole_file(path) as draft:
        draft.write_text("half")
        raise error
    assert names(tmp_path) == ["rows.jsonl"] and path.read_text() == "old"


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.npz"
    path.write_text("old")
    with store.whole_file(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        assert list(tmp_path.glob("*.npz")) == [path]  # a draft never looks like an artefact
    assert path.read_text() == "new"


def test_drafts_of_killed_processes_are_removed_and_those_of_running_ones_stay(tmp_path):
    gone, running = tmp_path / f".a.txt.tmp-{2**22 + 1}", tmp_path / f".a.txt.tmp-{os.getppid()}"
    for draft in (gone, running):
        draft.write_text("half")
    store.write_text(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == sorted([running.name, "a.txt"])


def test_a_folder_replaces_the_old_one_whole(tmp_path):
    for content in ("old", "new"):
        with store.whole_folder(tmp_path / "data") as draft:
            (draft / content).touch()
    assert names(tmp_path) == ["data"] and names(tmp_path / "data") == ["new"]


def test_equal_facts_give_equal_keys_in_another_process():
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
    program += "from tests.test_store import FACTS; from stream_jax import store; print(store.key('plan', *FACTS))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == store.key("plan", *FACTS)


@pytest.mark.parametrize("place", range(len(FACTS)))
def test_another_fact_gives_another_key(place):
    others = [Settings(0.2), Limit(60.0, 6.0), {"b": 2, "a": (1, 0)}, np.arange(3), b"trip", "word", False]
    changed = [*FACTS[:place], others[place], *FACTS[place + 1 :]]
    assert store.key("plan", *changed) != store.key("plan", *FACTS)


def test_another_kind_or_version_gives_another_key(monkeypatch):
    before = store.key("plan", 1)
    assert store.key("trial", 1) != before
    monkeypatch.setattr(store, "VERSIONS", {**store.VERSIONS, "plan": store.VERSIONS["plan"] + 1})
    assert store.key("plan", 1) != before


def test_an_array_of_jax_counts_as_the_same_array_of_numpy():
    assert store.key("plan", jnp.ones((2, 3))) == store.key("plan", np.ones((2, 3), np.float32))
    assert store.key("plan", np.ones((2, 3))) != store.key("plan", np.ones((3, 2)))


def test_what_has_no_stable_description_is_refused():
    with pytest.raises(TypeError, match="function cannot name an artefact"):
        store.key("plan", lambda: 1)


def test_importing_it_imports_no_jax():
    program = "import sys, stream_jax.store; print('jax' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
