"""Coverage areas: shares of cells are right for squares, polygons and points, and no flow inside the box is lost."""

import numpy as np
import pytest

from data.coverage import (
    box_around,
    core_box,
    coverage,
    coverage_around,
    intersection_flow,
    laid_over,
    lies_within,
)
from data.errors import DataError


def squares(side: int) -> dict[str, np.ndarray]:
    """side x side unit squares, row by row from the south-west corner at (0, 0)."""
    row, column = np.divmod(np.arange(side * side), side)
    corner = np.stack([column, row], axis=1).astype(float)
    ring = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    outline = (corner[:, None] + ring).reshape(-1, 2)
    return {"lonlat": corner + 0.5, "outline": outline, "outline_start": np.arange(side * side + 1) * 4}


def test_a_cell_cut_by_a_border_is_shared_by_the_part_on_each_side():
    # Uniform flow on 4 x 4 squares: centres 0.5 .. 3.5, a quarter of the flow each; the steps' middles stand at
    # 1/8, 3/8, 5/8, 7/8, so the levels 1/4 and 3/4 fall at 1.0 and 3.0: the box is the four middle squares.
    found = coverage(squares(4), np.ones(16), size=1, core_share=0.5)
    np.testing.assert_allclose(found.box, [1, 1, 3, 3])
    expected = np.zeros((4, 4))
    expected[1:3, 1:3] = 1.0
    np.testing.assert_allclose(found.weights[0].reshape(4, 4), expected)
    # Levels 1/8 and 7/8 stop at the outer centres: corner squares are cut to a quarter, border squares to a half.
    wide = coverage(squares(4), np.ones(16), size=1, core_share=0.75).weights[0].reshape(4, 4)
    np.testing.assert_allclose(wide[0], [0.25, 0.5, 0.5, 0.25])
    np.testing.assert_allclose(wide[1], [0.5, 1.0, 1.0, 0.5])


def test_areas_are_numbered_row_by_row_from_the_south_west():
    found = coverage(squares(4), np.ones(16), size=2, core_share=0.5)
    assert [int(row.argmax()) for row in found.weights] == [5, 6, 9, 10]


def test_a_cell_inside_the_box_is_shared_out_completely_and_its_flow_kept():
    rng = np.random.default_rng(0)
    geometry, mean = squares(9), np.ones(81)
    found = coverage(geometry, mean, size=4)
    corners = geometry["outline"].reshape(81, 4, 2)
    is_inside = ((corners >= found.box[:2]) & (corners <= found.box[2:])).all(axis=(1, 2))
    assert is_inside.any() and not is_inside.all()
    np.testing.assert_allclose(found.weights.sum(axis=0)[is_inside], 1.0)
    flow = np.where(is_inside, rng.poisson(9.0, (5, 81)), 0.0)
    by_area = intersection_flow(found.weights, flow, np.ones_like(flow, bool))
    np.testing.assert_allclose(by_area.sum(axis=1), flow.sum(axis=1))


def test_a_polygon_is_shared_by_area():
    # The triangle (0,0), (2,0), (0,2) has area 2; the unit square from the origin holds 1 of it, half.
    geometry = squares(2)
    geometry["outline"] = np.concatenate([[[0, 0], [2, 0], [0, 2]], geometry["outline"]])
    geometry["outline_start"] = np.concatenate([[0], geometry["outline_start"] + 3])
    geometry["lonlat"] = np.concatenate([[[0.6, 0.6]], geometry["lonlat"]])
    flow = np.array([0.0, 1, 1, 1, 1])
    found = coverage(geometry, flow, size=1, core_share=0.9999)
    low, high = found.box[:2], found.box[2:]  # 0.5 .. 1.5 along both axes
    np.testing.assert_allclose([*low, *high], [0.5, 0.5, 1.5, 1.5])
    # Inside the box the triangle keeps what lies under x + y = 2: the unit square minus the corner beyond, 1 - 1/2.
    np.testing.assert_allclose(found.weights[0, 0], 0.5 / 2)


def test_a_sensor_without_area_belongs_to_the_area_that_holds_it():
    lonlat = np.array([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0], [4.0, 4.0]])
    geometry = {"lonlat": lonlat, "outline": lonlat, "outline_start": np.arange(5)}
    found = coverage(geometry, np.ones(4), size=2, core_share=0.7)
    np.testing.assert_array_equal(found.weights[0], [0, 1, 0, 0])
    np.testing.assert_array_equal(found.weights[3], [0, 0, 1, 0])


def test_the_box_follows_the_flow():
    geometry = squares(4)
    flow = np.where(geometry["lonlat"][:, 0] < 2, 9.0, 1.0)
    uniform, west = core_box(geometry["lonlat"], np.ones(16)), core_box(geometry["lonlat"], flow)
    assert west[2] < uniform[2] and west[0] < uniform[0]
    np.testing.assert_allclose(west[[1, 3]], uniform[[1, 3]])


