"""vLLM's processes end with the one that owns them, however that ends: nothing else would free the GPU's memory.

vLLM's computing processes end with the one that schedules, but that one outlives its parent when it is killed, and
holds the weights. So the computing ones watch their owner, and take the scheduling one with them.
"""

import os
import select
import threading
import time
from pathlib import Path
from typing import Final, Self

OWNER: Final = "ENGINE_OWNER_PID"
"""Variable of the environment: the process that owns the engine. No setting: those are kept with a bench's results."""

OWNED: Final = "services.generator.engines.vllm_owner.OwnedWorker"
"""To be given to vLLM as ``worker_extension_cls``: it makes one in every process that computes."""

LOOK_S: Final = 1.0
"""Between two looks at the owner, where the kernel does not tell."""


def claim() -> None:
    """This process owns the engines started from now on."""
    os.environ[OWNER] = str(os.getpid())


def follow() -> None:
    """Has this process end as soon as its owner has; does nothing without one."""
    owner = os.environ.get(OWNER)
    if owner is not None:
        threading.Thread(target=_end_with, args=(int(owner),), name="owner", daemon=True).start()


def _end_with(owner: int) -> None:
    try:
        ended = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # some sandboxes have no such call
        while Path(f"/proc/{owner}").exists():
            time.sleep(LOOK_S)
    else:
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.poll()
    os._exit(1)


class OwnedWorker:
    """Adds nothing to vLLM's worker but that it ends with its owner."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        """The worker."""
        follow()
        return super().__new__(cls)
