"""End vLLM's processes when the generator ends, even if the generator is killed."""

import os
import select
import threading
import time
from pathlib import Path
from typing import Final, Self

PARENT_PID_VARIABLE: Final = "ENGINE_OWNER_PID"
"""Environment variable with the generator's process id. It has no prefix ``RAILBUS_``, because benchmark results
contain all variables with that prefix."""

EXIT_WITH_PARENT_WORKER: Final = "services.generator.engines.vllm.exit_with_parent.ExitWithParentWorker"
"""Value for vLLM's ``worker_extension_cls``: vLLM instantiates the class in every worker process."""

POLL_INTERVAL_S: Final = 1.0
"""Seconds between two checks whether the parent lives, if ``pidfd_open`` is not available."""


def mark_as_parent() -> None:
    """Store this process's id in an environment variable. ``watch_parent`` reads it in vLLM's processes."""
    os.environ[PARENT_PID_VARIABLE] = str(os.getpid())


def watch_parent() -> None:
    """Start a thread that ends this process when the process that called ``mark_as_parent`` ends."""
    parent = os.environ.get(PARENT_PID_VARIABLE)
    if parent is not None:
        threading.Thread(target=_exit_with, args=(int(parent),), name="parent", daemon=True).start()


def _exit_with(parent: int) -> None:
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # some sandboxes do not allow ``pidfd_open``
        while Path(f"/proc/{parent}").exists():
            time.sleep(POLL_INTERVAL_S)
    else:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    os._exit(1)


class ExitWithParentWorker:
    """A vLLM worker extension that ends the worker's process when the generator ends."""

    # vLLM's scheduler process survives if the generator is killed, and then the weights stay in GPU memory. If a worker
    # process exits, the scheduler exits too.
    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        watch_parent()
        return super().__new__(cls)
