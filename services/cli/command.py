"""What subcommands share: how coroutines run, and where the tree is."""

import argparse
import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from services.bus import BusSettings
from services.cli.instance import find, state_dir
from services.runtime.errors import first_of
from services.runtime.settings import load

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it."""


def run_coroutine(main: Coroutine[Any, Any, int]) -> int:
    """Runs a subcommand's coroutine to its exit code; of several errors at once, the first that a person can mend.

    Raises:
        UserError: Also where a task group wrapped it.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ExceptionGroup as group:
        raise first_of(group) from None


def add_kafka(parser: argparse.ArgumentParser) -> None:
    """The flag that names a broker."""
    parser.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        help="the broker (default: that of the tree running here, else RAILBUS_KAFKA_BOOTSTRAP, else 127.0.0.1:9092)",
    )


def bus_settings(kafka: str | None) -> BusSettings:
    """The broker: the flag, else the tree that runs here, else the environment.

    Raises:
        UserError: A setting is wrong.
    """
    settings = load(BusSettings)
    if kafka is not None:
        return dataclasses.replace(settings, bootstrap=kafka)
    found = find(state_dir())
    if found is not None:
        return dataclasses.replace(settings, bootstrap=found.kafka, partitions=found.partitions)
    return settings


def edge_url(url: str | None) -> str:
    """The edge: the flag, else the tree that runs here, else the default port."""
    if url is not None:
        return url.rstrip("/")
    found = find(state_dir())
    return found.url if found is not None else "http://127.0.0.1:8080"
