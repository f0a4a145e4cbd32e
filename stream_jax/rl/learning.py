"""The one loop that learns: collect episodes, improve, validate, keep the best; for LyCon-WRL+ and for every rival.

Algorithm 1, Phase 4, as far as it is the same for all. A learner is a few functions, `Algorithm`; the road is reached
through an injected `collect` only. A run that was killed goes on where it was and ends in the same bits, as long as
`collect` gives the same episodes for the same policy and seed; episodes that were complete are not collected again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.progress import Progress

from stream_jax.rl import replay, verification
from stream_jax.rl.agent import AgentConfig, Decision
from stream_jax.rl.agent_store import AgentStore
from stream_jax.rl.episodes import Episode
from stream_jax.types import CityView

# seeds [E], step [] or [E], x [E, I, 10], view [E, ...], plan in force [E, I, A], clock [E, 5] -> leaves [E, ...]
PolicyStep = Callable[[np.ndarray, Any, Array, CityView, Array, Array], Decision]
Collect = Callable[[PolicyStep, int, int], list[Episode]]  # policy, number of episodes, seed of the first
Row = dict[str, Any]


def _says_nothing(learner: Any, episodes: Episode) -> Row:
    return {}


class Algorithm(NamedTuple):
    """How something learns. A learner is any pytree: all that is carried from iteration to iteration but episodes."""

    start: Callable[[Array], Any]  # key -> learner
    act: Callable[[Array, Any, bool], PolicyStep]  # key, learner, whether to explore
    # key, learner, iteration, stacked episodes of all iterations that are remembered, the newest last
    improve: Callable[[Array, Any, int, list[Episode]], tuple[Any, Row]]
    judge: Callable[[Any, Episode], Row] = _says_nothing  # what else to log of validation episodes
    # Before the first episode: key to drive with, learner, store -> learner, rows.
    prepare: Callable[[Array, Any, AgentStore], tuple[Any, list[Row]]] | None = None
    # The learners before and after the first iteration -> what learning began with, able to act as all later ones do.
    # None: the first learner is able to, and is validated before anything is collected.
    opening: Callable[[Any, Any], Any] | None = None


class Run(NamedTuple):
    """A run of learning between two iterations."""

    learner: Any
    best: Any  # learner, on the validation episodes
    best_score: Array  # [2] its `verification.merit`, compared in this order
    iteration: Array  # [] int32, iterations done


class Learned(NamedTuple):
    """What came of it."""

    learner: Any  # the best on the validation episodes, or the last without validation
    run: Run
    rows: list[Row]  # of the preparation, each iteration and each validation


def learn(
    key: Array, algorithm: Algorithm, collect: Collect, cfg: AgentConfig, store: AgentStore, progress: bool = False
) -> Learned:
    """Learns by `cfg.iterations` rounds of collecting and improving."""
    start_key, drive_key, learn_key = jax.random.split(key, 3)
    first = algorithm.start(start_key)
    run, rows = store.restore(Run(first, first, jnp.full(2, -jnp.inf), jnp.zeros((), jnp.int32)))

    def validated(run: Run, rows: list[Row], learner: Any, iteration: int) -> tuple[Run, list[Row]]:
        step = algorithm.act(drive_key, learner, False)
        episodes = replay.stack(collect(step, cfg.validation_episodes, cfg.validation_seed))
        return _validated(algorithm, run, rows, learner, iteration, episodes, cfg)

    done = int(run.iteration)
    memory = [store.remembered(index) for index in range(max(0, done - cfg.replay), done)]
    if done == 0 and not rows:
        if algorithm.prepare is not None:
            learner, rows = algorithm.prepare(drive_key, run.learner, store)
            run = run._replace(learner=learner)
            store.save(0, run, rows)
        if cfg.validate_every and algorithm.opening is None:
            run, rows = validated(run, rows, run.learner, 0)
    with _progress_bar(progress) as bar:
        task = bar.add_task("control", total=cfg.iterations, completed=done)
        for index in range(done, cfg.iterations):
            before = run.learner
            memory = [*memory, store.kept(index, _collecting(drive_key, algorithm, before, index, collect, cfg))]
            memory = memory[-cfg.replay :]
            learner, row = algorithm.improve(jax.random.fold_in(learn_key, index), before, index, memory)
            run = run._replace(learner=learner, iteration=run.iteration + 1)
            rows = [*rows, {"kind": "train", "iteration": index} | row]
            if cfg.validate_every and index == 0 and algorithm.opening is not None:
                run, rows = validated(run, rows, algorithm.opening(before, learner), 0)
            if cfg.validate_every and ((index + 1) % cfg.validate_every == 0 or index + 1 == cfg.iterations):
                run, rows = validated(run, rows, learner, index + 1)
            store.save(index + 1, run, rows)
            bar.advance(task)
    store.close()
    return Learned(run.best if cfg.validate_every else run.learner, run, rows)


performance = jax.jit(verification.performance, static_argnames="cfg")


def _collecting(
    key: Array, algorithm: Algorithm, learner: Any, index: int, collect: Collect, cfg: AgentConfig
) -> Callable[[], list[Episode]]:
    seed = cfg.first_seed + index * cfg.episodes
    return lambda: collect(algorithm.act(key, learner, True), cfg.episodes, seed)


def _validated(
    algorithm: Algorithm,
    run: Run,
    rows: list[Row],
    learner: Any,
    iteration: int,
    episodes: Episode,
    cfg: AgentConfig,
) -> tuple[Run, list[Row]]:
    """Keeps the learner if none was better in the validation episodes, which were driven without exploration."""
    measured = performance(episodes, cfg=cfg)
    row = {"kind": "validation", "iteration": iteration} | verification.summary(measured, cfg.limits)
    row |= algorithm.judge(learner, episodes)
    score = verification.merit(measured)
    is_kept = verification.is_better(score, run.best_score)
    if is_kept:
        run = run._replace(best=learner, best_score=jnp.asarray(score))
    return run, [*rows, row | {"is_kept": is_kept}]


def _progress_bar(wanted: bool) -> Progress:
    console = Console(stderr=True)  # shown only on a terminal, so that logs stay readable
    return Progress(console=console, disable=not (wanted and console.is_terminal))