def test_a_missing_reading_counts_as_its_cells_mean():
    values, observed = np.array([[4.0], [0.0], [8.0]]), np.array([[True], [False], [True]])
    flow = intersection_flow(np.ones((1, 1)), values, observed)
    np.testing.assert_allclose(flow[:, 0], [4.0, 6.0, 8.0])


def test_a_city_without_flow_is_refused():
    with pytest.raises(DataError, match="no flow"):
        coverage(squares(2), np.zeros(4), size=2)


def middles(box, size):
    """Centres of size x size equal areas, row by row."""
    row, column = np.divmod(np.arange(size * size), size)
    return box[:2] + (np.stack([column, row], axis=1) + 0.5) / size * (box[2:] - box[:2])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_regular_grid_of_signals_has_the_areas_of_the_grid(size):
    geometry, flow = squares(9), np.random.default_rng(0).uniform(1, 5, 81)
    grid = coverage(geometry, flow, size)
    position = middles(np.array([300.0, 300.0, 1500.0, 1500.0]), size)  # metres of the network, not of the city
    places = laid_over(grid.box, position)
    np.testing.assert_allclose(places, middles(grid.box, size))
    np.testing.assert_allclose(coverage_around(geometry, flow, places, grid.box).weights, grid.weights, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_signals_anywhere_share_out_every_cell_inside_the_box_without_loss(count):
    geometry, flow, box = squares(9), np.ones(81), np.array([1.3, 2.1, 7.6, 8.2])
    places = box[:2] + np.random.default_rng(count).uniform(0.01, 0.99, (count, 2)) * (box[2:] - box[:2])
    found = coverage_around(geometry, flow, places, box)
    assert found.weights.shape == (count, 81) and found.weights.min() >= 0
    np.testing.assert_allclose(found.weights.sum(axis=0), coverage_of_box(geometry, box), atol=1e-6)


def coverage_of_box(geometry, box):
    """Share of unit squares inside a box: the product of what each axis leaves."""
    corner = geometry["lonlat"] - 0.5
    return np.clip(np.minimum(corner + 1, box[2:]) - np.maximum(corner, box[:2]), 0, None).prod(axis=1)


def test_signals_at_one_place_share_its_area():
    geometry, box = squares(4), np.array([0.0, 0.0, 4.0, 4.0])
    places = np.array([[1.0, 2.0], [3.0, 2.0], [1.0, 2.0 + 1e-12]])
    west, east, again = coverage_around(geometry, np.ones(16), places, box).weights
    np.testing.assert_allclose(west, again)
    np.testing.assert_allclose(west.reshape(4, 4), [[0.5, 0.5, 0, 0]] * 4, atol=1e-9)
    np.testing.assert_allclose(east.reshape(4, 4), [[0, 0, 1, 1]] * 4, atol=1e-9)


def test_a_sensor_without_area_belongs_to_the_nearest_signal_if_it_is_inside():
    lonlat = np.array([[0.5, 0.5], [3.0, 1.0], [9.0, 0.5]])
    geometry = {"lonlat": lonlat, "outline": lonlat, "outline_start": np.arange(4)}
    found = coverage_around(geometry, np.ones(3), np.array([[1.0, 1.0], [3.0, 1.0]]), np.array([0.0, 0.0, 4.0, 2.0]))
    np.testing.assert_array_equal(found.weights, [[1, 0, 0], [0, 1, 0]])


def test_nearest_means_on_the_ground_and_not_in_degrees():
    # At 60 degrees a degree of longitude is half as long: from (0.5, 60) the first signal is 0.25 away, the other 0.35.
    lonlat = np.array([[0.5, 60.0]])
    geometry = {"lonlat": lonlat, "outline": lonlat, "outline_start": np.arange(2)}
    places = np.array([[0.0, 60.0], [0.5, 60.35]])
    found = coverage_around(geometry, np.ones(1), places, np.array([-1.0, 59.0, 1.0, 61.0]))
    np.testing.assert_array_equal(found.weights, [[1], [0]])


def test_the_box_around_real_places_leaves_half_a_spacing_at_each_side():
    row, column = np.divmod(np.arange(12), 4)
    places = np.stack([10 + 0.02 * column, 60 + 0.01 * row], axis=1)  # on the ground 0.01 degrees apart along both axes
    np.testing.assert_allclose(box_around(places), [9.99, 59.995, 10.07, 60.025], rtol=1e-5)
    street = box_around(np.array([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0]]))
    np.testing.assert_allclose(street, [-0.05, -0.05, 0.25, 0.05])


def test_real_places_count_only_inside_the_recording():
    assert lies_within(np.array([[0.1, 0.1], [3.9, 3.9]]), squares(4))
    assert not lies_within(np.array([[0.1, 0.1], [4.1, 3.9]]), squares(4))
    assert not lies_within(np.array([[2.0, 2.0], [2.0, 2.0]]), squares(4))


def test_signals_where_nothing_drives_are_refused():
    with pytest.raises(DataError, match="No cell with flow"):
        coverage_around(squares(2), np.ones(4), np.array([[5.0, 5.0]]), np.array([4.0, 4.0, 6.0, 6.0]))
