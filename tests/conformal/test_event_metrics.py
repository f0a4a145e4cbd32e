"""A toy incident log gives the hand-computed recall, delay and apparent false-discovery proportion."""

import numpy as np

from stream_jax.conformal.event_metrics import (
    EventLog,
    align_events,
    hop_neighbourhoods,
    recall_by_chance,
    rejection_clusters,
)

# A road of eight cells, 0 - 1 - ... - 7, edges one way only.
SENDERS, RECEIVERS = np.arange(7), np.arange(1, 8)


def rejections(*pairs: tuple[int, int]) -> np.ndarray:
    rejected = np.zeros((20, 8), bool)
    for step, cell in pairs:
        rejected[step, cell] = True
    return rejected


def test_two_events_and_three_alarms_by_hand():
    # Event A: cell 2 at step 3. Event B: cell 6 at step 12.
    # Alarm 1: (5, 4) and (6, 3), two hops away and two steps late: hits A after 2 steps.
    # Alarm 2: (12, 0), six hops from B: false. Alarm 3: (17, 6), five steps late: misses B.
    rejected = rejections((5, 4), (6, 3), (12, 0), (17, 6))
    result = align_events(rejected, EventLog(np.array([2, 6]), np.array([3, 12])), SENDERS, RECEIVERS)
    assert result.num_alarms == 3
    assert result.recall == 1 / 2
    assert result.apparent_fdp == 2 / 3
    np.testing.assert_array_equal(result.delay_steps, [2.0, np.nan])
    assert result.median_delay_steps == 2.0


def test_hit_window_is_closed_at_both_ends_and_the_neighbourhood_at_two_hops():
    log = EventLog(np.array([3]), np.array([5]))
    for pair, is_hit in (((5, 3), True), ((9, 5), True), ((4, 3), False), ((10, 3), False), ((5, 6), False)):
        assert align_events(rejections(pair), log, SENDERS, RECEIVERS).is_hit[0] == is_hit


def test_one_large_alarm_explains_both_events_it_covers():
    rejected = rejections(*((4, cell) for cell in range(8)))
    result = align_events(rejected, EventLog(np.array([0, 7]), np.array([4, 3])), SENDERS, RECEIVERS)
    assert (result.recall, result.num_alarms, result.apparent_fdp) == (1.0, 1, 0.0)
    assert result.median_delay_steps == 0.5  # 0 and 1 steps


def test_no_alarm_and_no_event_are_defined():
    silent = align_events(rejections(), EventLog(np.array([1]), np.array([2])), SENDERS, RECEIVERS)
    assert silent.recall == 0.0 and silent.apparent_fdp == 0.0 and np.isnan(silent.median_delay_steps)
    no_log = align_events(rejections((1, 1)), EventLog(np.array([], int), np.array([], int)), SENDERS, RECEIVERS)
    assert np.isnan(no_log.recall) and no_log.apparent_fdp == 1.0


def test_rejections_touch_within_one_hop_and_one_step_in_any_direction():
    labels, count = rejection_clusters(rejections((1, 3), (2, 2), (4, 2), (2, 5)), SENDERS, RECEIVERS)
    # (1,3)-(2,2) touch against the edge's direction; (4,2) is two steps later; (2,5) two hops off.
    assert count == 3
    assert labels[1, 3] == labels[2, 2] and len({labels[1, 3], labels[4, 2], labels[2, 5]}) == 3
    assert (labels >= 0).sum() == 4


def test_hop_neighbourhoods_on_a_road():
    is_near = hop_neighbourhoods(SENDERS, RECEIVERS, 8, 2)
    distance = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    np.testing.assert_array_equal(is_near, distance <= 2)
    np.testing.assert_array_equal(hop_neighbourhoods(SENDERS, RECEIVERS, 8, 0), np.eye(8, dtype=bool))


def test_alarms_while_an_event_lasts_are_explained_by_it_but_come_too_late_to_hit_it():
    # Cell 3 from step 2 until 10: an alarm at step 9 is seven steps late; 15 is five after the end.
    log = EventLog(np.array([3]), np.array([2]), np.array([10]))
    late, after = (align_events(rejections((step, 3)), log, SENDERS, RECEIVERS) for step in (9, 15))
    assert (late.recall, late.apparent_fdp) == (0.0, 0.0)
    assert (after.recall, after.apparent_fdp) == (0.0, 1.0)


def test_recall_by_chance_is_the_recall_of_shifted_logs():
    # One alarm at (6, 3), one event at (5, 3), delays 0 .. 4: shifts that bring the onset to 2 .. 6 hit, 5 of 20.
    found = recall_by_chance(rejections((6, 3)), EventLog(np.array([3]), np.array([5])), SENDERS, RECEIVERS)
    assert found[0] == 1.0
    np.testing.assert_array_equal(np.flatnonzero(found), [0, 1, 17, 18, 19])
    # Two more events out of reach leave a third of it.
    log = EventLog(np.array([3, 7, 7]), np.array([5, 0, 9]))
    assert recall_by_chance(rejections((6, 3)), log, SENDERS, RECEIVERS).mean() == 5 / 20 / 3
