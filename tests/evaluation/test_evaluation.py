"""Scores and their intervals: worked by hand, counted once a step, and read back as they were written."""

import numpy as np
import pytest

from experiments.evaluation.drives import (
    in_hindsight,
    median,
    read_episode,
    save_episode,
    score,
    shared_wilson,
    summarise,
    wilson,
)
from experiments.evaluation.results import student
from sim.loop import Episode
from sim.session import Scenario
from stream_jax.task import Limits
from stream_jax.types import RoadMeasurement

NOWHERE = Scenario("none", (), 60, 120, 0, 0, np.zeros((1, 2)))


def episode(wait: list[float], queue: float = 1.0) -> Episode:
    """Two intersections; `wait` gives the longest wait after the warm-up and at each step."""
    steps = len(wait)
    ones = np.ones((steps, 2), np.float32)
    waits = np.stack([np.array(wait, np.float32), np.zeros(steps, np.float32)], axis=1)
    road = RoadMeasurement(
        np.full((steps, 2, 8), queue / 8, np.float32),
        waits,
        30 * ones,
        30 * ones,
        300 * ones,
        300 * ones,
        np.full(steps, 1200.0, np.float32),
        np.zeros(steps, np.float32),
        np.zeros(steps, np.float32),
    )
    totals = {"mean_travel_time_s": 150.0, "teleports": 1}
    return Episode(0, NOWHERE, road, np.zeros((steps - 1, 2, 9), np.float32), totals, None)


def test_median_and_its_interval_between_order_statistics():
    # Of 20 values the 6th and 15th: P(fewer than 6 of 20 below the median) = .0207 on each side.
    assert median(list(range(20, 0, -1))) == (10.5, 6.0, 15.0)
    assert median([7.0, 1.0, 4.0]) == (4.0, 1.0, 7.0)


def test_wilson_by_hand():
    # 8 of 10, z = 1.96: centre (0.8 + 0.19208) / 1.38416 = 0.71674,
    # half 1.96 sqrt(0.016 + 0.0096040) / 1.38416 = 0.22658.
    low, high = wilson(8, 10)
    np.testing.assert_allclose([low, high], [0.49016, 0.94332], atol=2e-4)


@pytest.mark.parametrize(("successes", "closed"), [(0, 0.0), (10, 1.0)])
def test_wilson_is_not_a_point_where_all_agree(successes, closed):
    low, high = wilson(successes, 10)
    assert low <= closed <= high and high - low > 0.2


