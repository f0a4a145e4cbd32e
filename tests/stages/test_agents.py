"""Claims about the agents' names and about L as a judge of anybody's episodes."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from data.errors import DataError
from experiments.cli.options import RunOptions
from experiments.evaluation import results
from experiments.report import control_figures
from experiments.stages import agent_stage, agents
from experiments.stages.actions import chosen_action
from experiments.stages.agent_road import Site
from experiments.stages.agents import OURS
from sim.demand import DEMAND_LEVELS
from sim.loop import Episode
from stream_jax.rl import agent as agent_parts
from stream_jax.rl import trial
from stream_jax.task import GREENS, PRICES
from stream_jax.types import RoadMeasurement

HEAVY = DEMAND_LEVELS["heavy"]


def driven(queue):
    """An episode in which every phase of two intersections has these queues, [T + 1]."""
    queue = np.asarray(queue, np.float32)
    steps, signals = len(queue), 2
    flat, none = np.ones((steps, signals), np.float32), np.zeros(steps, np.float32)
    road = RoadMeasurement(
        np.broadcast_to(queue[:, None, None], (steps, signals, 8)), 0 * flat, flat, flat, flat, flat, none, none, none
    )
    return Episode(0, None, road, None, {}, None)


def test_the_judge_counts_the_steps_at_which_l_falls_as_its_condition_asks():
    cfg = agents.agent_config(OURS, "smoke", HEAVY)
    agent = agent_parts.init(jax.random.key(0), jnp.ones((2, 2)) / 2, cfg)
    # Eight phases: the limit of heavy demand, tightened, lies between one and two vehicles each. Below it L may rise by
    # delta at most; above it, it has to fall by more the further the limit is broken.
    assert agents.decrease_share(agent, [driven([0.9, 0.5, 0.2, 0.0])], cfg) == 1.0
    assert agents.decrease_share(agent, [driven([0.0, 3.0, 6.0, 9.0])], cfg) == 0.0
    assert agents.decrease_share(agent, [driven([9.0, 9.0, 9.0, 9.0])], cfg) == 0.0
    assert agents.decrease_share(agent, [driven([0.0, 1.2, 0.0]), driven([0.2, 0.1, 6.0])], cfg) == 0.5


def test_the_variants_of_the_aggregation_differ_in_what_the_city_says_alone():
    asked = []
    names = (OURS, f"{OURS}:diagonal", f"{OURS}:learned", "ppo", f"{OURS}:soft_1", f"{OURS}:learned")
    cities = agent_stage.cities_of(names, lambda covariance: asked.append(covariance) or covariance)
    assert asked == ["kernel", "diagonal", "empirical"]  # each once, and everybody else has ours
    assert cities["ppo"] == cities[f"{OURS}:soft_1"] == cities[OURS] == "kernel"
    for name in agents.COVARIANCES:
        assert agents.agent_config(name, "default", HEAVY) == agents.agent_config(OURS, "default", HEAVY)


def test_learning_curves_count_simulated_steps_and_keep_validations_apart():
    kinds = ["trial", "validation", "train", "validation"]
    row = {"metric": "curve", "method": OURS, "iteration": 0}
    rows = [
        row | {"seed": seed, "kind": kind, "episodes": number, "violating": value + seed}
        for seed in (0, 1)
        for kind, number, value in zip(kinds, (32, 8, 32, 8), (9.0, 4.0, 9.0, 3.0), strict=True)
    ]
    found = control_figures.validations(rows, "violating")
    assert found == {OURS: {0.5: [4.0, 5.0], 1.0: [3.0, 4.0]}}


@pytest.mark.parametrize(
    ("methods", "drawn"),
    [
        ([OURS, "ppo"], [{OURS, "ppo"}]),
        ([f"{OURS}:soft_1"], [{f"{OURS}:soft_1"}]),
        ([f"{OURS}:soft_1", "ppo", OURS], [{OURS, "ppo"}, {OURS, f"{OURS}:soft_1"}]),
        (
            [OURS, f"{OURS}:soft_1", f"{OURS}:no_uncertainty"],
            [{OURS}, {OURS, f"{OURS}:no_uncertainty"}, {OURS, f"{OURS}:soft_1"}],
        ),
        (
            [OURS, "ppo", "ppo:following", f"{OURS}:soft_1"],
            [{OURS, "ppo"}, {OURS, "ppo:following"}, {OURS, f"{OURS}:soft_1"}],
        ),
    ],
)
def test_learning_curves_of_ablations_stand_beside_ours_on_a_scale_of_their_own(methods, drawn):
    common = {"metric": "curve", "seed": 0, "kind": "validation", "violating": 3.0, "traffic": 0.1}
    common |= {"dataset": "synthetic", "data": "synthetic"}
    figure = control_figures.learning_curves([common | {"method": method} for method in methods])
    seen = [{line.get_label() for line in axes.get_lines()} for axes in figure.axes]
    assert seen == [names for names in drawn for _ in range(2)]


def test_ablations_are_drawn_by_what_changed_since_each_seeds_own_start():
    # Seeds begin at 2 and 8 in their own hours; learning moves them by +1 and -2, which is -0.5 in the mean.
    common = {"metric": "curve", "kind": "validation", "dataset": "synthetic", "data": "synthetic", "traffic": 0.0}
    rows = [
        common | {"method": method, "seed": seed, "violating": value}
        for method in (OURS, f"{OURS}:soft_1")
        for seed, values in ((0, (2.0, 3.0)), (1, (8.0, 6.0)))
        for value in values
    ]
    above, _, below, _ = control_figures.learning_curves(rows).axes
    np.testing.assert_allclose(above.get_lines()[0].get_ydata(), [5.0, 4.5])
    np.testing.assert_allclose(below.get_lines()[1].get_ydata(), [0.0, -0.5])
    assert len(above.collections) == len(below.collections) == 1  # bands: below of the full method alone


@pytest.mark.parametrize("action", [GREENS, PRICES])
@pytest.mark.parametrize("preset", ["smoke", "default", "paper"])
def test_rivals_are_validated_as_often_as_ours_and_drive_at_least_as_many_episodes(preset, action):
    ours, rival = (agents.agent_config(name, preset, HEAVY, action) for name in (OURS, "cpo"))

    def count(cfg):
        validations = 1 + sum(
            (index + 1) % cfg.validate_every == 0 or index + 1 == cfg.iterations for index in range(cfg.iterations)
        )
        return trial.episodes(cfg) + cfg.iterations * cfg.episodes, validations

    assert count(rival)[1] == count(ours)[1]
    # A rival's episodes come by whole iterations.
    assert 0 <= count(rival)[0] - count(ours)[0] < ours.episodes
    assert rival.validation_episodes == ours.validation_episodes and rival.goal == ours.goal == HEAVY.limits


def test_who_sets_prices_has_no_plan_to_try_and_begins_with_none():
    priced = agents.agent_config(OURS, "default", HEAVY, PRICES)
    assert priced.trial.hours == 0 and priced.action == PRICES
    args = RunOptions()
    assert chosen_action(args, [OURS, "ppo"]) == PRICES
    assert chosen_action(RunOptions(action="greens"), ["ppo:following"]) == GREENS
    with pytest.raises(DataError, match="ppo:following begins with a plan of greens; add --action greens"):
        chosen_action(args, [OURS, "ppo:following"])


def test_a_table_shows_one_action_of_a_controller():
    rows = [{"method": OURS, "level": level, "value": 1} for level in ("heavy", "moderate")]
    rows += [{"method": OURS, "level": "heavy", "value": 2, "action": "prices"}, {"method": "webster", "value": 3}]
    assert [row["value"] for row in results.of_one_action(rows)] == [1, 2, 3]
    assert results.of_one_action(rows)[0]["level"] == "moderate"


def test_a_trial_is_another_one_on_another_road_or_demand():
    cfg = agents.agent_config(OURS, "default", HEAVY)
    road = SimpleNamespace(
        flow=np.ones((4, 2)), incidents=[], starts={"val": np.arange(3)}, planner=SimpleNamespace(cfg="a day")
    )
    site = Site(road, None, 100.0, 1, None, GREENS)
    known = agents.trial_digest(cfg, site)
    assert agents.trial_digest(dataclasses.replace(cfg, iterations=9), site._replace(workers=2)) == known
    others = [agents.trial_digest(cfg, site._replace(vehicles_per_hour=101.0))]
    changed = {"flow": 2.0 * road.flow, "incidents": ["closure"], "starts": {"val": np.arange(4)}}
    for name, value in changed.items():
        others.append(agents.trial_digest(cfg, site._replace(road=SimpleNamespace(**vars(road) | {name: value}))))
    hours = dataclasses.replace(cfg, trial=dataclasses.replace(cfg.trial, hours=2))
    others.append(agents.trial_digest(hours, site))
    assert len({known, *others}) == 1 + len(others)
