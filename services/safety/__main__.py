"""``python -m services.safety``."""

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
    """Load the policy, join the group, check until told to stop."""
    settings, bus, health = load(SafetySettings), load(BusSettings), load(HealthSettings)

    def on_ready() -> None:
        policy = service.policy
        sys.stdout.write(f"ready safety policy={policy.document.name} version={policy.version}\n")
        sys.stdout.flush()

    try:
        service = SafetyService(settings, bus, {1: nemo_check, 2: classifiers_check}, on_ready)
        async with serving(health, lambda: service.ready):
            await ensure_topics(bus)
            await service.run()
    except BrokenPolicy as broken:
        raise UserError(f"RAILBUS_POLICY={settings.policy}: {broken}") from None


if __name__ == "__main__":
    run(main, "safety")