def test_wilson_holds_the_share_to_the_last_digit():
    # At 0 of 12, centre and half width are the same number, rounded differently: 2.8e-17 and not 0 is left of them.
    for trials in range(1, 200):
        for successes in (0, 1, trials // 2, trials):
            low, high = wilson(successes, trials)
            assert low <= successes / trials <= high


def test_student_by_hand():
    # Mean 2, standard deviation 1, n = 3: t = 4.3027 with two degrees of freedom, half width 4.3027 / sqrt(3) = 2.4841.
    np.testing.assert_allclose(student(np.array([1.0, 2.0, 3.0])), (2 - 2.4841, 2 + 2.4841), atol=1e-3)
    assert student(np.array([1.0])) == (-np.inf, np.inf)


def test_a_step_that_waits_too_long_makes_the_episode_unsafe_and_is_counted_once():
    found = score(episode([0, 100, 150, 130]), Limits())
    assert (found["safety"], found["violating_steps"]) == (0.0, 2.0)
    np.testing.assert_allclose(found["violation"], (30 / 120 + 10 / 120) / 3, rtol=1e-5)
    np.testing.assert_allclose(found["longest_wait"], 150.0, rtol=1e-6)
    np.testing.assert_allclose(found["wait"], (100 + 150 + 130) / 3, rtol=1e-5)
    assert found["teleports"] == 1.0


def test_every_limit_has_its_own_count_and_a_step_that_breaks_two_counts_once_in_the_sum():
    found = score(episode([0, 100, 150, 130], queue=12.0), Limits(queue=10.0))
    assert [found[f"steps_over_{name}"] for name in ("queue", "wait", "served")] == [3.0, 2.0, 0.0]
    assert found["violating_steps"] == 3.0


def test_the_warm_up_does_not_count():
    assert score(episode([500, 100, 100]), Limits())["safety"] == 1.0


def test_a_queue_limit_that_binds_is_seen():
    found = score(episode([0, 0, 0], queue=6.0), Limits(queue=4.0))
    np.testing.assert_allclose(found["mean_queue"], 6.0, rtol=1e-6)
    assert found["violating_steps"] == 2.0
    np.testing.assert_allclose(found["violation"], 0.5, rtol=1e-5)


def drive(*waits: float) -> dict[int, dict[str, float]]:
    """Scores of hours 0, 1, ... with these longest waits."""
    return {hour: score(episode([0, wait, 0]), Limits()) for hour, wait in enumerate(waits)}


def test_summary_pairs_hours_with_the_reference():
    rows = {row["metric"]: row for row in summarise([drive(130.0, 20.0)], Limits(), {"default": drive(130.0, 140.0)})}
    assert rows["safety"]["value"] == 0.5 and rows["safety"]["episodes"] == 2
    assert rows["violating_steps_minus_default"]["value"] == -0.5
    assert rows["safety_minus_default"]["value"] == 0.5
    assert rows["longest_wait"]["limit"] == 120.0 and rows["mean_queue"]["limit"] == 50.0


def test_an_hour_that_one_of_both_did_not_finish_is_in_no_pair():
    theirs = drive(130.0, 140.0, 140.0)
    del theirs[0]
    ours = [drive(130.0, 20.0, 130.0)]
    rows = {row["metric"]: row for row in summarise(ours, Limits(), {"ours": theirs})}
    assert (rows["violating_steps_minus_ours"]["value"], rows["violating_steps_minus_ours"]["hours"]) == (-0.5, 2)
    assert rows["safety"]["episodes"] == 3
    assert not any("_minus_" in row["metric"] for row in summarise(ours, Limits(), {"default": {}}))


def test_seeds_that_do_the_same_tell_no_more_than_one():
    one, other = drive(130.0, 20.0, 30.0, 40.0), drive(20.0, 130.0, 150.0, 20.0)
    alone, copies = (summarise([one] * count, Limits(), {"default": other}) for count in (1, 3))
    for single, copied in zip(alone, copies, strict=True):
        assert copied == single | {"episodes": 12}


def test_safety_of_seeds_that_agree_by_chance_alone_has_the_interval_of_all_episodes():
    # Hour means of five seeds vary as p (1 - p) / 5 then: here 0.2 and 0.8, whose variance over 40 hours is .0923,
    # against .25 / 5 = .05. The forty hours are worth 40 * .25 / .0923 = 108.3 of the 200 episodes.
    shares = np.tile([0.2, 0.8], 20)
    np.testing.assert_allclose(shared_wilson(shares, 200), wilson(0.5 * 108.333, 108.333), rtol=1e-4)
    assert shared_wilson(np.full(40, 0.5), 200) == wilson(20, 40)  # nothing to tell the agreement by
    assert shared_wilson(np.ones(40), 200) == wilson(40, 40)


def test_intervals_of_safety_cover_when_hours_are_shared():
    # Hours that are safe with probability .9 or .2, half of each, and three seeds in each of twenty hours: of 2000 such
    # tables 95 % should hold the mean of .55. Wilson's interval of sixty independent episodes holds it in 83 %.
    draws = np.random.default_rng(0)
    chance = draws.choice([0.9, 0.2], size=(2000, 20))
    shares = draws.binomial(3, chance) / 3.0
    held = [low <= 0.55 <= high for low, high in (shared_wilson(one, 60) for one in shares)]
    naive = [low <= 0.55 <= high for low, high in (wilson(60 * one.mean(), 60) for one in shares)]
    assert np.mean(held) > 0.93 > 0.9 > np.mean(naive)  # a standard error of 2000 draws at .95 is .005


def test_in_hindsight_each_hour_has_the_drive_with_the_fewest_violating_steps_and_then_the_best_reward():
    drive = lambda steps, reward: {"violating_steps": steps, "reward": reward}  # noqa: E731
    first = {0: drive(3.0, 0.9), 1: drive(0.0, 0.1), 2: drive(5.0, 0.0)}
    second = {0: drive(1.0, 0.2), 1: drive(0.0, 0.3)}  # it did not finish the last hour
    assert in_hindsight([first, second]) == {0: second[0], 1: second[1], 2: first[2]}


def test_an_episode_is_read_back_as_it_was_written(tmp_path):
    first = episode([0, 100, 150])
    save_episode(tmp_path / "a" / "000.npz", first)
    again = read_episode(tmp_path / "a" / "000.npz", 0, NOWHERE)
    for one, other in zip(first.road, again.road, strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.totals == first.totals
    assert score(first, Limits()) == score(again, Limits())
