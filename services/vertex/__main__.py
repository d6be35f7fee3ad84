"""Start the Vertex AI worker: ``python -m services.vertex``."""

import asyncio

from schemas.topics import REQUESTS_VERTEX
from services.bus import BusSettings, ensure_topics
from services.runtime import run
from services.runtime.errors import UserError
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings
from services.vertex.settings import VertexSettings
from services.worker.scheduler import WorkerConfig
from services.worker.worker import WorkerService


async def main() -> None:
    try:
        from services.vertex.engine import VertexEngine
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'railbus[vertex]'") from None
    settings, bus, health = load_settings(VertexSettings), load_settings(BusSettings), load_settings(HealthSettings)
    config = WorkerConfig(
        name="vertex",
        topic=REQUESTS_VERTEX,
        slots=settings.vertex_slots,
        queue=settings.vertex_queue,
        drain_s=settings.vertex_drain_ms / 1_000,
        input_gate=settings.input_gate,
        output_check=settings.output_check,
        instance=settings.vertex_instance,
    )
    engine = VertexEngine(settings)
    worker: WorkerService | None = None

    def ready() -> None:
        where = "emulated" if settings.emulated else settings.vertex_location
        say_ready(f"vertex model={engine.model} location={where}")

    async with serve_health(health, lambda: worker is not None and worker.ready):
        try:
            await asyncio.gather(engine.start(), ensure_topics(bus))
            worker = WorkerService(config, bus, engine)
            await worker.run(ready)
        finally:
            await engine.close()


if __name__ == "__main__":
    run(main, "vertex")
