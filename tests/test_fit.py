"""Claims about the trainer, on problems small enough to solve by hand or by least squares."""

import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax import fit as trainer
from stream_jax.fit import Examples, TrainConfig, train

KEYS = jax.random.split(jax.random.key(0), 3)
FEATURES = jax.random.normal(jax.random.key(1), (37, 4))  # 37 = 4 batches of 8 and one of 5
TARGET = FEATURES @ jnp.array([1.0, -2.0, 0.5, 0.0]) + 0.1 * jax.random.normal(jax.random.key(2), (37,))
DATA = Examples((FEATURES[:29], TARGET[:29]), (FEATURES[29:], TARGET[29:]))
CFG = TrainConfig(learning_rate=0.05, batch=8, epochs=12, patience=12, checkpoint_every=4)


def init_fn(key):
    return {"weights": 0.1 * jax.random.normal(key, (4,))}


def loss_fn(key, params, batch, weight, shared):
    noisy = batch[0] + 0.01 * jax.random.normal(key, batch[0].shape)  # uses the key, as dropout does
    return (weight * (noisy @ params["weights"] - batch[1]) ** 2).sum() / weight.sum()


def eval_fn(params, batch, shared):
    return (batch[0] @ params["weights"] - batch[1]) ** 2


def untimed(result):
    return result._replace(epoch_seconds=None)


def test_seeds_trained_together_equal_seeds_trained_alone():
    together = train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG)
    for seed in range(3):
        alone = train(KEYS[seed : seed + 1], init_fn, loss_fn, eval_fn, DATA, CFG)
        # A batched matrix product may add in another order: a few float32 roundings over 48 steps.
        expected = jax.tree.map(lambda leaf, seed=seed: leaf[seed : seed + 1], together)
        chex.assert_trees_all_close(untimed(alone), untimed(expected), rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(together.params["weights"][0] - together.params["weights"][1]).max()) > 0


def test_an_epoch_is_traced_once():
    counted = chex.assert_max_traces(loss_fn, n=1)
    result = train(KEYS, init_fn, counted, eval_fn, DATA, CFG)
    assert int(result.epochs.max()) == CFG.epochs


def test_every_example_counts_and_padding_does_not():
    # Full-batch gradient of the mean: with one epoch of one padded batch, the step must not see the padding.
    seen = []

    def spy(key, params, batch, weight, shared):
        seen.append(weight.shape)
        return (weight * (params["weights"][0] - batch) ** 2).sum() / weight.sum()

    data = Examples(jnp.arange(5.0), jnp.zeros(1))
    cfg = TrainConfig(batch=4, epochs=1, learning_rate=1e-6, patience=1)
    result = train(KEYS[:1], lambda key: {"weights": jnp.zeros(1)}, spy, lambda p, b, s: b**2, data, cfg)
    # Weights stay at 0, so the mean loss is the mean of 0, 1, 4, 9, 16 = 6 whatever the shuffle.
    np.testing.assert_allclose(result.train_history[0, 0], 6.0, rtol=1e-4)
    assert seen[0] == (4,)


def test_each_seed_stops_after_its_own_patience_and_keeps_its_best():
    # The loss pulls the parameter up for ever; validation is best at 1, so a seed that starts nearer 1 stops earlier.
    def start(key):
        return jax.random.uniform(key, ())

    def up(key, params, batch, weight, shared):
        return -params

    def from_one(params, batch, shared):
        return (params - 1.0) ** 2 + 0.0 * batch

    cfg = TrainConfig(learning_rate=0.1, batch=1, epochs=60, patience=3, weight_decay=0.0)
    result = train(KEYS, start, up, from_one, Examples(jnp.zeros(1), jnp.zeros(1)), cfg)
    # Adam's first steps on a constant gradient are 0.1 each: the best is within half a step of 1.
    assert float(jnp.abs(result.params - 1.0).max()) <= 0.05 + 1e-4
    for seed in range(3):
        run = int(result.epochs[seed])
        best = int(jnp.nanargmin(result.val_history[seed])) + 1
        assert run == best + cfg.patience < cfg.epochs
        assert bool(jnp.isnan(result.val_history[seed, run:]).all())


def test_the_starting_point_is_kept_when_training_only_hurts():
    result = train(
        KEYS[:1],
        lambda key: jnp.zeros(()),
        lambda key, params, batch, weight, shared: -params,
        lambda params, batch, shared: params**2 + 0.0 * batch,
        Examples(jnp.zeros(1), jnp.zeros(1)),
        TrainConfig(batch=1, epochs=3),
    )
    chex.assert_trees_all_equal(result.params, jnp.zeros(1))


class Killed(Exception):
    """Stands for a process that dies."""


def killed_after(epochs, monkeypatch):
    """Lets training die right after it saved the given epoch."""
    save = trainer._save

    def save_and_die(manager, epoch, state, fingerprint):
        save(manager, epoch, state, fingerprint)
        if epoch == epochs:
            manager.close()
            raise Killed

    monkeypatch.setattr(trainer, "_save", save_and_die)


def test_a_killed_run_resumes_to_the_same_bits(tmp_path, monkeypatch):
    whole = train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG)
    with monkeypatch.context() as patch:
        killed_after(4, patch)
        with pytest.raises(Killed):
            train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG, checkpoint_dir=tmp_path)
    resumed = train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG, checkpoint_dir=tmp_path)
    chex.assert_trees_all_equal(untimed(resumed), untimed(whole))
    again = train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG, checkpoint_dir=tmp_path)
    chex.assert_trees_all_equal(untimed(again), untimed(whole))
    assert np.isfinite(whole.epoch_seconds).all() and np.isnan(again.epoch_seconds).all()  # it had nothing left to do


def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_sentence(tmp_path):
    train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG, checkpoint_dir=tmp_path)
    other = TrainConfig(learning_rate=0.01, batch=8, epochs=12)
    with pytest.raises(ValueError, match="belongs to another run"):
        train(KEYS, init_fn, loss_fn, eval_fn, DATA, other, checkpoint_dir=tmp_path)
    for item in (tmp_path / "12" / "state").iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        train(KEYS, init_fn, loss_fn, eval_fn, DATA, CFG, checkpoint_dir=tmp_path)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"learning_rate": 0.0}, {"average": 1.0}, {"patience": 0}])
def test_settings_that_cannot_train_are_refused(wrong):
    with pytest.raises(ValueError):
        TrainConfig(**wrong)
