"""Small pieces of HTML: sections, cards, foldable parts, and the project's own markdown tables."""

import html
import json
import re

BOLD = re.compile(r"\*\*(.+?)\*\*")
CODE = re.compile(r"`(.+?)`")


def section(place: str, title: str, content: str) -> str:
    """A part of the page that a link leads to."""
    return f'<section id="{place}"><h2>{html.escape(title)}</h2>{content}</section>'


def details(title: str, content: str) -> str:
    """A part that is folded until asked for."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def cards(items: list[tuple[str, str, str]]) -> str:
    """Name, value and comparison of each headline number."""
    made = [
        f'<div class="card"><div class="name">{html.escape(name)}</div><div class="value">{html.escape(value)}</div>'
        f'<div class="beside">{html.escape(beside)}</div></div>'
        for name, value, beside in items
    ]
    return f'<div class="cards">{"".join(made)}</div>'


def json_block(value: object) -> str:
    """JSON as text."""
    return f"<pre>{html.escape(json.dumps(value, indent=1, default=str))}</pre>"


def markdown(text: str) -> str:
    """Paragraphs and pipe tables, bold and code: what our tables use, and nothing else."""
    parts, table = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if table:
            parts.append(_table(table))
            table = []
        if line.strip():
            parts.append(f"<p>{_inline(line)}</p>")
    return "".join(parts)


def _table(lines: list[str]) -> str:
    head, _, *rows = [[_inline(cell.strip()) for cell in line.strip().strip("|").split("|")] for line in lines]
    cells = lambda row, tag: "".join(f"<{tag}>{cell}</{tag}>" for cell in row)  # noqa: E731
    filled = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{cells(head, "th")}</tr></thead><tbody>{filled}</tbody></table></div>'
    )


def _inline(text: str) -> str:
    return CODE.sub(r"<code>\1</code>", BOLD.sub(r"<b>\1</b>", html.escape(text)))
