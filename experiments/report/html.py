"""The report page's HTML: its template, foldable parts, and the project's own markdown tables."""

import html
import json
from importlib import resources

import jinja2
from markdown_it import MarkdownIt

PAGE = resources.files("experiments.report") / "page"
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def page(**parts: object) -> str:
    """The whole page; text is escaped, and what the template marks as safe is HTML already."""
    return jinja2.Environment(autoescape=True).from_string((PAGE / "template.html").read_text()).render(parts)


def details(title: str, content: str) -> str:
    """A part that is folded until asked for."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def json_block(value: object) -> str:
    """JSON as text."""
    return f"<pre>{html.escape(json.dumps(value, indent=1, default=str))}</pre>"


def markdown(text: str) -> str:
    """Markdown with tables, which can be scrolled sideways on a narrow screen."""
    made = MARKDOWN.render(text).replace(">\n<", "><")
    return made.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
