"""Results rows to the paper's tables with columns «paper | ours», and to the blocks of pages.

A cell of ours that was not run is empty; a paper cell that cannot be true carries the number of its footnote.
"""

from pathlib import Path

from experiments.tables import (
    headline,
    ours,
    overview_tables,
    paper,
    readme_tables,
    resco_tables,
    road_tables,
    table_cells,
)

BLOCKS = {
    "headline": lambda folder: headline.render(ours.load(folder)),
    "overview": overview_tables.render,
    "forecasting": readme_tables.forecasting,
    "detection": readme_tables.detection,
    "control": readme_tables.control,
    "speed": readme_tables.speed,
    "road": road_tables.render,
    "resco": resco_tables.render,
    "paper": lambda folder: paper_tables(ours.load(folder)),
}  # what stands between `<!-- name: start -->` and `<!-- name: end -->`
ALL = "all"
ON_THE_ROAD = (
    "rl",
    "lyapunov",
    "covariance",
)  # driven by the synthetic city's demand unless run on another


def paper_tables(book: ours.Book, dataset: str = "tdrive", variant: str = "") -> str:
    """All tables of the paper as markdown, one after another."""
    return "\n".join(paper_table(name, book, dataset, variant) for name in paper.TABLES)


def paper_table(name: str, book: ours.Book, dataset: str = "tdrive", variant: str = "") -> str:
    """One table of the paper as markdown, beside what the results rows say."""
    table = paper.TABLES[name]
    dataset = "synthetic" if name in ON_THE_ROAD and (dataset, "control") not in book else dataset
    first, *columns = table.columns
    lines, used = [], set()
    for row in [*table.rows, *ours.others(name, book, dataset)]:
        cells = []
        for column in columns:
            asked = ours.query(name, row, column, dataset, variant)
            found = ours.answer(asked, book)
            used |= {(asked.dataset, asked.stage)} if found else set()
            cells += [paper_cell(name, row, column) if row in table.rows else "", our_cell(found)]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    head = [
        f"**{table.title}** (`{table.label}`; ours: {source(book, used)})",
        "",
        f"| {first} | " + " | ".join(f"{column}, paper | {column}, ours" for column in columns) + " |",
        "|---|" + "---|---|" * len(columns),
    ]
    notes = [f"[{number}] {doubt.reason}" for number, doubt in enumerate(table.doubts, start=1)]
    foot = ["Cannot be true: " + "; ".join(notes) + ".", ""] if notes else []
    return "\n".join([*head, *lines, "", *foot])


def paper_cell(name: str, row: str, column: str) -> str:
    """A printed number, with its spread and the footnotes that doubt it."""
    table = paper.TABLES[name]
    cell = table.rows[row][table.columns.index(column) - 1]
    if cell is None:
        return ""
    text = " ± ".join(f"{part:g}" for part in cell) if isinstance(cell, tuple) else cell
    text = text if isinstance(text, str) else f"{text:g}"
    return text + "".join(f" [{number}]" for number in paper.doubts(name, row, column))


def our_cell(found: ours.Answer | None) -> str:
    """A measured number, with the spread over seeds or the upper limit; empty when there is none."""
    if found is None:
        return ""
    text = table_cells.number(found.value)
    if found.spread is not None:
        text += f" ± {table_cells.number(found.spread)}"
    return text + (f" (≤ {table_cells.number(found.upper)})" if found.upper is not None else "")


def write(page: Path, folder: Path) -> None:
    """Renews every block of a page."""
    text = page.read_text()
    for name, render in BLOCKS.items():
        if shown(text, name) is not None:
            start, end = _markers(name)
            head, tail = text.split(start)[0], text.split(end)[1]
            text = f"{head}{start}\n{render(folder)}{end}{tail}"
    page.write_text(text)


def shown(text: str, name: str) -> str | None:
    """What a page has between a block's markers; None if it has no such block."""
    start, end = _markers(name)
    return text.split(start)[1].split(end)[0] if start in text else None


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}: start -->", f"<!-- {name}: end -->"


def source(book: ours.Book, used: set[tuple[str, str]]) -> str:
    """Which runs stand behind the numbers."""
    rows = [row for place in sorted(used) for row in book[place]]
    kinds = dict.fromkeys(
        f"{row['dataset']}, {row['data']} data, preset {row['preset']}" if "preset" in row else f"on {row['device']}"
        for row in rows
    )
    return "; ".join(kinds) or "not run"
