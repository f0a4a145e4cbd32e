"""Experience comes back as it was written, and a damaged or half-written file is noticed."""

import jax
import numpy as np
import pytest

from stream_jax import store
from stream_jax.rl import replay
from stream_jax.rl.episodes import Episode
from stream_jax.types import Certificate, CityView


def episode(seed):
    draw = np.random.default_rng(seed)
    ones = lambda *shape: draw.normal(size=shape).astype(np.float32)  # noqa: E731
    view = CityView(ones(4, 2, 3), ones(4, 2, 3), ones(4, 2), ones(4, 2))
    certificate = Certificate(
        *[ones(3) for _ in range(5)], draw.random(3) > 0.5, draw.integers(0, 6, 3).astype(np.int32)
    )
    moments = ones(4, 2, 10), view, ones(4, 5), ones(4, 2, 9)
    return Episode(*moments, ones(3, 2, 9), ones(3, 2), certificate, ones(3))


def test_what_is_written_is_read_back_to_the_bit(tmp_path):
    written = replay.stack([episode(0), episode(1)])
    replay.write(tmp_path / "replay", 7, written)
    found = replay.read(tmp_path / "replay", 7)
    for before, after in zip(jax.tree.leaves(written), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype
    assert jax.tree.structure(found) == jax.tree.structure(written)
    assert replay.read(tmp_path / "replay", 8) is None


def test_a_kill_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    replay.write(tmp_path, 0, replay.stack([episode(0)]))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        replay.write(tmp_path, 0, replay.stack([episode(1)]))
    np.testing.assert_array_equal(replay.read(tmp_path, 0).x[0], episode(0).x)


def test_a_damaged_file_is_named_in_one_sentence(tmp_path):
    path = replay.write(tmp_path, 0, replay.stack([episode(0)]))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"episodes_0000.npz cannot be read: delete it"):
        replay.read(tmp_path, 0)


def test_pickled_objects_are_refused(tmp_path):
    np.savez(tmp_path / "episodes_0000.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="cannot be read"):
        replay.read(tmp_path, 0)


def test_episodes_of_different_lengths_are_not_mixed():
    short = jax.tree.map(lambda leaf: leaf[:-1], episode(0))
    with pytest.raises(ValueError, match="differ in length"):
        replay.stack([episode(0), short])
    with pytest.raises(ValueError, match="no episode"):
        replay.stack([])
