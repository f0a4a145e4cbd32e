"""Puts 90 % intervals around forecasts of any model, here around "the same as yesterday".

  python examples/intervals_around_any_forecaster.py

Only forecasts and observations are used, so any model can take the place of the one here. The series changes in the
middle. Fixed intervals then hold too little; intervals that adapt hold 90 % again after a while.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.conformal import intervals
from stream_jax.types import Forecast

DAY, CELLS = 96, 10  # steps of 15 minutes in a day; cells of the city
CALIBRATION, TEST = 7 * DAY, 14 * DAY  # steps
CHANGE = 7 * DAY  # this far into the test steps, the noise doubles


def counts() -> np.ndarray:
    """Three weeks and a day of synthetic counts [steps, cells] with a daily rhythm."""
    rng = np.random.default_rng(0)
    step = np.arange(DAY + CALIBRATION + TEST)
    usual = 100.0 + 60.0 * np.sin(2 * np.pi * step / DAY)[:, None] * rng.uniform(0.5, 1.0, CELLS)
    noise = np.where(step < DAY + CALIBRATION + CHANGE, 8.0, 16.0)[:, None]
    return np.maximum(usual + noise * rng.normal(size=usual.shape), 0.0)


def your_forecaster(history: np.ndarray) -> np.ndarray:
    """Put your model here: any forecast of the steps after the first day. This one repeats yesterday."""
    return history[:-DAY]


def coverage(issued: intervals.OnlineResult, target: Array) -> tuple[float, float]:
    """Share of observations inside their interval in the week before the change, and in the last five days."""
    inside = intervals.contains(issued.interval, target)
    return float(inside[:CHANGE].mean()), float(inside[CHANGE + 2 * DAY :].mean())


def main() -> None:
    """Calibrates on a week, then runs over two more weeks with and without adapting."""
    series = counts()
    # The library's axes are [origins, horizons, cells]; here is one horizon.
    mean = jnp.asarray(your_forecaster(series), jnp.float32)[:, None]
    observed = jnp.asarray(series[DAY:], jnp.float32)[:, None]
    # If your model says how sure it is, give its standard deviation here. A constant will do.
    made = Forecast(mean, jnp.ones_like(mean))
    is_known = jnp.ones(observed.shape, bool)  # False where an observation is missing
    cluster = jnp.zeros(CELLS, jnp.int32)  # all cells share one radius

    for method in ("static", "aci"):
        cfg = intervals.ConformalConfig(target=0.1, num_clusters=1, method=method)
        before = Forecast(made.mean[:CALIBRATION], made.sigma[:CALIBRATION])
        after = Forecast(made.mean[CALIBRATION:], made.sigma[CALIBRATION:])
        state = intervals.calibrate(before, observed[:CALIBRATION], is_known[:CALIBRATION], cluster, cfg)
        target = observed[CALIBRATION:]
        _, online = intervals.run_online(state, after, target, is_known[CALIBRATION:], cfg)
        first, last = coverage(online, target)
        print(f"{method:6s}: {first:.1%} inside before the noise doubles, {last:.1%} in the last five days")


if __name__ == "__main__":
    main()
