"""What CRFN-BY reads: who speaks when, how wide, from which step on, and not while the whole city breaks away."""

import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.flows import preparation
from stream_jax.flows.context import Neighbours
from stream_jax.flows.preparation import Factors, Parts, Record
from stream_jax.types import Forecast

CELLS, HORIZON, STEPS, DAY, WINDOW = 4, 2, 400, 24, 6
PARTS = Parts(train=(0, 200), val=(200, 300), window=WINDOW, horizon=HORIZON, steps_per_day=DAY)
ORIGINS = np.arange(WINDOW - 1, STEPS - HORIZON)
CLOCK = jnp.zeros((STEPS, 4))
NEIGHBOURS = Neighbours(jnp.arange(CELLS)[:, None], jnp.zeros((CELLS, 1), bool))
ONES = Factors(jnp.ones((HORIZON, CELLS)), jnp.ones((HORIZON, CELLS)))


def recorded(errors=0.0, outage=()):
    """Forecasts of 100 vehicles with sigma 10; the truth is off by `errors` [L, N], and 0 in outages."""
    values = np.broadcast_to(100.0 + np.asarray(errors), (STEPS, CELLS)).copy()
    values[list(outage)] = 0.0
    shape = (len(ORIGINS), HORIZON, CELLS)
    target = values[ORIGINS[:, None] + 1 + np.arange(HORIZON)]
    forecast = Forecast(jnp.full(shape, 100.0), jnp.full(shape, 10.0))
    return Record(forecast, jnp.asarray(target, jnp.float32), jnp.ones(shape, bool), ORIGINS)


def test_the_anchor_speaks_from_origins_of_the_train_part_only():
    shape = (len(ORIGINS), HORIZON, CELLS)
    anchor, network = (Forecast(jnp.full(shape, one), jnp.full(shape, one)) for one in (1.0, 2.0))
    said = preparation.spoken(anchor, network, ORIGINS, PARTS)
    np.testing.assert_array_equal(said.mean[:, 0, 0], np.where(ORIGINS < 200, 1.0, 2.0))


def test_factors_come_from_the_train_part_for_the_anchor_and_from_val_for_the_network():
    rng = np.random.default_rng(0)
    # In units of sigma = 10 errors have deviation 3 on train, 0.5 on val and 20 where nothing may be learned.
    size = np.where(np.arange(STEPS) < 200, 30.0, np.where(np.arange(STEPS) < 300, 5.0, 200.0))
    size[: preparation.warm_up(PARTS)] = 200.0
    record = recorded(size[:, None] * rng.normal(size=(STEPS, CELLS)))
    found = preparation.factors(record, STEPS, PARTS, ConformalConfig(num_clusters=1, short_clusters=1))
    # A 90 % quantile of some 600 errors: five standard errors of 0.06 relative.
    np.testing.assert_allclose(found.anchor, 3.0, rtol=0.3)
    np.testing.assert_allclose(found.network, 0.5, rtol=0.3)


def test_nothing_is_tested_before_the_warm_up_is_over():
    assert preparation.warm_up(PARTS) == DAY + HORIZON
    assert preparation.warm_up(PARTS._replace(train=(0, 30))) == 15  # hardly longer than a day: its middle
    prepared = preparation.prepare(recorded(), ONES, CLOCK, NEIGHBOURS, PARTS)
    assert prepared.time[0] == WINDOW + HORIZON - 1
    np.testing.assert_array_equal(prepared.rows.observed.all(1), prepared.time >= DAY + HORIZON)


def test_an_outage_and_the_hour_after_it_belong_to_nobody():
    # Forecasts here do not react, so the hour after is fine, and only the steps themselves break away.
    prepared = preparation.prepare(recorded(outage=(250, 251)), ONES, CLOCK, NEIGHBOURS, PARTS)
    assert prepared.time[prepared.outage].tolist() == [250, 251]
    assert not np.asarray(prepared.rows.observed)[prepared.outage].any()


def test_residuals_are_divided_by_the_factor_of_whoever_spoke():
    factor = Factors(2.0 * ONES.anchor, 4.0 * ONES.network)
    plain, divided = (
        preparation.prepare(recorded(errors=1e-3), one, CLOCK, NEIGHBOURS, PARTS) for one in (ONES, factor)
    )
    # Scales follow the residuals, which are next to nothing in both, so that they agree but for the factor.
    time = plain.time
    ratio = np.asarray(plain.rows.unit / divided.rows.unit)[:, 0, 0]
    np.testing.assert_allclose(ratio[(time > 30) & (time <= 200)], 2.0, rtol=1e-3)
    np.testing.assert_allclose(ratio[time > 200 + HORIZON], 4.0, rtol=1e-3)


def test_a_detector_learns_from_the_last_week_of_train_and_from_val():
    prepared = preparation.prepare(recorded(), ONES, CLOCK, NEIGHBOURS, PARTS)
    fitting = preparation.fitting_rows(prepared, PARTS)
    assert (fitting.time[0], fitting.time[-1]) == (200 - preparation.FIT_DAYS * DAY, 299)
    assert fitting.held_out == pytest.approx(100 / len(fitting.time))
    assert len(fitting.rows.z) == len(fitting.time)


def test_a_part_has_the_origins_whose_history_and_targets_lie_in_it():
    found = preparation.part_of(recorded(), PARTS.val, PARTS)
    assert (found.origins[0], found.origins[-1]) == (200 + WINDOW - 1, 300 - HORIZON - 1)
    assert len(found.target) == len(found.origins)
