"""``python -m services.generator``."""

import asyncio
import os
import sys

from services.bus import BusSettings, ensure_topics
from services.generator.engines import make
from services.generator.mortal import outlived
from services.generator.settings import GeneratorSettings
from services.runtime import run
from services.runtime.health import HealthSettings, serving
from services.runtime.settings import load
from services.worker.worker import Worker


async def main() -> None:
    """Loads the engine, joins the group, works until it is told to stop."""
    settings, bus, health = load(GeneratorSettings), load(BusSettings), load(HealthSettings)
    engine = make(settings.engine, os.environ)
    is_ready = asyncio.Event()

    def ready() -> None:
        is_ready.set()
        sys.stdout.write(f"ready generator engine={engine.name} model={engine.model}\n")
        sys.stdout.flush()

    async with serving(health, is_ready.is_set):
        try:
            await asyncio.gather(engine.start(), ensure_topics(bus))
            await outlived(Worker(settings.role(), bus, engine).run(ready), engine)
        finally:
            await engine.close()


if __name__ == "__main__":
    run(main, "generator")
