"""Count the function calls of a service, for ``tests.bench.calls``.

The signal SIGUSR1 starts the counting. The next SIGUSR1 ends it, and the counts are written to a file in the folder
``RAILBUS_CALLS_DIR``. Python imports this module when it starts, if the module's folder is on ``PYTHONPATH``.
"""

import cProfile
import os
import re
import signal
import sys
from types import FrameType

_service = re.search(r"-m services\.(\w+)", " ".join(sys.orig_argv))
_folder = os.environ.get("RAILBUS_CALLS_DIR")
_profiles: list[cProfile.Profile] = []


def _switch(_number: int, _frame: FrameType | None) -> None:
    if not _profiles:
        _profiles.append(cProfile.Profile())
        _profiles[0].enable()
        return
    profile = _profiles.pop()
    profile.disable()
    assert _service is not None
    profile.dump_stats(f"{_folder}/{_service[1]}.part")
    os.replace(f"{_folder}/{_service[1]}.part", f"{_folder}/{_service[1]}.prof")  # noqa: PTH105 - few imports


if _folder is not None and _service is not None and _service[1] != "cli":
    signal.signal(signal.SIGUSR1, _switch)
