"""The one trainer: every seed at once in one compiled epoch, early stopping, and exact resume.

Implements the optimiser settings of the paper's appendix "Training Details"; the rest is not in the paper.
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import rich
from jax import Array
from jax.sharding import PartitionSpec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stream_jax import store

InitFn = Callable[[Array], Any]  # key -> params
LossFn = Callable[[Array, Any, Any, Array, Any], Array]  # key, params, batch, weight [B], shared -> scalar
EvalFn = Callable[[Any, Any, Any], Array]  # params, batch, shared -> loss of each example [B]
BATCH_AXIS = "batch"  # of the mesh in force: its devices share each batch between them


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Adam with decoupled weight decay; learning rate and batch are the paper's, the rest is ours."""

    learning_rate: float = 3e-4
    batch: int = 64
    epochs: int = 100
    patience: int = 10  # epochs without a better validation loss before a seed stops
    clip: float = 1.0  # largest global gradient norm
    weight_decay: float = 1e-4  # on matrices only, not on biases, scales and other vectors
    average: float = 0.0  # decay per step of the averaged weights that are validated and kept; 0 keeps the last ones
    checkpoint_every: int = 5  # epochs

    def __post_init__(self) -> None:
        if min(self.batch, self.epochs, self.patience, self.checkpoint_every) < 1:
            raise ValueError("batch, epochs, patience and checkpoint_every must be at least 1")
        if not (self.learning_rate > 0 and self.clip > 0 and self.weight_decay >= 0 and 0 <= self.average < 1):
            raise ValueError("learning_rate and clip must be positive, weight_decay >= 0 and average in [0, 1)")


class Examples(NamedTuple):
    """What a fit learns from; `train` and `val` are split into batches, `shared` is seen whole by every batch."""

    train: Any  # pytree, leaves [W, ...]
    val: Any  # pytree, leaves [V, ...]
    shared: Any = None  # pytree


class TrainState(NamedTuple):
    """Everything that training carries from epoch to epoch; every leaf has a leading seed axis."""

    params: Any
    averaged: Any
    optimiser: Any
    best_params: Any
    best_loss: Array  # [S] validation loss of best_params
    stale: Array  # [S] int32 epochs since the best
    epoch: Array  # [S] int32 epochs done
    done: Array  # [S] bool
    train_loss: Array  # [S, epochs] NaN where not reached
    val_loss: Array  # [S, epochs] NaN where not reached


class FitResult(NamedTuple):
    """The parameters with the lowest validation loss of each seed, and how they were reached."""

    params: Any  # leaves [S, ...]
    val_loss: Array  # [S] of params
    epochs: Array  # [S] int32 epochs run
    train_history: Array  # [S, epochs] NaN after stopping
    val_history: Array  # [S, epochs]
    epoch_seconds: Array  # [S] each seed's share of a typical epoch after the first; NaN if fewer than two were run


