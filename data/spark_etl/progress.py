"""A live bar over Spark's tasks; silent where there is no terminal."""

import contextlib
import threading
from collections.abc import Iterator

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

POLL_S = 0.3


@contextlib.contextmanager
def spark_progress(spark: SparkSession, what: str, console: Console) -> Iterator[None]:
    """Shows how many of the running jobs' tasks are done while the block runs."""
    if not console.is_terminal:
        console.print(f"  {what} ...")
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
    )
    done = threading.Event()
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        watcher = threading.Thread(target=_watch, args=(spark, bar, task, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _watch(spark: SparkSession, bar: Progress, task: TaskID, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    stages: dict[int, tuple[int, int]] = {}
    while not done.wait(POLL_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                stages[stage] = (info.numCompletedTasks, info.numTasks)
        for stage in stages.keys() - set(tracker.getActiveStageIds()):
            total = stages[stage][1]
            stages[stage] = (total, total)
        if stages:
            finished, total = map(sum, zip(*stages.values(), strict=True))
            bar.update(task, completed=finished, total=total)
