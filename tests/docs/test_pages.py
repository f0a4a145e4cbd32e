"""The pages are plain: short sentences, short table cells, short paragraphs. Code and generated tables are left out."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_SENTENCE, MEAN_SENTENCE, LONGEST_CELL, LONGEST_PARAGRAPH = 35, 20, 25, 100  # words; 100 words are five lines
BY_HAND = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = sorted({*BY_HAND, *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))})


def prose(text: str) -> str:
    """A page without code blocks, generated blocks, includes and the targets of links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"<!-- (\w+): start -->.*?<!-- \1: end -->", "", text, flags=re.S)
    text = re.sub(r"^(:::|--8<--|    options|      members).*$", "", text, flags=re.M)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def paragraphs(text: str) -> list[str]:
    """Paragraphs and single list entries, without headings and tables."""
    lines = ["" if line.startswith(("|", "#")) else line for line in prose(text).splitlines()]
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", "\n".join(lines))
    return [re.sub(r"^\s*(?:-|\d+\.) ", "", block).strip() for block in blocks if block.strip()]


def sentences(paragraph: str) -> list[str]:
    """A paragraph cut where a sentence ends: a full stop or question mark before a space."""
    return [part for part in re.split(r"(?<=[.!?])\*{0,2}\)?\s+", paragraph) if part]


def words(text: str) -> int:
    """Words with a letter or digit in them; a piece of code is one word."""
    return len(re.findall(r"\S*\w\S*", re.sub(r"`[^`]*`", "code", text)))


def cells(text: str) -> list[str]:
    rows = [line for line in prose(text).splitlines() if line.startswith("|")]
    return [cell for row in rows for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_of_a_page_is_long(page):
    found = [part for block in paragraphs((ROOT / page).read_text()) for part in sentences(block)]
    assert [part for part in found if words(part) > LONGEST_SENTENCE] == []
    assert sum(map(words, found)) <= MEAN_SENTENCE * max(len(found), 1)


@pytest.mark.parametrize("page", PAGES)
def test_no_table_cell_of_a_page_is_long(page):
    assert [cell for cell in cells((ROOT / page).read_text()) if words(cell) > LONGEST_CELL] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_paragraph_of_a_page_is_long(page):
    assert [block for block in paragraphs((ROOT / page).read_text()) if words(block) > LONGEST_PARAGRAPH] == []


def test_a_long_sentence_and_a_long_cell_are_found():
    # 36 words in one sentence; a code span counts as one word, and what is generated is not counted.
    long = "word " * 35 + "`a b c`."
    assert words(sentences(long)[0]) == 36
    assert sentences("One. Two: three? Four.") == ["One.", "Two: three?", "Four."]
    assert words(cells("| " + "x " * 26 + "|")[0]) == 26
    assert prose("<!-- t: start -->\n" + long + "\n<!-- t: end -->").strip() == ""


def test_the_readme_fits_on_three_screens():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150  # of 50 lines each
