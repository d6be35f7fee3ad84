"""``railbus``, or ``python -m services.cli``: one subcommand a file in ``services/cli/commands``."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Final

from services.runtime.errors import UserError
from services.runtime.logging import LEVEL_VARIABLE, set_up
from services.runtime.process import EXIT_USER

COMMANDS: Final = {
    "up": "start everything here and keep it running",
    "ask": "ask a question and stream the answer",
    "demo": "show what can happen to an answer, beside its log",
    "tail": "show what is on the log",
    "topics": "list the topics",
    "dead": "list, show and put back what nobody could read",
    "policy": "check policies: lint, test, version",
    "plan": "what latency costs and what buys it: floors, speculation, deadlines, governance",
    "bench": "measure an engine: plain against speculative, predicted against measured",
    "doctor": "say what is installed, what can be reached, what is missing",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when it was done, 2 for the user's mistake; others are the subcommand's."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = _parser(given).parse_args(given)
    os.environ.setdefault(LEVEL_VARIABLE, "WARNING")  # a terminal is for the answer; services under `up` inherit it
    try:
        set_up()
        return int(_module(args.command).run(args))
    except UserError as error:
        sys.stderr.write(f"railbus {args.command}: {error}\n")
        return EXIT_USER
    except BrokenPipeError:
        # The reader of our output has gone (`railbus tail | head`): nothing more to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="railbus", description="Governed LLM answers, streamed over Kafka.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=about, description=f"railbus {name}: {about}.")
        if name in given:  # its libraries are loaded only where it runs
            _module(name).add(subparser)
    return parser


def _module(name: str) -> ModuleType:
    return import_module(f"services.cli.commands.{name}")


if __name__ == "__main__":
    sys.exit(main())
