"""``python -m services.generator``: start the generator."""

import asyncio
import os

from services.bus import BusSettings, ensure_topics
from services.generator.cores import bind_to_cores
from services.generator.engines import make
from services.generator.liveness import run_while_alive
from services.generator.settings import GeneratorSettings
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings
from services.worker.worker import WorkerService


async def main() -> None:
    settings, bus, health = load_settings(GeneratorSettings), load_settings(BusSettings), load_settings(HealthSettings)
    bind_to_cores(settings.generator_cores)
    engine = make(settings.engine, os.environ)
    worker: WorkerService | None = None

    def ready() -> None:
        say_ready(f"generator engine={engine.name} model={engine.model}")

    async with serve_health(health, lambda: worker is not None and worker.ready):
        try:
            await asyncio.gather(engine.start(), ensure_topics(bus))
            worker = WorkerService(settings.worker_config(), bus, engine)
            await run_while_alive(worker.run(ready), engine)
        finally:
            await engine.close()


if __name__ == "__main__":
    run(main, "generator")
