"""Golden files: rendered tables, published weights and a drive stay what they were, whatever is moved around them.

`python -m tests.test_golden` writes the golden files anew; a change that means to change them says why.
"""

import hashlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.stages import agents, final_controllers, learners
from experiments.tables import headline, ours, overview_tables, paper, readme_tables
from experiments.tables import render as commands
from sim.demand import DEMAND_LEVELS
from stream_jax.system import open_system

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"
CHECKPOINT = ROOT / "checkpoints" / "synthetic"
CONTROLLERS = ROOT / "results" / "synthetic" / "controllers"


def paper_tables(dataset: str, variant: str = "") -> str:
    """All tables of the paper with our rows of one dataset beside them."""
    book = ours.load(ROOT / "results")
    return "\n".join(commands.paper_table(name, book, dataset, variant) for name in paper.TABLES)


TABLES = {
    "paper_tdrive.md": lambda: paper_tables("tdrive"),
    "paper_synthetic.md": lambda: paper_tables("synthetic"),
    "paper_twins.md": lambda: paper_tables("tdrive", "-twin"),
    "headline.md": lambda: headline.render(ours.load(ROOT / "results")),
    "overview.md": lambda: overview_tables.render(ROOT / "results"),
    "results.md": lambda: readme_tables.render(ROOT / "results"),
}


def digest(tree: object) -> str:
    """One hash of the arrays of a pytree, whatever their names and order."""
    leaves = (np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(tree))
    facts = sorted(f"{leaf.dtype} {leaf.size} {hashlib.sha256(leaf.tobytes()).hexdigest()}" for leaf in leaves)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def published_controllers() -> dict[str, str]:
    """The weights of every published controller, read as a run reads them."""
    adjacency, found = jnp.zeros((16, 16)), {}
    for name in agents.VARIANTS:
        cfg = agents.agent_config(name, "default", DEMAND_LEVELS["heavy"])
        kind = learners.kind_of(name)
        blank = kind.weights(kind.blank(adjacency, cfg))
        for seed in range(3):
            path = final_controllers.file_of(CONTROLLERS, name, seed)
            if path.exists():
                weights = final_controllers.read(path, blank, kind.described(cfg)).weights
                found[path.name] = digest(weights)
    return found


def checkpoint_digest() -> str:
    """The arrays of the published system."""
    system = open_system(CHECKPOINT)
    return digest((system.params, system.conformal))


@pytest.mark.parametrize("name", TABLES)
def test_a_rendered_table_is_what_it_was(name):
    assert TABLES[name]() == (GOLDEN / name).read_text()


def test_published_controllers_read_the_same_weights():
    found = published_controllers()
    assert len(found) == len(list(CONTROLLERS.glob("*.npz")))
    assert found == json.loads((GOLDEN / "controllers.json").read_text())


def test_the_published_system_reads_the_same_weights():
    assert checkpoint_digest() == json.loads((GOLDEN / "checkpoint.json").read_text())


def main() -> None:
    """Writes the golden files."""
    GOLDEN.mkdir(exist_ok=True)
    for name, render in TABLES.items():
        (GOLDEN / name).write_text(render())
    (GOLDEN / "controllers.json").write_text(json.dumps(published_controllers(), indent=1) + "\n")
    (GOLDEN / "checkpoint.json").write_text(json.dumps(checkpoint_digest()) + "\n")


if __name__ == "__main__":
    main()
