"""Claims about the agents' names and about L as a judge of anybody's episodes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from experiments import agent_stage, agents, control_figures
from experiments.agents import OURS
from sim.demand import DEMAND_LEVELS
from sim.loop import Episode
from stream_jax.rl import agent as agent_parts
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


def test_the_variants_of_the_aggregation_differ_in_what_the_city_says_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(agent_stage.system, "upstream_system", lambda *given: asked.append(given[-1].covariance))
    monkeypatch.setattr(agent_stage.system, "city_days", lambda *_: None)
    team = object.__new__(agent_stage.LearnedControllers)
    vars(team).update(dict.fromkeys(("dataset", "out", "folder", "cfg", "console")), cities={})
    team.road = SimpleNamespace(network=SimpleNamespace(ids=["a"], neighbours=np.array([[-1]])), weights=None)
    for name in (OURS, f"{OURS}:diagonal", f"{OURS}:learned", "ppo", f"{OURS}:soft_1", f"{OURS}:learned"):
        team._city(name)
    assert asked == ["kernel", "diagonal", "empirical"]  # each once, and everybody else has ours
    for name in agents.COVARIANCES:
        assert agents.agent_config(name, "default", HEAVY) == agents.agent_config(OURS, "default", HEAVY)


def test_learning_curves_count_simulated_steps_and_keep_validations_apart():
    kinds = ["validation", "search", "validation", "train", "validation"]
    row = {"metric": "curve", "method": OURS, "iteration": 0}
    rows = [
        row | {"seed": seed, "kind": kind, "episodes": number, "violating": value + seed}
        for seed in (0, 1)
        for kind, number, value in zip(kinds, (8, 24, 8, 32, 8), (5.0, 9.0, 4.0, 9.0, 3.0), strict=True)
    ]
    found = control_figures.validations(rows, "violating")
    assert found == {OURS: {0.1: [5.0, 6.0], 0.5: [4.0, 5.0], 1.0: [3.0, 4.0]}}
