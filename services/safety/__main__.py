"""Run one safety process: ``python -m services.safety``."""

from services.bus import BusSettings, ensure_topics
from services.policy import BrokenPolicy
from services.policy.errors import start_error
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings
from services.safety.checks.classifiers import classifiers_check
from services.safety.checks.nemo import nemo_check
from services.safety.service import SafetyService
from services.safety.settings import Settings


async def main() -> None:
    settings, bus, health = load_settings(Settings), load_settings(BusSettings), load_settings(HealthSettings)

    def on_ready() -> None:
        policy = service.policy
        say_ready(f"safety policy={policy.document.name} version={policy.version}")

    try:
        service = SafetyService(settings, bus, {1: nemo_check, 2: classifiers_check}, on_ready)
        async with serve_health(health, lambda: service.ready):
            await ensure_topics(bus)
            await service.run()
    except BrokenPolicy as broken:
        raise start_error(settings.policy, broken) from None


if __name__ == "__main__":
    run(main, "safety")
