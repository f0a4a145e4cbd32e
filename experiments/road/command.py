"""The command `stream-jax road`: fits compiled roads to SUMO, and judges them against it."""

import sys
from collections.abc import Sequence

from experiments.road import fit, judge

PARTS = {"fit": fit.main, "judge": judge.main}
HELP = """\
usage: stream-jax road {fit,judge} [OPTIONS]

A compiled road is a road of signals as one JAX function; docs/concepts/road.md tells more.

  fit     fit how its vehicles drive to training hours in SUMO
  judge   compare it with SUMO on held-out hours under many controllers

  stream-jax road fit --out runs/synthetic-default
  stream-jax road judge --out runs/synthetic-default

Each part tells its options: stream-jax road fit --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the part that the first word names; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in PARTS:
        return PARTS[words[0]](words[1:])
    if words and words[0] in ("-h", "--help"):
        print(HELP, end="")
        raise SystemExit(0)
    print(f"error: say what to do: stream-jax road {' or '.join(PARTS)}", file=sys.stderr)
    return 2
