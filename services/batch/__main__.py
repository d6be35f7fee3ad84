"""Run one batch service: ``python -m services.batch``."""

import contextlib
import resource
from typing import Final

from services.batch.service import BatchService
from services.batch.settings import Settings
from services.bus import BusSettings, ensure_topics
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings

OPEN_FILES: Final = 65_536
"""Limit of open files to ask for. Each job keeps three files open."""


def raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def main() -> None:
    raise_open_files()
    settings, bus, health = load_settings(Settings), load_settings(BusSettings), load_settings(HealthSettings)
    service = BatchService(settings, bus, lambda: say_ready("batch"))
    async with serve_health(health, lambda: service.ready):
        await ensure_topics(bus)
        await service.run()


if __name__ == "__main__":
    run(main, "batch")
