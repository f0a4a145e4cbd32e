"""How long a newcomer waits: the README's two commands in a fresh clone with a new environment and empty caches.

    python experiments/bench/fresh.py run test         what the README prints
    python experiments/bench/fresh.py run default      the same without `--preset smoke`: results worth reading

What is committed is cloned, nothing else. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
MINE = ("VIRTUAL_ENV", "PYTHONPATH", "JAX_COMPILATION_CACHE_DIR")


def commands() -> dict[str, list[str]]:
    """The pieces between the && of each command: two that install, then those that work."""
    lines = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    run, test = ([piece.strip() for piece in line.split("&&")] for line in lines)
    return {"run": run, "test": test, "default": [piece.replace(" --preset smoke", "") for piece in run]}


def measure(name: str, pieces: list[str], clone: Path) -> dict:
    """Seconds of installing and of the work in a clone; ends with the command's own words if it fails."""
    outer = {key: value for key, value in os.environ.items() if key not in MINE}
    env = outer | {"XDG_CACHE_HOME": str(clone.parent / f"cache-{name}")}
    spent, said = [], ""
    for piece in pieces:
        print(f"  {piece}", flush=True)
        start = time.perf_counter()
        done = subprocess.run(piece, shell=True, cwd=clone, env=env, capture_output=True, text=True)
        spent.append(time.perf_counter() - start)
        said = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        if done.returncode:
            sys.exit(f"`{piece}` ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    records = [json.loads(path.read_text())["seconds"] for path in clone.glob("runs/*/run.json") if name != "test"]
    newest = records[-1] if records else {}
    return {"command": name, "install_s": sum(spent[:2]), "work_s": sum(spent[2:]), "stages": newest, "said": said}


def main() -> None:
    """Measures each command in a clone of its own and appends one row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="+", choices=commands())
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench" / "fresh.jsonl")
    args = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    for name in args.commands:
        with tempfile.TemporaryDirectory(prefix="stream_jax-") as scratch:
            clone = Path(scratch) / "clone"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            row = {"bench": "fresh", "commit": commit, "machine": machine} | measure(name, commands()[name], clone)
        print(
            f"{name}: installing {row['install_s']:.0f} s, working {row['work_s']:.0f} s {row['stages'] or row['said']}"
        )
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
