"""``python -m services.rails``."""

import asyncio
import sys

from services.bus import BusSettings, ensure_topics
from services.policy import BrokenPolicy
from services.rails.settings import RailsSettings
from services.runtime import UserError, run
from services.runtime.health import HealthSettings, serving
from services.runtime.settings import load


async def main() -> None:
    """Loads the policy, joins the group, judges until it is told to stop."""
    from services.rails.service import RailsService  # here, as the classifier's processes begin in this file as well

    settings, bus, health = load(RailsSettings), load(BusSettings), load(HealthSettings)
    is_ready = asyncio.Event()

    def ready() -> None:
        is_ready.set()
        policy = service.policy
        sys.stdout.write(f"ready rails policy={policy.document.name} version={policy.version}\n")
        sys.stdout.flush()

    try:
        service = RailsService(settings, bus)
        async with serving(health, is_ready.is_set):
            await ensure_topics(bus)
            await service.run(ready)
    except BrokenPolicy as broken:
        raise UserError(f"RAILBUS_POLICY={settings.policy}: {broken}") from None


if __name__ == "__main__":
    run(main, "rails")
