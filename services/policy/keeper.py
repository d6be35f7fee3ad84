"""The policy in force, replaced without a gap when its files change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from services.policy.errors import BrokenPolicy
from services.policy.files import fingerprint, read_files, version_of
from services.policy.load import build
from services.policy.policy import Policy
from services.runtime.metrics import POLICY_REFUSED

WATCH_INTERVAL_S: Final = 1.0

_log = logging.getLogger("railbus.policy")


class Keeper:
    """Holds the current policy. Whoever took it keeps it: a request is judged by one version from begin to end.

    Args:
        root: The policy's folder.
        prepare: Awaited with each new policy before it counts; what depends on it is built there. ``BrokenPolicy``
            refuses it.

    Raises:
        BrokenPolicy: At the start there is no old policy to keep.
    """

    def __init__(self, root: Path, prepare: Callable[[Policy], Awaitable[None]] | None = None) -> None:
        self._root = root
        self._prepare = prepare
        self._seen = fingerprint(root)
        self._settled = True
        files = read_files(root)
        self.current: Policy = build(files)
        self.refused: BrokenPolicy | None = None

    async def watch(self, interval_s: float = WATCH_INTERVAL_S) -> None:
        """Look for changes until cancelled. Building happens in a thread; the swap is one assignment."""
        while True:
            await asyncio.sleep(interval_s)
            policy = await asyncio.to_thread(self.look)
            if policy is not None:
                await self._adopt(policy)

    def look(self) -> Policy | None:
        """One look at the files: a new policy, or None.

        Files must be still for two looks, so that no half-made edit is read.
        """
        seen = fingerprint(self._root)
        if seen != self._seen:
            self._seen, self._settled = seen, False
            return None
        if self._settled:
            return None
        self._settled = True
        return self._read()

    async def _adopt(self, policy: Policy) -> None:
        if self._prepare is not None:
            try:
                await self._prepare(policy)
            except BrokenPolicy as broken:
                self._refuse(broken)
                return
        self.current = policy
        _log.info("policy %s is now %s", policy.document.name, policy.version)

    def _read(self) -> Policy | None:
        try:
            files = read_files(self._root)
            if version_of(files) == self.current.version:
                self.refused = None
                return None
            policy = build(files)
        except BrokenPolicy as broken:
            self._refuse(broken)
            return None
        self.refused = None
        return policy

    def _refuse(self, broken: BrokenPolicy) -> None:
        POLICY_REFUSED.inc()
        self.refused = broken
        for fault in broken.faults:
            _log.error("policy refused, %s stays: %s", self.current.version, fault)
