import argparse
import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from schemas.ids import is_uuid7, time_ms
from schemas.topics import TOPIC_NAMED, Topic
from services.bus import AtTime, BusSettings
from services.cli.time_spec import StartPosition, parse_time_spec
from services.cli.tree.state_file import find_running_tree, state_dir
from services.runtime.clock import now_ms
from services.runtime.errors import UserError
from services.runtime.process import EXIT_INTERRUPTED
from services.runtime.settings import is_utf8, load_settings
from services.runtime.task_groups import first_error

CONNECT_TIMEOUT_S: Final = 15.0
"""Maximum time to wait for the broker's first answer."""

MAX_CLOCK_SKEW_MS: Final = 60_000
"""Maximum time by which the clock that made a request id may be ahead of the broker's clock."""

MAX_INT: Final = 2**63 - 1
"""Maximum absolute value of whole numbers that are sent as JSON."""


def run_coroutine(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine and return its exit code; 130 after Ctrl-C.

    If the coroutine raises an exception group, raise one error of the group: the one that ``first_error`` returns.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ExceptionGroup as group:
        raise first_error(group) from None


def text(given: str) -> str:
    """Check that an argument is UTF-8, and return the argument. Use this function as ``type`` of ``add_argument``.

    Raises:
        argparse.ArgumentTypeError: The argument is not UTF-8.
    """
    if not is_utf8(given):
        raise argparse.ArgumentTypeError("must be UTF-8 text")
    return given


def whole_number(given: str) -> int:
    """Parse a whole number that is sent to a service. Use this function as ``type`` of ``add_argument``.

    Raises:
        argparse.ArgumentTypeError: The argument is not a whole number, or does not fit into 64 bits.
    """
    try:
        value = int(given)
    except ValueError:
        value = MAX_INT + 1
    if abs(value) > MAX_INT:
        raise argparse.ArgumentTypeError(f"{given[:64]!r}: must be a whole number within {-MAX_INT} and {MAX_INT}")
    return value


def number(given: str) -> float:
    """Parse a finite number. Use this function as ``type`` of ``add_argument``.

    Raises:
        argparse.ArgumentTypeError: The argument is not a finite number.
    """
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):  # JSON has no such numbers; they would be sent as null, which means the default
        raise argparse.ArgumentTypeError(f"{given[:64]!r}: must be a number")
    return value


def add_kafka_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        help="address of the broker (default: that of the running `railbus up`, else $RAILBUS_KAFKA_BOOTSTRAP, else"
        " 127.0.0.1:9092)",
    )


def bus_settings(kafka: str | None) -> BusSettings:
    """Return the Kafka settings.

    The broker is the first of these that exists: ``kafka``, the broker of the running ``railbus up``, the broker in
    the environment.

    Raises:
        UserError: A setting is invalid.
    """
    settings = load_settings(BusSettings)
    if kafka is not None:
        return with_broker(settings, kafka)
    found = find_running_tree(state_dir())
    if found is not None:
        return dataclasses.replace(settings, bootstrap=found.kafka, partitions=found.partitions)
    return settings


def with_broker(settings: BusSettings, kafka: str) -> BusSettings:
    try:
        return dataclasses.replace(settings, bootstrap=kafka)
    except UserError as error:  # its message names the variable instead of the flag
        raise UserError(str(error).replace("RAILBUS_KAFKA_BOOTSTRAP=", "--kafka ")) from None


def check_writable(flag: str, path: Path) -> None:
    """Check that the file ``path`` can be written. Commands call this before a measurement that takes long.

    Raises:
        UserError: The file cannot be written. The message names ``flag``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("ab"):  # an earlier result is kept
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be written ({error.strerror})") from None


def edge_url(url: str | None) -> str:
    """Return ``url``, else the address of the running ``railbus up``, else ``http://127.0.0.1:8080``."""
    if url is not None:
        return url.rstrip("/")
    found = find_running_tree(state_dir())
    return found.url if found is not None else "http://127.0.0.1:8080"


@asynccontextmanager
async def reaching_broker(
    settings: BusSettings, remedy: str = "start it, or name another with --kafka"
) -> AsyncIterator[None]:
    """Limit the time of the ``async with`` block to ``CONNECT_TIMEOUT_S``.

    Raises:
        UserError: The block took longer. The message ends with ``remedy``.
    """
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            yield
    except TimeoutError:
        raise UserError(f"the broker at {settings.bootstrap} does not answer: {remedy}") from None


def start_position(text: str) -> StartPosition:
    try:
        return parse_time_spec(text, now_ms())
    except ValueError as error:
        raise UserError(f"--from {error}") from None


def request_start(request_id: str) -> AtTime:
    """Return a start position that is before all records of the request.

    It is the time in the request id minus ``MAX_CLOCK_SKEW_MS``.
    """
    return AtTime(max(0, time_ms(request_id) - MAX_CLOCK_SKEW_MS))


def topic_by_name(text: str) -> Topic:
    """Return the topic with this name. The prefix ``railbus.`` is optional.

    Raises:
        UserError: There is no such topic.
    """
    topic = TOPIC_NAMED.get(text) or TOPIC_NAMED.get(f"railbus.{text}")
    if topic is None:
        raise UserError(f"--topic {text[:64]!r}: must be one of {', '.join(TOPIC_NAMED)}")
    return topic


def check_request_id(text: str | None) -> None:
    if text is not None and not is_uuid7(text):
        raise UserError(f"--request {text[:64]!r}: must be a UUIDv7 in lower case, as `railbus ask` prints it")
