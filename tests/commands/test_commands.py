"""The command `stream-jax`: a list of commands, help that teaches, and the same options as always."""

import dataclasses
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from data.errors import DataError
from data.spark_etl.schema import CITIES
from experiments.cli import main, options

ROOT = Path(__file__).parents[2]


def stream_jax(*words: str) -> subprocess.CompletedProcess:
    program = "import sys; from experiments.cli.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *words], cwd=ROOT, capture_output=True, text=True)


def test_alone_it_lists_every_command_with_a_line(capsys):
    assert main.main([]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}" in said and command.says in said for name, command in main.COMMANDS.items())


def test_every_command_names_a_function_that_exists():
    for command in main.COMMANDS.values():
        assert callable(main.load(command.place)), command.place


@pytest.mark.parametrize("name", [name for name in main.COMMANDS if name != "download"])
def test_help_begins_with_what_it_does_and_examples(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main.load(main.COMMANDS[name].place)(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and said.startswith(f"usage: stream-jax {name}")
    assert said.index(f"\n  stream-jax {name}") < said.index("options")
    assert "(default: None)" not in said


@pytest.mark.parametrize("words", [["--version"], ["run", "--version"], ["tables", "--version"]])
def test_the_version_is_the_packages(words, capsys):
    try:
        assert main.main(words) == 0
    except SystemExit as ended:
        assert ended.code == 0
    assert capsys.readouterr().out == f"stream-jax {metadata.version('stream_jax')}\n"


def test_an_unknown_command_is_refused_with_the_nearest_one(capsys):
    assert main.main(["tabels"]) == main.FAILED
    assert "there is no command 'tabels'; did you mean tables?" in capsys.readouterr().err


def test_a_failing_command_says_one_sentence(monkeypatch, capsys):
    def refused(words):
        raise DataError("There is nothing; run something first.")

    monkeypatch.setattr(main, "load", lambda place: refused)
    assert main.start("tables", []) == main.FAILED
    assert capsys.readouterr().out.strip() == "error: There is nothing; run something first."


def test_the_help_of_run_loads_nothing_heavy():
    program = (
        "import sys; from experiments import run\ntry: run.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'jax', 'scipy', 'pandas', 'matplotlib', 'sumolib'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]" and "--dataset" in done.stdout


def test_an_option_that_does_not_exist_is_refused_with_code_two():
    done = stream_jax("run", "--datset", "porto")
    assert done.returncode == 2 and "--datset" in done.stderr


def test_a_choice_that_does_not_exist_is_refused_with_those_that_do():
    done = stream_jax("run", "--dataset", "prato")
    assert done.returncode == 2 and all(name in done.stderr for name in CITIES)


def test_many_values_follow_one_flag_and_the_stage_to_begin_with_is_called_from():
    args = options.parse(["--stage", "etl", "forecast", "--methods", "a", "b:c", "--levels", "heavy", "overload"])
    assert (args.stage, args.methods, args.levels) == (("etl", "forecast"), ("a", "b:c"), ("heavy", "overload"))
    assert options.parse(["--from", "detect"]).first == "detect"


def test_values_may_begin_with_a_minus_or_hold_equals_signs():
    args = options.parse(["--box=-8.7,41.1,-8.5,41.2", "--columns", "vehicle=id,time=ts"])
    assert args.box == "-8.7,41.1,-8.5,41.2" and args.columns == "vehicle=id,time=ts"
    assert options.parse(["--box", "-8.7,41.1,-8.5,41.2"]).box == args.box


def test_every_option_of_a_run_is_unset_by_default_or_has_a_value_that_is_shown():
    defaults = dataclasses.asdict(options.RunOptions())
    assert options.parse([]) == options.RunOptions()
    assert {name for name, value in defaults.items() if value not in (None, False)} == {
        *("dataset", "preset", "demand_factor", "time_format", "feature", "unit", "memory")
    }
