"""``python -m services.generator``."""

import asyncio
import os
import sys

from services.bus import BusSettings, ensure_topics
from services.generator.engines import make
from services.generator.liveness import run_while_alive
from services.generator.settings import GeneratorSettings
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.settings import load_settings
from services.worker.worker import Worker


async def main() -> None:
    """Load the engine, join the group and process requests until cancelled."""
    settings, bus, health = load_settings(GeneratorSettings), load_settings(BusSettings), load_settings(HealthSettings)
    engine = make(settings.engine, os.environ)
    is_ready = asyncio.Event()

    def ready() -> None:
        is_ready.set()
        sys.stdout.write(f"ready generator engine={engine.name} model={engine.model}\n")
        sys.stdout.flush()

    async with serve_health(health, is_ready.is_set):
        try:
            await asyncio.gather(engine.start(), ensure_topics(bus))
            await run_while_alive(Worker(settings.worker_config(), bus, engine).run(ready), engine)
        finally:
            await engine.close()


if __name__ == "__main__":
    run(main, "generator")
