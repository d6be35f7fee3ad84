"""Run one archiver: ``python -m services.audit``."""

from services.audit.service import ArchiveService
from services.audit.settings import Settings
from services.bus import BusSettings, ensure_topics
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings


async def main() -> None:
    settings, bus, health = load_settings(Settings), load_settings(BusSettings), load_settings(HealthSettings)

    def on_ready() -> None:
        say_ready(f"audit archive={service.location}")

    service = ArchiveService(settings, bus, on_ready)
    async with serve_health(health, lambda: service.ready):
        await ensure_topics(bus)
        await service.run()


if __name__ == "__main__":
    run(main, "audit")
