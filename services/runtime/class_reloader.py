"""Reload the request classes of the policy in force when its ``policy.toml`` changes.

Edge and router use this module, because their images have no ``services.policy``. The rules are those of
``services.policy``'s ``PolicyReloader``: an edit is loaded once the file was the same in two polls, and an edit that
cannot be used changes nothing.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.runtime.errors import UserError
from services.runtime.files import SettledChange
from services.runtime.logging import logger
from services.runtime.metrics import POLICY_REFUSED
from services.runtime.service_classes import ServiceClasses, read_service_classes

WATCH_INTERVAL_S: Final = 1.0

Fingerprint = tuple[int, int, int] | None
"""Inode, modification time (ns) and size of the file; None while the file is missing."""


class ClassReloader:
    """Holds the current classes of a policy, and replaces them after an edit of its ``policy.toml``.

    A request is handled with the classes that were current when it arrived.

    Args:
        folder: The policy's folder.
        service: Name of the service whose logger reports what was read.
        apply: Called in the event loop with changed classes before they become current. It may raise ``UserError`` to
            refuse them.

    Raises:
        UserError: The policy cannot be read at the start, or something in its tables is wrong.
    """

    def __init__(self, folder: Path, service: str, apply: Callable[[ServiceClasses], None] | None = None) -> None:
        self._file = folder / "policy.toml"
        self._log = logger(service)
        self._apply = apply
        self._change = SettledChange(self._fingerprint())
        self.current = read_service_classes(folder)
        self._longest_ms = self.current.longest_total_ms("interactive")

    async def watch(self, interval_s: float = WATCH_INTERVAL_S) -> None:
        """Load changes until cancelled. The file is read in a thread, because it may be on a slow disk."""
        while True:
            await asyncio.sleep(interval_s)
            classes = await asyncio.to_thread(self.poll)
            if classes is not None:
                self.adopt(classes)

    def poll(self) -> ServiceClasses | None:
        """Return the classes of a changed file once it was the same in two polls; else None."""
        if not self._change.poll(self._fingerprint()):
            return None
        try:
            return read_service_classes(self._file.parent)
        except UserError as error:
            self._refuse(error)
            return None

    def adopt(self, classes: ServiceClasses) -> None:
        """Make these classes the current ones, or refuse them and log the reason."""
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
        """Refuse interactive classes with a longer ``total_ms`` than the classes that this service started with.

        At their start, services choose how far back they read the log, and ``total_ms`` determines how far that is.
        """
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
