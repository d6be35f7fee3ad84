"""``python -m services.rails``."""

import sys

from services.bus import BusSettings, ensure_topics
from services.policy import BrokenPolicy
from services.rails.settings import RailsSettings
from services.runtime import UserError, run
from services.runtime.health import HealthSettings, serving
from services.runtime.settings import load


async def main() -> None:
    """Load the policy, join the groups, judge until told to stop."""
    from services.rails.service import RailsService  # here, as the classifier's processes begin in this file as well

    settings, bus, health = load(RailsSettings), load(BusSettings), load(HealthSettings)

    def on_ready() -> None:
        policy = service.policy
        sys.stdout.write(f"ready rails policy={policy.document.name} version={policy.version}\n")
        sys.stdout.flush()

    try:
        service = RailsService(settings, bus, on_ready)
        async with serving(health, lambda: service.ready):
            await ensure_topics(bus)
            await service.run()
    except BrokenPolicy as broken:
        raise UserError(f"RAILBUS_POLICY={settings.policy}: {broken}") from None


if __name__ == "__main__":
    run(main, "rails")
