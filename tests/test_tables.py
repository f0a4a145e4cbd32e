"""The README's numbers are those of the committed results rows."""

from pathlib import Path

from experiments import results, tables

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_exactly_what_the_results_rows_say():
    readme = (ROOT / "README.md").read_text()
    shown = readme.split(tables.START)[1].split(tables.END)[0].strip()
    assert shown == tables.render(ROOT / "results").strip(), "run: python experiments/tables.py --write README.md"


def test_the_best_mean_is_bold_and_the_spread_is_over_seeds(tmp_path):
    common = {"dataset": "d", "data": "synthetic", "preset": "smoke", "device": "cpu", "fold": "all", "data_hash": "h"}
    common |= {"stage": "forecast"}
    rows = [
        common | {"method": method, "seed": seed, "metric": metric, "value": value}
        for metric in (*tables.FORECAST, "noise_floor")
        for method, seed, value in (("ref", 0, 0.5), ("ours", 0, 0.3), ("ours", 1, 0.5))
    ]
    results.write_rows(tmp_path / "d" / "forecast.jsonl", rows)
    page = tables.render(tmp_path)
    # Mean 0.4, standard deviation of two values 0.2 apart with one degree of freedom: 0.2 / sqrt(2) = 0.141.
    assert "**0.400 ± 0.141**" in page and "| ref | 1 | 0.500 |" in page
    assert "synthetic data" in page
