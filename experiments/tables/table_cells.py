"""How a number and a mean over rows are written in tables."""

import numpy as np

from experiments.evaluation import results


def number(value: float) -> str:
    """Three decimals below ten, fewer above."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def measured(rows: list[dict], is_share: bool = False) -> str:
    """Mean of the rows' values with half a 95 % interval over them; a share with its own interval."""
    values = [row["value"] for row in rows if not isinstance(row["value"], str)]
    if not values:
        return ""
    mean = np.mean(values)
    if is_share:
        text = f"{mean:.0%}".replace("%", " %")
        bounds = [(row["lower"], row["upper"]) for row in rows if "lower" in row]
        low, high = np.mean(bounds, axis=0) if bounds else (None, None)
        return text if low is None else f"{text} [{low:.0%}, {high:.0%}]".replace("%]", " %]").replace("%,", " %,")
    half = results.half_width(values)
    return number(mean) + (f" ± {number(half)}" if half else "")
