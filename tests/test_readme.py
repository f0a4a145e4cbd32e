"""The README's snippets run as they are printed."""

import re
from pathlib import Path

import pytest

from tests.small_city import write_small_city

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_there_are_snippets_to_run():
    assert len(SNIPPETS) == 4


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_of_the_readme_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_small_city(tmp_path / "runs" / "synthetic-smoke" / "data")
    # The same calls with one short epoch: what a snippet computes is tested elsewhere.
    short = SNIPPETS[number].replace("hidden=32, layers=2)", "hidden=8, layers=1, heads=2)")
    short = short.replace("fit(jax.random.key(0), data, cfg)", "fit(jax.random.key(0), data, cfg, TRAINING)")
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
    if "tick" in names:
        assert names["tick"].action.shape == (16, 9)
    if "observation" in names:
        assert "costs" in names["info"] or "cost" in names["info"]
