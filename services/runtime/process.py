"""How every process starts, stops and says what went wrong."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

import uvloop

from services.runtime.errors import UserError, leaves
from services.runtime.logging import logger, set_up

EXIT_CLEAN: Final = 0
EXIT_CRASH: Final = 1
EXIT_USER: Final = 2

GRACE_S: Final = 30.0
"""Longest time from the first signal to the end of the process."""


def run(main: Callable[[], Coroutine[Any, Any, None]], name: str) -> NoReturn:
    """Runs a service's main coroutine on uvloop and exits the process.

    The first SIGTERM or SIGINT cancels main, once; what main raises while it ends decides the exit code. Later signals
    are ignored, but the process is gone ``GRACE_S`` after the first.

    Raises:
        SystemExit: Always: 0 main ended or was asked to stop, 2 a user's mistake (one line, no traceback), 1 a crash.
    """
    try:
        set_up()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_stopped(main, name))
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        sys.exit(_report(error, name))
    sys.exit(EXIT_CLEAN)


async def _until_stopped(main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    task = asyncio.ensure_future(main())
    loop = asyncio.get_running_loop()
    asked = False

    def stop(number: int) -> None:
        nonlocal asked
        if asked:
            return
        asked = True
        logger(name).info("%s: stopping", signal.Signals(number).name)
        loop.call_later(GRACE_S, _give_up, name)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise RuntimeError("main was cancelled, though nobody asked the process to stop") from None


def _give_up(name: str) -> None:
    logger(name).error("still not stopped after %.0f s: ending now", GRACE_S)
    logging.shutdown()
    import os

    os._exit(EXIT_CRASH)


def _report(error: Exception, name: str) -> int:
    mistakes = leaves(error)
    if all(isinstance(leaf, UserError) for leaf in mistakes):
        sys.stderr.write(f"railbus {name}: {mistakes[0]}\n")
        return EXIT_USER
    logger(name).critical("crashed: %s", mistakes[0], exc_info=error)
    return EXIT_CRASH
