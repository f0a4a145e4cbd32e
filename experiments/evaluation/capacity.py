"""Safe capacity: the highest demand at which a controller keeps all limits in at least 95 % of the hours.

A search finds it by bisection over rates of one fixed grid. Every controller drives the same hours at every rate, so
hours are what is resampled. The share of safe hours can only fall with demand, so it is fitted by a curve that never
rises (isotonic regression over the logarithm of demand), and capacity is where this curve crosses 95 %.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import scipy.stats

TARGET = 0.95  # share of hours that have to be safe
FINENESS = 1.03  # ratio of neighbouring rates
ANCHOR = 1000.0  # a rate of the grid: searches between other ends meet the same rates and share their episodes
STRIDE = 4  # rates that are left out on the way to one that bounds the interval
DRAWS = 2000
CONFIDENCE = 0.95
UNSEEN = 0.5  # weight of an hour that is always safe and of one that never is: Jeffreys' prior of a share
ROUNDING = 1e-9


class Curve(NamedTuple):
    """What the hours of one controller came to, at every rate that was driven."""

    rates: np.ndarray  # [K] vehicles per hour, rising
    safe: np.ndarray  # [H, K] 1 where the hour kept all limits


class Estimate(NamedTuple):
    """A number with its interval; the interval is open where the hours driven do not bound it."""

    value: float | str  # text where it lies outside the rates driven, such as "below 1500"
    lower: float
    upper: float


class Between(NamedTuple):
    """Where a curve crosses the target: a point, or all that is known about it."""

    low: np.ndarray  # [B] 0 where the lowest rate is not safe
    high: np.ndarray  # [B] infinite where the highest is


def grid(low: float, high: float) -> list[int]:
    """Rates between two ends, 3 % apart and the same whatever the ends."""
    first, last = (math.log(end / ANCHOR) / math.log(FINENESS) for end in (low, high))
    steps = range(math.ceil(first - ROUNDING), math.floor(last + ROUNDING) + 1)
    return [round(ANCHOR * FINENESS**step) for step in steps]


def search(drive: Callable[[int], np.ndarray], rates: list[int]) -> Curve:
    """Bisects for the highest rate at which enough hours are safe, then drives what its interval needs.

    Above, that is rates until one is clearly too high; below, until there is one at which all hours are safe.

    Args:
        drive: whether each hour was safe at a rate, [H].
        rates: rising.
    """
    found: dict[int, np.ndarray] = {}  # by place

    def share(place: int) -> float:
        found[place] = np.asarray(drive(rates[place]), float)
        return float(found[place].mean())

    low, high = -1, len(rates)  # the last place known to be safe enough, the first known not to be
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share(middle) >= TARGET - ROUNDING else (low, middle)
    while max(found) < len(rates) - 1 and _may_be_safe(found[max(found)]):
        share(min(max(found) + STRIDE, len(rates) - 1))
    while min(found) > 0 and found[min(found)].mean() < 1:
        share(max(min(found) - STRIDE, 0))
    driven = sorted(found)
    return Curve(np.array([rates[place] for place in driven], float), np.stack([found[at] for at in driven], axis=1))


def _may_be_safe(safe: np.ndarray) -> bool:
    """Whether more than one in a hundred resamples of these hours are safe enough. Args: safe: [H]."""
    needed = math.ceil(TARGET * len(safe) - ROUNDING)
    return bool(scipy.stats.binom.sf(needed - 1, len(safe), safe.mean()) > 0.01)


def bisections(rates: list[int]) -> int:
    """How many rates a bisection drives at most."""
    return math.ceil(math.log2(len(rates) + 1))


def never_rising(share: np.ndarray) -> np.ndarray:
    """The closest curves that never rise, by least squares. Args: share: [B, K], each a curve over rates. [B, K]

    At each rate the smallest, over where a block may begin, of the largest block mean, over where it may end.
    """
    count = share.shape[1]
    total = np.concatenate([np.zeros((len(share), 1)), share.cumsum(axis=1)], axis=1)
    fit = np.empty_like(share)
    for place in range(count):
        ends = np.arange(place + 1, count + 1)
        means = [(total[:, ends] - total[:, [start]]) / (ends - start) for start in range(place + 1)]  # each [B, E]
        fit[:, place] = np.min([mean.max(axis=1) for mean in means], axis=0)
    return fit


def crossing(share: np.ndarray, rates: np.ndarray) -> Between:
    """Where curves cross the target, between two rates on a straight line over log demand. Args: share: [B, K]."""
    fit = never_rising(share)
    safe_rates = (fit >= TARGET - ROUNDING).sum(axis=1)  # [B]
    low, high = np.zeros(len(fit)), np.full(len(fit), np.inf)
    high[safe_rates == 0], low[safe_rates == len(rates)] = rates[0], rates[-1]
    row = np.flatnonzero((safe_rates > 0) & (safe_rates < len(rates)))
    last = safe_rates[row] - 1
    above, below = fit[row, last], fit[row, last + 1]
    part = ((above - TARGET) / (above - below)).clip(0.0, 1.0)
    low[row] = high[row] = np.exp((1 - part) * np.log(rates[last]) + part * np.log(rates[last + 1]))
    return Between(low, high)


def estimate(curve: Curve, seed: int = 0) -> Estimate:
    """Safe capacity with its 95 % interval: a Bayesian bootstrap over hours (Rubin, 1981).

    Hours that were driven cannot show how bad those are that were not: if all of them are safe, so is every resample.
    So half an hour that is never safe and half one that always is are drawn with them. Without these, the interval
    held the truth in 7 of 10 simulated sets of 20 hours. With them it does in 19 of 20, but fewer than about 50 hours
    do not bound capacity from below.
    """
    hours, count = curve.safe.shape
    never_and_always = np.stack([np.zeros(count), np.ones(count)])
    weight = np.random.default_rng(seed).gamma(np.array([1.0] * hours + [UNSEEN] * 2), size=(DRAWS, hours + 2))
    share = weight / weight.sum(axis=1, keepdims=True) @ np.concatenate([curve.safe, never_and_always])
    lower, upper = _quantiles(crossing(share, curve.rates))
    value = point(curve)
    said: float | str = float(value.low[0])
    if value.low[0] != value.high[0]:
        said = f"below {curve.rates[0]:g}" if value.low[0] == 0 else f"above {curve.rates[-1]:g}"
    return Estimate(said, min(lower, value.low[0]), max(upper, value.high[0]))


def difference(curve: Curve, other: Curve, seed: int = 0) -> Estimate:
    """By how many percent the first capacity is above the second, over the same hours, drawn again for both at once.

    An hour that neither has driven says nothing about which of them is ahead, so none is made up here. In simulated
    sets the interval held the truth in 87 to 91 of 100 with 20 hours and in 90 to 95 with 60.
    """
    hours = len(curve.safe)
    weight = np.random.default_rng(seed).multinomial(hours, np.full(hours, 1 / hours), DRAWS) / hours
    drawn = _ratio(*(crossing(weight @ one.safe, one.rates) for one in (curve, other)))
    value = _ratio(point(curve), point(other))
    lower, upper = _quantiles(drawn)
    bounds = [_percent(min(lower, value.low[0])), _percent(max(upper, value.high[0]))]
    said: float | str = _percent(value.low[0])
    if value.low[0] != value.high[0]:
        said = _open(_percent(value.low[0]), _percent(value.high[0]))
    return Estimate(said, *bounds)


def differences(curves: Mapping[str, Curve]) -> dict[tuple[str, str], Estimate]:
    """Of every controller from every other one."""
    return {(a, b): difference(curves[a], curves[b]) for a in curves for b in curves if a != b}


def point(curve: Curve) -> Between:
    """Where the curve of all hours crosses the target."""
    return crossing(curve.safe.mean(axis=0, keepdims=True), curve.rates)


def _ratio(one: Between, other: Between) -> Between:
    """Each a range of what the ratio may be; nothing is known of it if both lie beyond the same end."""
    low = one.low / np.where(other.high > 0, other.high, 1.0)
    high = np.where(other.low > 0, one.high / np.where(other.low > 0, other.low, 1.0), np.inf)
    return Between(low, high)


def _quantiles(drawn: Between) -> tuple[float, float]:
    """Bounds of the interval; a draw that is not known exactly counts with the end that widens it."""
    tail = (1 - CONFIDENCE) / 2
    lower = np.quantile(drawn.low, tail, method="inverted_cdf")
    upper = np.quantile(drawn.high, 1 - tail, method="inverted_cdf")
    return float(lower), float(upper)


def _percent(ratio: float) -> float:
    return float(100.0 * (ratio - 1.0))


def _open(low: float, high: float) -> str:
    """In words what is known of a difference that is no single number; -100 % and infinity bound nothing."""
    return f"above {low:.3g}" if low > -100.0 else f"below {high:.3g}" if high < math.inf else "unknown"
