"""How every command reads its command line: a dataclass of options, its help with examples, and --version."""

import dataclasses
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

Options = TypeVar("Options")
UNSET: Any = tyro.conf.arg(help_behavior_hint="")  # the help text itself says what happens without the option
SETTINGS = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)


def read(kind: type[Options], description: str, words: Sequence[str] | None, name: str) -> Options:
    """The options that a command line gives; exits with code 2 and a sentence where it gives none.

    Args:
        kind: a frozen dataclass, or one whose fields are dataclasses: each becomes a group of the help.
        description: what the command does, with examples; stands at the top of the help.
        words: of the command line; those of this process if None.
        name: of the command after `stream-jax`.
    """
    words = list(sys.argv[1:] if words is None else words)
    if "--version" in words:
        print(f"stream-jax {importlib.metadata.version('stream_jax')}")
        raise SystemExit(0)
    return tyro.cli(kind, prog=f"stream-jax {name}", description=description, args=words, config=SETTINGS)


def merged(groups: Any) -> dict[str, Any]:
    """The options of all groups by name."""
    return {
        option.name: getattr(group, option.name)
        for group in (getattr(groups, field.name) for field in dataclasses.fields(groups))
        for option in dataclasses.fields(group)
    }
