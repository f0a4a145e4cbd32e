"""Prints tables from results rows: `python experiments/tables.py --table forecasting`, or `stream-jax tables`."""

import sys

from experiments.cli.main import start

if __name__ == "__main__":
    sys.exit(start("tables"))
