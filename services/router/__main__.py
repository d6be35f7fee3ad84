"""Run one router process: ``python -m services.router``."""

import os
import secrets
import sys

from services.bus import ensure_topics
from services.router.service import RouterService
from services.router.settings import Settings
from services.runtime import health, process, settings


async def main() -> None:
    """Route until the process is asked to stop."""
    own = settings.load_settings(Settings, os.environ)
    await ensure_topics(own.bus)
    service = RouterService(own, f"router/{secrets.token_hex(3)}", _say_ready)
    async with health.serve_health(own.health, lambda: service.ready):
        await service.run()


def _say_ready() -> None:
    sys.stdout.write("ready router\n")
    sys.stdout.flush()


if __name__ == "__main__":
    process.run(main, "router")
