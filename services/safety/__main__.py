"""``python -m services.safety``."""

import asyncio
import sys

from services.bus import BusSettings, ensure_topics
from services.policy import BrokenPolicy
from services.runtime import UserError, run
from services.runtime.health import HealthSettings, serving
from services.runtime.settings import load
from services.safety.classifiers import classifiers_check
from services.safety.nemo import nemo_check
from services.safety.service import SafetyService
from services.safety.settings import SafetySettings


async def main() -> None:
    """Loads the policy, joins the group, checks until it is told to stop."""
    settings, bus, health = load(SafetySettings), load(BusSettings), load(HealthSettings)
    is_ready = asyncio.Event()
    try:
        service = SafetyService(settings, bus, {1: nemo_check, 2: classifiers_check})
    except BrokenPolicy as broken:
        raise UserError(f"RAILBUS_POLICY={settings.policy}: {broken}") from None

    def ready() -> None:
        is_ready.set()
        policy = service.policy
        sys.stdout.write(f"ready safety policy={policy.document.name} version={policy.version}\n")
        sys.stdout.flush()

    async with serving(health, is_ready.is_set):
        await ensure_topics(bus)
        try:
            await service.run(ready)
        except BrokenPolicy as broken:
            raise UserError(f"RAILBUS_POLICY={settings.policy}: {broken}") from None


if __name__ == "__main__":
    run(main, "safety")
