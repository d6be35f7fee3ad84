"""Start and stop a service process, and report its errors."""

import asyncio
import ctypes
import gc
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import uvloop

from services.runtime.errors import UnavailableError, UserError
from services.runtime.logging import configure_logging, logger
from services.runtime.task_groups import first_error, leaf_errors

EXIT_CLEAN: Final = 0
EXIT_CRASH: Final = 1
EXIT_USER: Final = 2
EXIT_INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells report it."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""``_M_TRIM_THRESHOLD`` and ``_M_MMAP_THRESHOLD`` are parameter numbers of glibc's ``mallopt(3)``."""

MMAP_BYTES: Final = 65_536
TRIM_BYTES: Final = 131_072

GARBAGE_OBJECTS: Final = 2_000
"""Number of new objects after which Python collects garbage. In a burst, a request creates some hundred objects."""

GRACE_S: Final = 30.0
"""Maximum time from the first signal, or the error that ends ``main``, to the end of the process, in seconds."""


def run(main: Callable[[], Coroutine[Any, Any, None]], name: str) -> NoReturn:
    """Run the main coroutine of a service on uvloop, then exit the process.

    The first SIGTERM or SIGINT cancels ``main``. ``GRACE_S`` later, the process exits in any case.

    Raises:
        SystemExit: Always. The code is 2 after a ``UserError``, 1 after any other error, otherwise 0.
    """
    try:
        configure_logging()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_stopped(main, name))
    except Exception as error:  # noqa: BLE001 - the last place that can report it
        sys.exit(_report(error, name))
    sys.exit(EXIT_CLEAN)


def say_ready(text: str) -> None:
    """Print ``ready`` and this text on one line. The parent process waits for this line."""
    gc.collect()
    gc.freeze()  # loaded modules are never freed, and scanning them delays tokens by a tenth of a second
    gc.set_threshold(GARBAGE_OBJECTS)
    sys.stdout.write(f"ready {text}\n")
    sys.stdout.flush()


@contextmanager
def passing_sigterm_to(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass SIGTERM on to a child process while the body of the ``with`` statement runs.

    Without this, SIGTERM would end this process alone, and the child would go on.

    Yield a list. If SIGTERM came, the list has its number.
    """
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        process.terminate()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def return_large_blocks() -> bool:
    """Make the memory allocator return large freed blocks to the operating system.

    Return false if the allocator cannot be configured.
    """
    try:
        # By default, once a large block was freed, glibc keeps freed blocks of up to 32 MiB for reuse, and small blocks
        # between them prevent their return to the system.
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))


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
            raise RuntimeError("main was cancelled without a signal") from None
    except Exception as error:
        # The process waits for its threads, and one may hang, such as at a storage that does not answer.
        loop.call_later(GRACE_S, _give_up, name, error)
        raise


def _give_up(name: str, error: Exception | None = None) -> None:
    code = EXIT_CRASH if error is None else _report(error, name)
    logger(name).error("did not stop within %.0f s: ending now", GRACE_S)
    logging.shutdown()
    import os

    os._exit(code)


def _report(error: Exception, name: str) -> int:
    errors = leaf_errors(error)
    if all(isinstance(leaf, UserError | UnavailableError) for leaf in errors):
        first = first_error(error)
        sys.stderr.write(f"railbus {name}: {first}\n")
        return EXIT_USER if isinstance(first, UserError) else EXIT_CRASH
    logger(name).critical("crashed: %s", errors[0], exc_info=error)
    return EXIT_CRASH