def train(
    keys: Array,
    init_fn: InitFn,
    loss_fn: LossFn,
    eval_fn: EvalFn,
    data: Examples,
    cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> FitResult:
    """Minimises loss_fn from init_fn(key), one run per key, all of them in one compiled call per epoch.

    The starting point counts as a candidate for the best parameters. With `checkpoint_dir` a run that was killed
    continues from its last checkpoint and ends in the same bits as one that was not.

    Args:
        keys: [S] typed keys.
        loss_fn: weighted mean over the batch; weight is 0 where an incomplete last batch was padded.
    """
    chex.assert_rank(keys, 1)
    optimiser = _optimiser(cfg)
    start, run_epoch = _compiled(init_fn, loss_fn, eval_fn, optimiser, cfg)
    manager, seconds = _open(checkpoint_dir), []
    fingerprint = _fingerprint(keys, data, cfg) if manager is not None else ""
    if manager is None or manager.latest_step() is None:
        state = start(keys, data)
    else:
        state = _restore(manager, jax.eval_shape(start, keys, data), fingerprint)
    with _progress_bar(progress) as bar:
        task = bar.add_task("fit", total=cfg.epochs, note="")
        while not bool(state.done.all()):
            began = time.perf_counter()
            state = run_epoch(keys, state, data)
            epoch = int(state.epoch.max())
            seconds.append(time.perf_counter() - began)
            bar.update(task, completed=epoch, note=_note(state))
            if manager is not None and (epoch % cfg.checkpoint_every == 0 or bool(state.done.all())):
                _save(manager, epoch, state, fingerprint)
    if manager is not None:
        manager.close()
    shares = jnp.full(len(keys), np.median(seconds[1:] or [np.nan]) / len(keys))  # the first epoch is compiled
    return FitResult(state.best_params, state.best_loss, state.epoch, state.train_loss, state.val_loss, shares)


def _optimiser(cfg: TrainConfig) -> optax.GradientTransformation:
    def is_matrix(params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    adam = optax.adamw(cfg.learning_rate, weight_decay=cfg.weight_decay, mask=is_matrix)
    return optax.chain(optax.clip_by_global_norm(cfg.clip), adam)


def _compiled(
    init_fn: InitFn, loss_fn: LossFn, eval_fn: EvalFn, optimiser: optax.GradientTransformation, cfg: TrainConfig
) -> tuple[Callable, Callable]:
    """The first state and one epoch, both vmapped over seeds and jitted."""

    def start(key: Array, data: Examples) -> TrainState:
        params = init_fn(jax.random.fold_in(key, cfg.epochs))  # epochs use the numbers below
        loss = _validate(eval_fn, params, data, cfg.batch)
        unreached = jnp.full(cfg.epochs, jnp.nan)
        zero = jnp.zeros((), jnp.int32)
        opt_state = optimiser.init(params)
        return TrainState(params, params, opt_state, params, loss, zero, zero, zero > 0, unreached, unreached)

    def epoch(key: Array, state: TrainState, data: Examples) -> TrainState:
        params, averaged, opt_state, loss = _one_pass(
            jax.random.fold_in(key, state.epoch), state, loss_fn, optimiser, data, cfg
        )
        val_loss = _validate(eval_fn, averaged, data, cfg.batch)
        better = val_loss < state.best_loss
        stale = jnp.where(better, 0, state.stale + 1)
        new = TrainState(
            params=params,
            averaged=averaged,
            optimiser=opt_state,
            best_params=_select(better, averaged, state.best_params),
            best_loss=jnp.where(better, val_loss, state.best_loss),
            stale=stale,
            epoch=state.epoch + 1,
            done=(stale >= cfg.patience) | (state.epoch + 1 >= cfg.epochs),
            train_loss=state.train_loss.at[state.epoch].set(loss),
            val_loss=state.val_loss.at[state.epoch].set(val_loss),
        )
        return _select(state.done, state, new)

    return jax.jit(_over_seeds(start, 1)), jax.jit(_over_seeds(epoch, 2), donate_argnums=1)


def _over_seeds(function: Callable, mapped: int) -> Callable:
    """vmap over the first axis of the first `mapped` arguments; a single seed runs unbatched, which compiles better."""

    def call(*args: Any) -> Any:
        if args[0].shape[0] > 1:
            return jax.vmap(function, (0,) * mapped + (None,) * (len(args) - mapped))(*args)
        single = [jax.tree.map(lambda leaf: leaf[0], arg) for arg in args[:mapped]]
        return jax.tree.map(lambda leaf: leaf[None], function(*single, *args[mapped:]))

    return call


def _one_pass(
    key: Array,
    state: TrainState,
    loss_fn: LossFn,
    optimiser: optax.GradientTransformation,
    data: Examples,
    cfg: TrainConfig,
) -> tuple[Any, Any, Any, Array]:
    """One optimiser step per batch of a fresh shuffle; returns params, averaged params, optimiser state, mean loss."""
    shuffle_key, loss_key = jax.random.split(key)
    count = _num_examples(data.train)
    index, weight = _batches(jax.random.permutation(shuffle_key, count), cfg.batch)  # [batches, B]

    def step(carry: tuple[Any, Any, Any], batch: tuple[Array, Array, Array]) -> tuple[tuple[Any, Any, Any], Array]:
        params, averaged, opt_state = carry
        step_key, rows, row_weight = batch
        examples = jax.tree.map(lambda leaf: leaf[_shared_out(rows)], data.train)
        loss, grads = jax.value_and_grad(loss_fn, argnums=1)(step_key, params, examples, row_weight, data.shared)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        averaged = jax.tree.map(lambda old, new: cfg.average * old + (1.0 - cfg.average) * new, averaged, params)
        return (params, averaged, opt_state), loss * row_weight.sum()

    step_keys = jax.random.split(loss_key, index.shape[0])
    carry = (state.params, state.averaged, state.optimiser)
    carry, losses = jax.lax.scan(step, carry, (step_keys, index, weight))
    return *carry, losses.sum() / count


def _validate(eval_fn: EvalFn, params: Any, data: Examples, batch: int) -> Array:
    """Mean loss over all validation examples, a batch at a time."""
    count = _num_examples(data.val)
    index, weight = _batches(jnp.arange(count), batch)

    def one(rows: tuple[Array, Array]) -> Array:
        examples = jax.tree.map(lambda leaf: leaf[rows[0]], data.val)
        losses = eval_fn(params, examples, data.shared)  # [B]
        return jnp.where(rows[1] > 0, losses, 0.0).sum()

    return jax.lax.map(one, (index, weight)).sum() / count


def _batches(order: Array, batch: int) -> tuple[Array, Array]:
    """Cuts [W] into [batches, B]; the last batch is padded with example 0 at weight 0."""
    count = order.shape[0]
    batch = min(batch, count)
    missing = -count % batch
    return (
        jnp.pad(order, (0, missing)).reshape(-1, batch),
        jnp.pad(jnp.ones(count), (0, missing)).reshape(-1, batch),
    )


def _shared_out(rows: Array) -> Array:
    """The batch's rows [B] cut between the devices of the mesh in force; as they are without one or if B is uneven."""
    devices = dict(jax.sharding.get_abstract_mesh().shape).get(BATCH_AXIS, 0)
    is_even = devices > 1 and rows.shape[0] % devices == 0
    return jax.lax.with_sharding_constraint(rows, PartitionSpec(BATCH_AXIS)) if is_even else rows


def _num_examples(tree: Any) -> int:
    return jax.tree.leaves(tree)[0].shape[0]


def _select(condition: Array, if_true: Any, if_false: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


def _note(state: TrainState) -> str:
    last = int(state.epoch.max()) - 1
    loss, val = jnp.nanmean(state.train_loss[:, last]), jnp.nanmean(state.val_loss[:, last])
    return f"loss {float(loss):.4f}  val {float(val):.4f}  running {int((~state.done).sum())}/{state.done.shape[0]}"


def _progress_bar(wanted: bool) -> Progress:
    """Shown only on a terminal, so that logs stay readable, on the console that other live displays share."""
    console = rich.get_console()
    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not (wanted and console.is_terminal))


def _fingerprint(keys: Array, data: Examples, cfg: TrainConfig) -> str:
    """Tells whether a checkpoint belongs to this run: same settings, same keys, same data to the bit."""
    leaves, structure = jax.tree.flatten(data)
    return store.key("training", cfg, jax.random.key_data(keys), str(structure), leaves, length=64)


def _open(directory: Path | str | None) -> ocp.CheckpointManager | None:
    if directory is None:
        return None
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    return ocp.CheckpointManager(Path(directory).absolute(), options=options)


def _save(manager: ocp.CheckpointManager, epoch: int, state: TrainState, fingerprint: str) -> None:
    items = ocp.args.Composite(state=ocp.args.StandardSave(state), run=ocp.args.JsonSave({"fingerprint": fingerprint}))
    manager.save(epoch, args=items)


def _restore(manager: ocp.CheckpointManager, like: TrainState, fingerprint: str) -> TrainState:
    """Reads the newest checkpoint; raises ValueError when it is damaged or another run's."""
    place = f"{manager.directory}, epoch {manager.latest_step()}"
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), like)
    try:
        run = manager.restore(manager.latest_step(), args=ocp.args.Composite(run=ocp.args.JsonRestore()))
        same = run["run"]["fingerprint"] == fingerprint
        items = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        state = manager.restore(manager.latest_step(), args=items)["state"] if same else None
    except Exception as error:  # orbax raises many kinds; to the caller they all mean one thing
        raise ValueError(f"the checkpoint in {place} cannot be read: remove it to start again") from error
    if state is None:
        raise ValueError(f"the checkpoint in {place} belongs to another run: settings, keys or data differ")
    return state
