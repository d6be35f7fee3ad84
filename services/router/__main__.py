"""Run one router process: ``python -m services.router``."""

import os
import secrets

from services.bus import ensure_topics
from services.router.service import RouterService
from services.router.settings import Settings
from services.runtime import health, process, settings
from services.runtime.process import say_ready


async def main() -> None:
    own = settings.load_settings(Settings, os.environ)
    await ensure_topics(own.bus)
    service = RouterService(own, f"router/{secrets.token_hex(3)}", lambda: say_ready("router"))
    async with health.serve_health(own.health, lambda: service.ready):
        await service.run()


if __name__ == "__main__":
    process.run(main, "router")
