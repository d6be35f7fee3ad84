"""vLLM's processes end with the one that owns them, however that ends: nothing else would free the GPU's memory.

vLLM's computing processes end with the one that schedules, but that one outlives its parent when it is killed, and
holds the weights. So the computing ones watch their owner, and take the scheduling one with them.
"""

import os
import select
import threading
from typing import Final, Self

OWNER: Final = "ENGINE_OWNER_PID"
"""Variable of the environment: the process that owns the engine. No setting: those are kept with a bench's results."""


def claim() -> None:
    """This process owns the engines started from now on."""
    os.environ[OWNER] = str(os.getpid())


def follow() -> None:
    """Has this process end as soon as its owner has; does nothing without one."""
    owner = os.environ.get(OWNER)
    if owner is None:
        return
    try:
        watched = os.pidfd_open(int(owner))
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_outlive, args=(watched,), name="owner", daemon=True).start()


def _outlive(watched: int) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    os._exit(1)


class OwnedWorker:
    """Adds nothing to vLLM's worker but that it ends with its owner. To be given as ``worker_extension_cls``."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """The worker."""
        follow()
        return super().__new__(cls)
