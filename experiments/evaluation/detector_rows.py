"""Results rows of the rival detectors and the table that sets them beside CRFN-BY.

A rival appears under up to three names: its own for the decisions that its paper would make, `+by` where it has
p-values of its own, and `+conformal_by` for the same scores ranked among calibration scores and decided by BY, as ours
are. No point adjustment: a cell-step counts as found if it was itself rejected.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from data.loader import TrafficDataset
from experiments.evaluation import decisions, incident_rows
from experiments.stages.detection import Scored
from experiments.stages.detectors import WITH_LAW, RivalScores
from stream_jax.conformal import p_values

SHOWN = ("fdr_step", "fdr_pooled", "precision", "recall", "f1", "average_precision", "vus_pr")
OURS = ("full+by", "full+bh")


class Decided(NamedTuple):
    """Decisions of one rule about the test parts of all folds."""

    method: str
    level: float | None  # None where the rule has no level to choose
    rejected: list[np.ndarray]  # [T, N] bool, one a fold


def rival_rows(
    name: str,
    ours: dict[str, list[Scored]],
    theirs: dict[str, list[RivalScores]],
    dataset: TrafficDataset,
    seed: int,
) -> list[dict]:
    """Everything that is reported of one rival and seed, by scenario with one entry a fold."""
    rows = []
    for scenario, folds in ours.items():
        mine = decisions.decided(folds, decisions.OURS, (decisions.HEADLINE,))[decisions.HEADLINE]
        for decided in decide(name, theirs[scenario]):
            place = {"scenario": scenario, "seed": seed, "level": decided.level}
            common = place | {"method": decided.method, "arm": decided.method}
            measured = [_false_alarms(folds, decided.rejected)]
            if scenario != "clean":
                rejected = np.concatenate(decided.rejected)
                measured = decisions.decision_rows(folds, rejected, seed)
                if decided.level in (None, decisions.HEADLINE):
                    measured.append(decisions.paired_row(folds, rejected, mine, seed))
            if scenario == "incidents" and decided.level in (None, decisions.HEADLINE):
                measured += incident_rows.alignment_rows(folds, decided.rejected, dataset)
            rows += [common | row for row in measured]
        if scenario != "clean":
            common = {"scenario": scenario, "seed": seed, "method": name, "arm": name}
            rows += [common | row for row in decisions.ranking_rows(folds, [one.test for one in theirs[scenario]])]
    return rows


def decide(name: str, folds: list[RivalScores]) -> Iterator[Decided]:
    """The rival's own decisions, then those by BY."""
    tested = [~np.isnan(one.test) for one in folds]
    if name in WITH_LAW:
        tails = [np.nan_to_num(one.tail, nan=1.0) for one in folds]
        for level in decisions.LEVELS:
            yield Decided(name, level, [(p <= level) & seen for p, seen in zip(tails, tested, strict=True)])
            yield Decided(f"{name}+by", level, _by(tails, tested, level))
    else:
        yield Decided(name, None, [np.nan_to_num(one.test, nan=-np.inf) > one.threshold for one in folds])
    ranks = [conformal(one) for one in folds]
    for level in decisions.LEVELS:
        yield Decided(f"{name}+conformal_by", level, _by(ranks, tested, level))


def conformal(one: RivalScores) -> np.ndarray:
    """P-values of the test scores by their rank among the calibration scores. [T, N]"""
    pooled = one.calibration[~np.isnan(one.calibration)]
    return np.asarray(p_values.conformal_p_values(jnp.asarray(pooled), jnp.asarray(one.test)))


def print_summary(rows: list[dict], dataset: TrafficDataset, console: Console) -> None:
    """Ours and every rival, mean over seeds, at the headline level where a rule has one."""
    for scenario in sorted({row["scenario"] for row in rows} - {"clean"}):
        here = [row for row in rows if row["scenario"] == scenario]
        title = f"{dataset.manifest['dataset']} ({dataset.manifest['data']}): {scenario}, detectors"
        table = Table(title=f"{title}, target FDR {decisions.HEADLINE:.0%} where there is one")
        for column in ("detector", *SHOWN):
            table.add_column(column, justify="left" if column == "detector" else "right")
        rivals = [row["arm"] for row in here if "method" in row]
        for arm in dict.fromkeys([*OURS, *rivals]):
            # A ranking belongs to scores, however they are decided upon.
            scores = "weighted" if arm in OURS else arm.split("+")[0]
            shown = [_mean(here, scores if name in SHOWN[-2:] else arm, name) for name in SHOWN]
            table.add_row(arm, *(f"{value:.3f}" for value in shown))
        console.print(table)


def _by(p: list[np.ndarray], tested: list[np.ndarray], level: float) -> list[np.ndarray]:
    return [decisions.reject(*pair, "by", level) for pair in zip(p, tested, strict=True)]


def _false_alarms(folds: list[Scored], rejected: list[np.ndarray]) -> dict:
    """Share of the tested cell-steps that are rejected though nothing was put into the recording."""
    tested = np.concatenate([~np.isnan(one.test) for one in folds])
    return {"metric": "false_alarm_share", "value": float(np.concatenate(rejected)[tested].mean())}


def _mean(rows: list[dict], arm: str, metric: str) -> float:
    wanted = {"arm": arm, "metric": metric}
    picked = [row for row in rows if wanted.items() <= row.items() and row.get("level") in (None, decisions.HEADLINE)]
    return float(np.mean([row["value"] for row in picked])) if picked else float("nan")
