"""Entry point of the command line."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from trainkit.cli import ALIASES, COMMANDS, HELP, Command
from trainkit.errors import ConfigError, TrainkitError, did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 if the command failed, or 130 after Ctrl-C.

    Args:
        arguments: words after the program's name; None means the arguments of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # characters that stdout can't encode are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        named = COMMANDS.find(words[0]) if words and not words[0].startswith("-") else None
        if named is None:
            if words and not words[0].startswith("-") and (hint := did_you_mean(words[0], COMMANDS.names())):
                raise ConfigError(f"{words[0]!r} is not a command.{hint}")
            parser = _overview()
            parser.parse_args([word for word in words if word != "help"])
            parser.print_help()
            return 0
        command: Command = named()
        parser = argparse.ArgumentParser(prog=f"trainkit {words[0]}", description=f"{command.help}.")
        command.add_arguments(parser)
        return command.run(parser.parse_args(words[1:]))
    except TrainkitError as error:
        sys.stderr.write(f"trainkit: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the program that reads the output has ended
        sys.stderr.close()
        return 1


def _overview() -> argparse.ArgumentParser:
    """Return the parser for `--help`, `--version` and unknown commands; it lists other packages' commands."""
    parser = argparse.ArgumentParser(
        prog="trainkit",
        description="Show and control your experiments and your sessions on this machine.",
    )
    # The package is already imported, so reading its version needs no import.
    version = sys.modules["trainkit"].__version__
    parser.add_argument("--version", action="version", version=f"trainkit {version}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, words in sorted(HELP.items()):
        commands.add_parser(name, help=words, aliases=ALIASES.get(name, ()))
    found: dict[type[Command], list[str]] = {}
    for name in sorted({*COMMANDS.names()}.difference(COMMANDS.own_names())):
        try:
            found.setdefault(COMMANDS.get(name), []).append(name)
        except ConfigError as error:  # a broken command must not hide the other commands
            commands.add_parser(name, help=str(error).replace("%", "%%"))
    for command, names in found.items():
        # An alias that belongs to a different command, such as trainkit's own "ls", is not listed, because
        # argparse refuses duplicates.
        first, *further = sorted(names, key=command.aliases.__contains__)
        commands.add_parser(first, help=command.help.replace("%", "%%"), aliases=further)
    return parser
