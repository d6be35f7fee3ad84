import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from services.policy.errors import BrokenPolicy, broken_by
from services.policy.load import build
from services.policy.policy import Policy
from services.policy.source.files import fingerprint, read_files, version_of
from services.policy.trial import try_policy
from services.runtime.files import SettledChange
from services.runtime.metrics import POLICY_REFUSED

WATCH_INTERVAL_S: Final = 1.0

RETRY_S: Final = 60.0
"""Seconds after which unchanged files are tried again, if the reason why they were refused may have passed. The time
doubles with each further refusal, up to ``LONGEST_RETRY_S``, because a try may cost much memory and a minute of CPU."""

LONGEST_RETRY_S: Final = 3_600.0

_log = logging.getLogger("railbus.policy")


class PolicyReloader:
    """Holds the current policy, and replaces it when its files change.

    Args:
        root: The policy's folder.
        prepare: Called with a new policy before it becomes current. If it raises an error, the new policy is rejected.

    Raises:
        BrokenPolicy: The first policy has faults.
    """

    def __init__(self, root: Path, prepare: Callable[[Policy], Awaitable[None]] | None = None) -> None:
        self._root = root
        self._prepare = prepare
        self._change = SettledChange(fingerprint(root))
        files = read_files(root)
        try_policy(files)
        self.current: Policy = build(files)
        self.refused: BrokenPolicy | None = None
        self._again_s = math.inf  # when to try the refused files again, in monotonic seconds
        self._retry_s = RETRY_S
        self._counted = False  # whether the last edit is counted as refused

    async def watch(self, interval_s: float = WATCH_INTERVAL_S) -> None:
        while True:
            await asyncio.sleep(interval_s)
            policy = await asyncio.to_thread(self.poll)
            if policy is not None:
                await self._adopt(policy)

    def poll(self) -> Policy | None:
        """Return the new policy; None if the files have not changed, or if the policy has faults."""
        # Files are read when they are the same at two successive calls, so an unfinished edit is not read.
        changed = self._change.poll(fingerprint(self._root))
        again = self._change.settled and time.monotonic() >= self._again_s
        if not changed and not again:
            return None
        if changed:
            self._retry_s = RETRY_S
            self._counted = False
        self._again_s = math.inf
        return self._read()

    async def _adopt(self, policy: Policy) -> None:
        if self._prepare is not None:
            try:
                await self._prepare(policy)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - as for `_read`
                self._refuse(broken_by(error))
                return
        self.current = policy
        _log.info("policy %s is now %s", policy.document.name, policy.version)

    def _read(self) -> Policy | None:
        try:
            files = read_files(self._root)
            if version_of(files) == self.current.version:
                self.refused = None
                return None
            try_policy(files)
            policy = build(files)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - no edit of a policy ends the service that has a good one
            self._refuse(broken_by(error))
            return None
        self.refused = None
        return policy

    def _refuse(self, broken: BrokenPolicy) -> None:
        if not self._counted:
            POLICY_REFUSED.inc()
            self._counted = True
        self.refused = broken
        if broken.temporary:
            self._again_s = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        for fault in broken.faults:
            _log.error("policy rejected, %s stays in force: %s", self.current.version, fault)
