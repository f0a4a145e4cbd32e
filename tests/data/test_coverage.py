"""Coverage areas: shares of cells are right for squares, polygons and points, and no flow inside the box is lost."""

import numpy as np
import pytest

from data.coverage import core_box, coverage, intersection_flow
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
