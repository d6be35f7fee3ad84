"""Parse the command line of ``railbus`` and run one subcommand."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, Final

COMMANDS: Final = {
    "up": "start everything on this machine and keep it running",
    "ask": "ask a question and stream the answer",
    "batch": "answer each prompt of a file once, even if services are killed during the run",
    "demo": "play examples of what can happen to an answer, beside its events on the log",
    "tail": "print the events on the log",
    "audit": "show what happened to a request, what its client saw, and how long each step took; check archives",
    "ledger": "show times and costs of requests, summed by tenant, class and model, and whether objectives were met",
    "topics": "list topics, partitions, records and retention",
    "acls": "print the commands that give each service its rights on Kafka",
    "dead": "list, show and replay records that could not be read",
    "policy": "check policies: lint, test, version",
    "plan": "compute latency budgets, ways to run a batch, and GPUs for a given number of users",
    "bench": "measure an engine with and without speculative decoding, and compare with predicted times",
    "tune": "try an engine's settings one at a time, and keep a setting only if measurements show a gain",
    "simulate": "run all services in virtual time, with faults drawn from a seed, and explain the first run that fails",
    "doctor": "list what is installed, what can be reached, and what is missing",
}

ON_KAFKA: Final = frozenset({"tail", "topics", "acls", "dead"})
"""Subcommands whose files are in ``services/cli/commands/kafka``."""

FIRST_STEP: Final = "`railbus up --ask` starts everything and asks a sample question"


def main(argv: Sequence[str] | None = None, interrupt_handler: Any = None) -> int:
    """Run one subcommand and return its exit code."""
    # interrupt_handler is the SIGINT handler with which the process started.
    given = list(sys.argv[1:] if argv is None else argv)
    with _silent_interrupts(signal.getsignal(signal.SIGINT) if interrupt_handler is None else interrupt_handler):
        from services.runtime.errors import UserError
        from services.runtime.logging import LEVEL_VARIABLE, configure_logging
        from services.runtime.process import EXIT_INTERRUPTED, EXIT_USER

        parser = _parser(given)
        if not given:
            sys.stderr.write(f"{parser.format_help()}\nrailbus: name a command; {FIRST_STEP}\n")
            return EXIT_USER
        args = parser.parse_args(given)
        command = _module(args.command)
    if not os.environ.get(LEVEL_VARIABLE, "").strip():
        os.environ[LEVEL_VARIABLE] = "WARNING"  # keeps logs away from the answer; services of `up` inherit it
    try:
        configure_logging()
        return int(command.run(args))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except UserError as error:
        sys.stderr.write(f"railbus {args.command}: {error}\n")
        return EXIT_USER
    except BrokenPipeError:
        # The program that reads the output has ended (`railbus tail | head`). Python would flush to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@contextmanager
def _silent_interrupts(handler: Any) -> Iterator[None]:
    if handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="railbus", description="Governed LLM answers, streamed over Kafka.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=about, description=f"railbus {name}: {about}.")
        if name in given:  # only the libraries of the given subcommand are imported
            _module(name).add_arguments(subparser)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata  # takes 36 ms; at the top it would delay the handling of Ctrl-C

        try:
            found = metadata.version("railbus")
        except metadata.PackageNotFoundError:
            found = "unknown: it runs from its sources and is not installed"
        print(f"railbus {found}")
        parser.exit()


def _module(name: str) -> ModuleType:
    folder = "services.cli.commands.kafka" if name in ON_KAFKA else "services.cli.commands"
    return import_module(f"{folder}.{name}")


if __name__ == "__main__":
    sys.exit(main())
