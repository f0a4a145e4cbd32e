"""The errata name every error once, and only tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "errata.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def defined(path: str) -> set[str]:
    """Test functions of a file, those in classes too."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists():
    missing = [f"{path}::{name}" for path, name in NAMED if not (ROOT / path).exists() or name not in defined(path)]
    assert not missing


def test_there_are_sixty_one_errors_and_each_names_a_test():
    entries = re.split(r"^\*\*(\d+)\. ", PAGE, flags=re.M)[1:]
    numbers, texts = [int(number) for number in entries[0::2]], entries[1::2]
    assert numbers == list(range(1, 62))
    assert all(re.search(r"Tests?: `tests/", text) for text in texts)


def test_nothing_in_the_errata_points_to_a_test_in_another_way():
    assert PAGE.count("::") == len(NAMED) + 1  # and once in the sentence that says how to run one
