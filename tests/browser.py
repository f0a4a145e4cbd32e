"""A real browser without a window, for tests that open a page."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WHY = "no chromium here; on Debian: apt-get install chromium"
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")


class Visit(NamedTuple):
    """What the browser made of a page."""

    dom: str
    console: list[str]


def visit(page: Path, script: str = "", budget_ms: int = 4000) -> Visit:
    """Opens a page with no network to reach, runs a script at its end, and returns the document and the console."""
    with tempfile.TemporaryDirectory() as profile:
        copy = Path(profile) / "page.html"
        copy.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
        argv = [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            *QUIET,
            f"--user-data-dir={profile}/profile",
        ]
        argv += ["--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"]
        argv += [f"--virtual-time-budget={budget_ms}", "--dump-dom", copy.as_uri()]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    return Visit(done.stdout, re.findall(r".*:CONSOLE.*", done.stderr))
