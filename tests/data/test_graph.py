"""Graphs small enough to draw: neighbours, transitions, self-loops and their features."""

import numpy as np
import pandas as pd
import shapely

from data.spark_etl import assemble, graph
from data.spark_etl.schema import Box, CitySpec

LINE = np.array([[0.0, 0.0], [1000.0, 0.0], [2000.0, 0.0]])
NONE = (np.zeros(0, int), np.zeros(0, int))


def edges(built: dict[str, np.ndarray]) -> dict[tuple[int, int], list[float]]:
    """Features by (sender, receiver)."""
    pairs = zip(built["senders"].tolist(), built["receivers"].tolist(), strict=True)
    return dict(zip(pairs, built["edge_features"].tolist(), strict=True))


def test_squares_are_neighbours_when_they_share_a_side_or_a_corner_but_not_around_the_edge():
    # Four columns. 3 ends the first row and 4 begins the second: consecutive numbers, opposite sides of the city.
    #   4 5 . .
    #   0 . . 3
    ids = np.array([0, 3, 4, 5])
    one, other = graph.square_neighbours(ids, columns=4)
    assert set(zip(ids[one].tolist(), ids[other].tolist(), strict=True)) == {
        (0, 4), (4, 0), (0, 5), (5, 0), (4, 5), (5, 4),
    }  # fmt: skip


def test_polygons_within_twenty_metres_are_neighbours():
    near, far = shapely.box(1.0001, 0, 2, 1), shapely.box(2.001, 0, 3, 1)  # gaps of about 11 m and 110 m
    one, other = graph.polygon_neighbours([shapely.box(0, 0, 1, 1), near, far])
    assert set(zip(one.tolist(), other.tolist(), strict=True)) == {(0, 1), (1, 0)}


def test_every_cell_has_a_self_loop_and_edges_are_sorted_by_receiver_then_sender():
    built = graph.build_graph(LINE, (np.array([0, 2]), np.array([1, 1])), np.zeros((3, 3), int))
    assert built["receivers"].tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert built["senders"].tolist() == [0, 1, 0, 1, 2, 1, 2]
    assert built["senders"].dtype == built["receivers"].dtype == np.int32


def test_features_are_kilometres_share_of_entries_and_nearness():
    transitions = np.zeros((3, 3), int)
    transitions[0, 2], transitions[1, 2], transitions[2, 2] = 30, 10, 999  # staying is not entering
    built = edges(graph.build_graph(LINE, (np.array([1]), np.array([2])), transitions))
    assert built[0, 2] == [2.0, 0.75, 0.0]  # 30 of 40 entries, 2 km away, no neighbour
    assert built[1, 2] == [1.0, 0.25, 1.0]
    assert built[2, 2] == [0.0, 0.0, 0.0]
    assert (2, 0) not in built  # nobody drove back


def test_rare_transitions_and_all_but_the_eight_strongest_senders_make_no_edge():
    position = np.arange(22.0).reshape(11, 2)
    transitions = np.zeros((11, 11), int)
    transitions[:10, 10] = [4, 20, 19, 18, 17, 16, 15, 14, 13, 13]  # sender 0 is rare, 8 and 9 tie for the last place
    linked = edges(graph.build_graph(position, NONE, transitions))
    assert sorted(sender for sender, receiver in linked if receiver == 10) == [1, 2, 3, 4, 5, 6, 7, 8, 10]


def test_nearest_neighbours_never_name_the_point_itself_even_among_equals():
    position = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [5.0, 0.0]])
    senders, receivers = graph.nearest_neighbours(position, count=2)
    assert (senders != receivers).all() and receivers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(senders[receivers == 0].tolist()) == {1, 2}


def test_the_busiest_squares_are_kept_and_ties_go_to_the_smaller_number():
    flow = pd.Series([5, 9, 5, 0, 7], index=[40, 30, 20, 10, 50])
    assert assemble.choose_squares(flow, 3).tolist() == [20, 30, 50]
    assert assemble.choose_squares(flow, None).tolist() == [20, 30, 40, 50]  # a square without flow is no cell


def span(*parts: tuple[int, int, int]) -> tuple[int, int]:
    """The span of runs of steps (first, last, points in each), in steps of a day."""
    step = np.concatenate([np.arange(first, last + 1) for first, last, _ in parts])
    points = np.concatenate([np.full(last + 1 - first, count) for first, last, count in parts])
    return assemble.recording_span(step, points, steps_per_day=1)


def test_few_points_a_week_away_are_strays_and_nothing_else_is():
    assert span((100, 199, 50)) == (100, 199)
    assert span((0, 0, 2), (100, 199, 50), (300, 300, 3)) == (100, 199)  # 5 of 5005 points are 0.1 %
    assert span((0, 0, 2), (100, 199, 50), (300, 300, 4)) == (100, 300)  # 6 are more: the larger end stays
    assert span((0, 0, 1), (2, 2, 1), (100, 199, 50)) == (100, 199)
    assert span((92, 92, 1), (100, 199, 50)) == (100, 199) and span((93, 93, 1), (100, 199, 50)) == (93, 199)
    assert span((0, 49, 50), (100, 100, 1), (150, 199, 50)) == (0, 199)  # an island in the middle costs nothing


def test_a_point_is_found_in_the_square_that_its_number_says():
    spec = CitySpec("test", "gps", "UTC", Box(10.0, 50.0, 10.05, 50.03), square_m=1000.0)
    assert (spec.columns, spec.rows) == (4, 4)  # 3.57 km and 3.34 km
    cells = assemble.square_cells(np.array([0, 6, 9]), spec)
    np.testing.assert_allclose(cells.position, [[500, 500], [2500, 1500], [1500, 2500]])
    find = assemble.cell_finder(cells, spec, None)
    assert find(cells.lonlat[:, 0], cells.lonlat[:, 1]).tolist() == [0, 1, 2]
    outside = np.array([[9.999, 50.001], [10.0501, 50.0], [10.02, 50.2], [10.02, 50.001]])  # the last: square not kept
    assert find(outside[:, 0], outside[:, 1]).tolist() == [-1] * 4
