"""The scripts in examples/ run as a newcomer would run them, and print what their text promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


def test_intervals_hold_again_after_a_change_only_if_they_adapt():
    (fixed, adapted) = run("intervals_around_any_forecaster").stdout.splitlines()
    # Both hold 90 % at first. The noise doubles: a Gaussian interval of 1.645 sd then holds 2 Phi(0.82) - 1 = 59 %.
    assert fixed.startswith("static") and percentages(fixed) == pytest.approx([90.0, 59.0], abs=2.0)
    assert adapted.startswith("aci") and percentages(adapted) == pytest.approx([90.0, 90.0], abs=2.0)


def test_the_procedures_keep_the_false_discovery_rate_and_a_threshold_does_not():
    _, threshold, bh, by = run("fdr_on_your_own_scores").stdout.splitlines()
    # 190 normal sensors at 5 % are 9.5 false reports beside 10 true ones: 49 % of the sum, a little less on average.
    assert percentages(threshold)[0] == pytest.approx(48.0, abs=3.0)
    assert percentages(bh)[0] == pytest.approx(4.75, abs=1.0)  # 5 % times the share of normal sensors
    assert percentages(by)[0] < percentages(bh)[0]


def test_the_town_is_driven_by_two_plans_with_the_same_traffic():
    town, default, shorter = run("your_sumo_network").stdout.splitlines()
    assert town == "7 signals, 2 of them with the usual eight phases"
    assert default.startswith("default plan") and shorter.startswith("shorter greens")
    assert default.split()[-1] == shorter.split()[-1]  # as many vehicles


def test_a_network_that_is_none_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "not.net.xml").write_text("<net/>")
    told = run("your_sumo_network", str(tmp_path / "not.net.xml"))
    assert told.returncode != 0 and "Traceback" not in told.stderr and len(told.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_table_of_positions_becomes_forecasts_with_intervals():
    told = run("csv_to_forecasts")
    assert told.returncode == 0, told.stderr
    assert "positions read" in told.stdout and told.stdout.strip().endswith("Data: synthetic.")
    assert len(re.findall(r"in \d+ min: +[\d.]+, interval \[", told.stdout)) == 4
    (coverage,) = percentages(told.stdout)
    assert 80.0 < coverage < 99.0  # 90 % is aimed at; one test day of 16 cells is a small sample


def test_prices_learned_on_a_compiled_road_shorten_queues_in_sumo():
    told = run("learn_on_a_compiled_road", "--rounds", "8")
    assert told.returncode == 0, told.stderr
    before, after = (float(queue) for queue in re.findall(r"in SUMO: mean queue +([\d.]+)", told.stdout))
    assert after < before


def test_no_example_needs_the_experiments():
    assert len(EXAMPLES) == 5
    assert [
        path.name for path in EXAMPLES if "experiments" in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.M)
    ] == []
