"""The stages of a run, in order, each timed, in a folder that no other run uses meanwhile."""

import dataclasses
import time
from pathlib import Path

from rich.console import Console

from experiments.cli import display, lock, options, plan
from experiments.cli.main import load
from experiments.cli.options import RunOptions
from experiments.cli.unused import refuse_unused
from experiments.methods import catalogue

# Loaded when their turn comes: etl needs no jax, nothing but control needs SUMO, and a plan needs none of them.
WORK = {
    "etl": "experiments.stages.etl:etl",
    "forecast": "experiments.stages.forecast:forecast",
    "detect": "experiments.stages.detect:detect",
    "control": "experiments.stages.control:control",
    "own routes": "experiments.stages.own_routes:control",
    "report": "experiments.stages.report:report",
    "table": "experiments.stages.sensitivity:table",
}


def run(args: RunOptions, words: list[str], out: Path, console: Console) -> None:
    """Runs the stages that were asked for, or says what they would be.

    Args:
        words: the command line, kept beside the results.
    """
    chosen = options.stages(args)
    refuse_unused(args, chosen)
    args = with_methods(args)
    if args.dry_run:
        cfg = load("experiments.presets:experiment_config")(args)
        plan.show(plan.make_plan(args, out, chosen, cfg.seeds, cfg.max_folds), out, console)
        return
    out.mkdir(parents=True, exist_ok=True)
    with lock.only_run(out, console):
        for number, name in enumerate(chosen, start=1):
            start = time.perf_counter()
            with display.stage_display(name, f"{number} of {len(chosen)}", out, console):
                load(WORK["own routes" if args.routes else name])(args, out, console)
            plan.record(out, plan.timed_as(name, args), time.perf_counter() - start, words)


def with_methods(args: RunOptions) -> RunOptions:
    """The options with the methods that their table compares; refuses what does not exist before any stage runs."""
    args = dataclasses.replace(
        args,
        methods=args.methods or catalogue.for_table(catalogue.FORECASTERS, args.table),
        detectors=args.detectors or catalogue.for_table(catalogue.DETECTORS, args.table),
        controllers=args.controllers or catalogue.for_table(catalogue.CONTROLLERS | catalogue.LEARNERS, args.table),
    )
    if args.methods:
        load("experiments.stages.forecast:check_methods")(args.methods)
    if args.detectors:
        load("experiments.stages.detectors:check_detectors")(args.detectors)
    if args.controllers:
        load("experiments.stages.control:chosen_controllers")(args.controllers)
    if args.network:
        load("sim.network:read_network")(args.network)
    return args
