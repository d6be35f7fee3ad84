"""Run one tracer process: ``python -m services.tracer``."""

from services.bus import BusSettings, ensure_topics
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings
from services.tracer.service import TracerService
from services.tracer.settings import Settings


async def main() -> None:
    settings, bus, health = load_settings(Settings), load_settings(BusSettings), load_settings(HealthSettings)
    service = TracerService(settings, bus, lambda: say_ready("tracer"))
    async with serve_health(health, lambda: service.ready):
        await ensure_topics(bus)
        await service.run()


if __name__ == "__main__":
    run(main, "tracer")
