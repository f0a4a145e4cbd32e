"""One command from raw recordings to results: `python experiments/run.py --dataset porto`."""

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from data.errors import DataError
from experiments import detect_stage, forecast_stage, options, stages

FAILED = 2
RUN = {"etl": stages.etl, "forecast": forecast_stage.forecast, "detect": detect_stage.detect}


def main(argv: list[str] | None = None) -> int:
    """Runs the stages in order; returns the exit code."""
    args = options.parser().parse_args(argv)
    out = args.out or Path("runs") / f"{args.dataset}-{args.preset}"
    console = Console(stderr=False)
    try:
        out.mkdir(parents=True, exist_ok=True)
        forecast_stage.check_methods(args.methods)
        for name in options.STAGES:
            if name in args.stage:
                RUN[name](args, out, console)
    except DataError as error:
        if args.debug:
            raise
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return FAILED
    except OSError as error:
        if args.debug:
            raise
        sentence = f"{error.strerror}: {error.filename}; choose another --out."
        console.print(f"[bold red]error:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("Stopped; run the same command to go on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
