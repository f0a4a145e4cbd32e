"""A method is a file that ends in a record, and a line of its dict: help, stages and tables find it there."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.evaluation import results
from experiments.methods import catalogue
from experiments.methods.method import Method
from experiments.stages import agents, detectors, forecasting
from experiments.tables import ours, paper

ROOT = Path(__file__).parents[2]
KINDS = {
    "FORECASTERS": catalogue.FORECASTERS,
    "DETECTORS": catalogue.DETECTORS,
    "CONTROLLERS": catalogue.CONTROLLERS,
    "LEARNERS": catalogue.LEARNERS,
}
# A table of several cities has the city before the method.
ROWS = {row.split(", ")[-1] for table in paper.TABLES.values() for row in table.rows} | {
    row for table in paper.TABLES.values() for row in table.rows
}
ADDED = """
from experiments.methods import catalogue
from experiments.methods.forecasting import persistence
persistence.LAST_WEEK = persistence.METHOD._replace(
    name="last_week",
    variants={"twice": {"history": 24}},
    paper_label={"STGCN + CP": "last_week:twice"},
    tables={"forecasting": ("last_week",)},
)
catalogue.FORECASTERS["last_week"] = "forecasting.persistence:LAST_WEEK"
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_leads_to_a_record_of_that_name(kind):
    for name, one in catalogue.records(KINDS[kind]).items():
        assert isinstance(one, Method) and one.name == name
        assert set(one.paper_label) <= ROWS


def test_no_two_methods_answer_the_same_row_of_the_paper():
    for kind, names in (("forecast", ours.FORECASTERS), ("detect", ours.DETECTORS), ("control", ours.CONTROLLERS)):
        placed = {"forecast": ("FORECASTERS",), "detect": ("DETECTORS",), "control": ("CONTROLLERS", "LEARNERS")}[kind]
        records = [one for part in placed for one in catalogue.records(KINDS[part]).values()]
        records += [catalogue.record(catalogue.OUR_DETECTOR)] if kind == "detect" else []
        assert sum(len(one.paper_label) for one in records) == len(names)


def test_what_can_be_asked_for_is_what_records_name():
    assert {"stid:relative", "pu_gat_plus:mse", "pu_gat_ensemble"} <= set(forecasting.METHODS)
    assert {"pca:counts", "flow_clipped"} <= set(detectors.NAMES) and "gaussian_fitted:counts" not in detectors.NAMES
    assert {"ppo:following", "lycon_wrl_plus:soft_0.1"} <= agents.VARIANTS.keys()
    assert agents.COVARIANCES == {"lycon_wrl_plus:diagonal": "diagonal", "lycon_wrl_plus:learned": "empirical"}


def test_a_method_that_needs_a_missing_package_is_left_out_of_tables(monkeypatch):
    assert "stgcn" in catalogue.for_table(catalogue.FORECASTERS, "forecasting")
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    assert "catboost" not in catalogue.for_table(catalogue.FORECASTERS, "forecasting")
    assert catalogue.for_table(catalogue.FORECASTERS, None) is None


def said(code: str, folder: Path) -> str:
    words = [sys.executable, "-c", ADDED + code, str(folder)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_one_record_puts_a_new_method_into_the_help():
    text = said("from experiments.run import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass", ROOT)
    assert "last_week" in " ".join(text.split())


def test_one_record_puts_a_new_method_into_the_stage_and_the_papers_table(tmp_path):
    row = {"dataset": "tdrive", "data": "synthetic", "preset": "smoke", "data_hash": "h", "stage": "forecast"}
    row |= {"fold": "all", "method": "last_week:twice", "seed": 0, "metric": "nrmse_h4", "value": 0.625}
    results.write_rows(tmp_path / "tdrive" / "forecast.jsonl", [row])
    text = said(
        "import sys\nfrom pathlib import Path\n"
        "from experiments.stages import forecasting\nassert 'last_week:twice' in forecasting.METHODS\n"
        "assert 'last_week' in catalogue.for_table(catalogue.FORECASTERS, 'forecasting')\n"
        "catalogue.FORECASTERS.pop('stgcn')\n"
        "from experiments.tables import ours, render\n"
        "print(render.paper_table('forecasting', ours.load(Path(sys.argv[1])), 'tdrive'))",
        tmp_path,
    )
    (line,) = [line for line in text.splitlines() if line.startswith("| STGCN + CP |")]
    assert "| 0.625 |" in line
