"""A lab with a real broker, router, generator and batch service. Only the engine is simulated."""

import json
import time
from pathlib import Path
from typing import ClassVar

from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress
from schemas.requests import Request
from services.jobs.ids import new_batch_id
from services.jobs.store import FolderStore, new_file_id
from services.runtime.clock import now_us
from tests.support.lab import Lab

BATCH_ID = new_batch_id(int(time.time()) * 1000, 12345)


class BatchLab(Lab):
    """A lab in which a real batch service runs the test's jobs."""

    service = "services.batch"
    pause_s = 0.05
    settings: ClassVar = {"RAILBUS_ENGINE": "simulated", "RAILBUS_SIM_TIME_SCALE": "0.05"}

    def open_folder(self, folder: Path) -> None:
        self.store = FolderStore(folder)
        self.where = {"RAILBUS_BATCH_DIR": str(folder)}

    async def tree(self, **env):
        """Start a router and a generator, then the batch service. Return the process of the batch service."""
        for module in ("services.router", "services.generator"):
            await self.start(module, **env).ready()
        return await self.run(**self.where, **env)

    def upload(self, content: bytes) -> str:
        file_id = new_file_id()
        with self.store.writing(file_id, "acme", "lines.jsonl", "batch", int(time.time())) as file:
            file.write(content)
        return file_id

    async def submit(self, content: bytes, batch_id: str = BATCH_ID, **given) -> str:
        about = {"batch_id": batch_id, "tenant": "acme", "at": now_us(), "source": "test"}
        await self.send(BatchCreated(**about, input_file=self.upload(content), **given))
        return batch_id

    async def control(self, batch_id: str, action: str) -> None:
        about = {"batch_id": batch_id, "tenant": "acme", "at": now_us(), "source": "test"}
        await self.send(BatchControl(**about, action=action))

    def done(self, batch_id: str) -> int:
        found = [event.totals for event in self.written(BatchProgress) if event.batch_id == batch_id]
        return found[-1].completed + found[-1].failed if found else 0

    async def end(self, batch_id: str, within_s: float = 120) -> BatchFinished:
        def ends():
            return [event for event in self.written(BatchFinished) if event.batch_id == batch_id]

        await self.until(ends, within_s=within_s)
        return ends()[0]

    def submitted(self) -> list[str]:
        return [event.request_id for event in self.written(Request)]

    def file(self, file_id: str | None) -> bytes:
        if file_id is None:
            return b""
        with self.store.open(file_id) as file:
            return file.read()


def lines(count: int, *, shared: str = "", model: str = "simulated-n4", **body) -> bytes:
    """Return the input file of a job with ``count`` lines. Every prompt begins with ``shared``."""
    return b"".join(line(f"id-{n}", f"{shared}Question {n}?", model=model, **body) for n in range(count))


def line(custom_id: str, content: str, *, model: str = "simulated-n4", **body) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": content}], "temperature": 0, **body}
    value = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(value).encode() + b"\n"


def rows(content: bytes) -> list[dict]:
    return [json.loads(each) for each in content.splitlines()]
