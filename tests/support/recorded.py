"""Add the safety service's events to a stream log, for tests of audits."""

from collections.abc import Iterable

from schemas.stream import Cleared, Recall
from services.bus import Received
from services.policy import Policy
from services.processor import Write
from services.safety.checks.nemo import nemo_check
from services.safety.core import SafetyCore
from services.safety.decide.check_types import CheckRequest, CheckResult


async def recorded(policy: Policy, events: Iterable[object]) -> list[object]:
    """Return the events, each followed by the ``Cleared`` and ``Recall`` events that it causes.

    The real core and checks of the safety service make the ``Cleared`` and ``Recall`` events.
    """
    check, core, log = await nemo_check(policy), SafetyCore(policy, "safety/test"), []
    core.gained(0)
    core.caught_up(0, 1, 1)
    for event in events:
        log.append(event)
        core.read(Received("", 0, 0, 0, event, None), 1, 1)  # type: ignore[arg-type]
        while core.busy:
            waiting = list(core.step(1))
            while waiting:
                effect = waiting.pop(0)
                if isinstance(effect, CheckRequest):
                    waiting += core.take_outcome(effect, CheckResult(await check.find(effect.text)), 1)
                elif isinstance(effect, Write) and isinstance(effect.event, Recall | Cleared):
                    log.append(effect.event)
    await check.close()
    return log
