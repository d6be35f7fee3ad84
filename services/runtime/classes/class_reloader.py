"""Reload the request classes of a policy when its ``policy.toml`` changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.runtime.classes.service_classes import ServiceClasses, read_service_classes
from services.runtime.errors import UserError
from services.runtime.files import SettledChange
from services.runtime.logging import logger
from services.runtime.metrics import POLICY_REFUSED

WATCH_INTERVAL_S: Final = 1.0

Fingerprint = tuple[int, int, int] | None
"""Inode, modification time (ns) and size of the file; None while the file is missing."""


class ClassReloader:
    """Holds the current request classes of a policy, and replaces them after an edit of ``policy.toml``.

    An invalid edit is logged and changes nothing.

    Args:
        folder: The folder of the policy.
        service: Name of the service, for log lines.
        apply: Called with the new classes. It may raise ``UserError`` to reject them.

    Raises:
        UserError: The policy cannot be read, or one of its tables is invalid.
    """

    def __init__(self, folder: Path, service: str, apply: Callable[[ServiceClasses], None] | None = None) -> None:
        self._file = folder / "policy.toml"
        self._log = logger(service)
        self._apply = apply
        self._change = SettledChange(self._fingerprint())
        self.current = read_service_classes(folder)
        self._longest_ms = self.current.longest_total_ms("interactive")

    async def watch(self, interval_s: float = WATCH_INTERVAL_S) -> None:
        """Adopt edits of ``policy.toml`` until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            # The file may be on a slow disk.
            classes = await asyncio.to_thread(self.poll)
            if classes is not None:
                self.adopt(classes)

    def poll(self) -> ServiceClasses | None:
        """Return the new classes after an edit of ``policy.toml``, otherwise None."""
        # A file that is still being written is not read.
        if not self._change.poll(self._fingerprint()):
            return None
        try:
            return read_service_classes(self._file.parent)
        except UserError as error:
            self._refuse(error)
            return None

    def adopt(self, classes: ServiceClasses) -> None:
        """Replace the current classes. If the new ones cannot be used, keep the current ones, and log the reason."""
        try:
            self._check_longest(classes)
            if self._apply is not None:
                self._apply(classes)
        except UserError as error:
            self._refuse(error)
            return
        self.current = classes
        self._log.info("the policy's classes are now %s", ", ".join(classes.names))

    def _check_longest(self, classes: ServiceClasses) -> None:
        # When a service starts, ``total_ms`` determines how far back it reads the log. So it must not become longer.
        longest_ms = classes.longest_total_ms("interactive")
        if longest_ms > self._longest_ms:
            raise UserError(
                f"{self._file}: total_ms of an interactive class may be {longest_ms} ms now, and was {self._longest_ms}"
                " when this service began: lower it, or restart edge, router and safety"
            )

    def _refuse(self, error: UserError) -> None:
        POLICY_REFUSED.inc()
        self._log.error("the policy's classes stay as they were: %s", error)

    def _fingerprint(self) -> Fingerprint:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
