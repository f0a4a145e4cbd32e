"""The snippets of the README and of the library guide run as they are printed."""

import re
from pathlib import Path

import pytest

from tests.small_city import write_small_city

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": 1, "docs/guides/library.md": 5}  # and how many snippets each has


def snippets_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize(("page", "count"), PAGES.items())
def test_there_are_snippets_to_run(page, count):
    assert len(snippets_of(page)) == count


@pytest.mark.parametrize("page", PAGES)
def test_no_snippet_needs_the_experiments(page):
    assert not any("experiments" in snippet for snippet in snippets_of(page))


def in_its_lane(page: str, number: int):
    """A snippet that drives the whole trained system compiles and simulates for long."""
    drives = "open_checkpoint" in snippets_of(page)[number]
    return pytest.param(page, number, marks=[pytest.mark.slow] if drives else [])


@pytest.mark.parametrize(("page", "number"), [in_its_lane(page, k) for page in PAGES for k in range(PAGES[page])])
def test_a_snippet_runs_as_printed(page, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_small_city(tmp_path / "runs" / "synthetic-smoke" / "data")
    # The same calls with one short epoch: what a snippet computes is tested elsewhere.
    short = snippets_of(page)[number].replace("hidden=32, layers=2)", "hidden=8, layers=1, heads=2)")
    short = short.replace("fit(jax.random.key(0), data, cfg)", "fit(jax.random.key(0), data, cfg, TRAINING)")
    short = short.replace("learning.rows, flow_cfg)", "learning.rows, flow_cfg, TRAINING)")
    short = short.replace("checkpoints/synthetic", str(ROOT / "checkpoints" / "synthetic")).replace(
        "minutes=5", "minutes=1"
    )
    names = {}
    exec("from stream_jax.fit import TrainConfig\nTRAINING = TrainConfig(epochs=1)\n" + short, names)
    if "rejected" in names:
        # 9.0 lies beyond all 20,000 scores: p = 1/20001 is below the first BY cutoff 0.05 / (3 (1 + 1/2 + 1/3)).
        assert names["rejected"].tolist() == [False, False, True]
    if "forecast" in names:
        assert names["forecast"].mean.shape[1:] == (4, 9)
    if "detection" in names:
        assert names["detection"].p_value.shape == names["prepared"].rows.z.shape[:2]
    if "tick" in names:
        assert names["tick"].action.shape == (16, 9)
    if "observation" in names:
        assert "costs" in names["info"] or "cost" in names["info"]
