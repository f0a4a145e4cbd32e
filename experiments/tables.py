"""Results rows to tables: the paper's with columns «paper | ours», the README's headline, and all of ours.

  python experiments/tables.py --table forecasting      one table, or all of them with --table all
  python experiments/tables.py --write README.md docs/results/*.md   the blocks between their markers, tested to be so
  python experiments/tables.py --dataset synthetic --curves docs/learning_curves.png     how controllers learned

A cell of ours that was not run is empty; a paper cell that cannot be true carries the number of its footnote.
"""

import argparse
from pathlib import Path

from experiments.evaluation import results
from experiments.report import control_figures
from experiments.tables import ours, paper, readme_tables
from experiments.tables.render import ALL, paper_table, paper_tables, write


def main() -> None:
    """Prints tables, or writes the README's into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--dataset", default="tdrive", help="whose rows stand beside the paper's T-Drive")
    parser.add_argument(
        "--variant", help="of the paper's cities, in tables that name them: twin for results/<city>-twin"
    )
    parser.add_argument("--table", choices=(*paper.TABLES, ALL), help="a table of the paper")
    parser.add_argument("--write", type=Path, nargs="+", help="pages with markers")
    parser.add_argument("--curves", type=Path, metavar="PNG", help="draws the dataset's learning curves of control")
    args = parser.parse_args()
    if args.table:
        book = ours.load(args.results)
        variant = f"-{args.variant}" if args.variant else ""
        told = (book, args.dataset, variant)
        print(paper_tables(*told) if args.table == ALL else paper_table(args.table, *told))
    elif args.curves:
        rows = results.read_rows(args.results / args.dataset / "control.jsonl")
        control_figures.learning_curves([row for row in rows if "network" not in row]).savefig(args.curves, dpi=130)
    elif args.write:
        for page in args.write:
            write(page, args.results)
    else:
        print(readme_tables.render(args.results))


if __name__ == "__main__":
    main()
