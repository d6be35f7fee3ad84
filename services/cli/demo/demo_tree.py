"""Start the demo's own services, send requests to their edge, and read their log."""

import asyncio
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from schemas.base import Event
from schemas.side_events import Account
from schemas.topics import ACCOUNTS, CONTROL, REQUESTS, REQUESTS_VERTEX, STREAMS
from services.bus import BusSettings, Received, TailReader, UnreadableRecord
from services.cli.client.answer_ops import AnswerError, AnswerOp
from services.cli.client.chat_request import ChatRequest
from services.cli.client.edge_client import EdgeAddress, ask_edge
from services.cli.demo.scenes import Scene, SceneTrace
from services.cli.demo.timeline import StreamPosition
from services.cli.tree.ports import free_port
from services.cli.tree.process_specs import LOOPBACK, TreeConfig, process_specs
from services.cli.tree.supervisor import Supervisor
from services.runtime.errors import UserError
from services.stream import Op

SHOWN_TOPICS: Final = (REQUESTS, REQUESTS_VERTEX, STREAMS, CONTROL, ACCOUNTS)
"""Topics whose events are shown in a scene."""

PARTITIONS: Final = 1

OPTIONS: Final = {"RAILBUS_PARTITIONS": str(PARTITIONS), "RAILBUS_RETRIES": "0"}
"""Settings of all services. Retries are off, because the scenes show the fallback to the cloud."""

EMULATOR_OPTIONS: Final = ("--ttft-ms", "120", "--gap-ms", "15", "--words", "24")
"""Options that make the emulated cloud slow enough for a race between two attempts."""

ACCOUNT_TIMEOUT_S: Final = 5.0
"""Maximum time to wait for the ``Account`` of a closed request."""

LAST_LINES: Final = 20
"""Number of last lines of the services' output that are kept for an error message."""

REDRAW_S: Final = 0.05


@dataclass(slots=True)
class SceneRun:
    """The progress of one scene.

    Attributes:
        ops: Instructions (ops) that the client received. The key is the partition and offset of their event on
            ``railbus.streams``.
        failure: Why the scene failed; empty if it did not fail.
    """

    records: list[Received] = field(default_factory=list)
    ops: dict[StreamPosition, list[Op]] = field(default_factory=lambda: defaultdict(list))
    trace: SceneTrace = field(default_factory=SceneTrace)  # ops in order of receipt; events once the scene has ended
    failure: str = ""


class DemoTree:
    def __init__(self, url: str) -> None:
        self._url = url
        self._log: dict[str, list[Received]] = defaultdict(list)
        self._news = asyncio.Event()

    async def play(self, scene: Scene, draw: Callable[[SceneRun], None]) -> SceneRun:
        """Send the scene's request and wait for its end. Meanwhile, call ``draw`` every ``REDRAW_S`` seconds."""
        scene_run = SceneRun()
        asking = asyncio.create_task(self._ask(scene.question, scene_run))
        while not asking.done():
            await asyncio.wait({asking}, timeout=REDRAW_S)
            draw(scene_run)
        return scene_run

    async def warm_up(self) -> None:
        for script in ("n3", "err503"):
            await self._ask(ChatRequest(prompt="Hello.", model=f"simulated-{script}", total_ms=15_000), SceneRun())

    def on_records(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Event):
                self._log[record.event.request_id].append(record)
        self._news.set()

    async def _ask(self, question: ChatRequest, scene_run: SceneRun) -> None:
        def take(answered: AnswerOp) -> None:
            partition, offset, _ = map(int, answered.op_id.split(":"))
            scene_run.ops[partition, offset].append(answered.op)
            scene_run.trace.ops.append(answered.op)
            scene_run.records = self._log[answered.request_id]

        try:
            await ask_edge(question, EdgeAddress(self._url), take)
        except AnswerError as error:
            scene_run.failure = str(error)
            return
        try:
            async with asyncio.timeout(ACCOUNT_TIMEOUT_S):
                while not any(isinstance(record.event, Account) for record in scene_run.records):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            scene_run.failure = f"its account was not written within {ACCOUNT_TIMEOUT_S:.0f} s"
        scene_run.trace.events = [record.event for record in scene_run.records]


@asynccontextmanager
async def open_demo_tree() -> AsyncIterator[DemoTree]:
    """Run the demo's services until the ``async with`` block ends. Then remove their files.

    Raises:
        UserError: A service cannot run.
    """
    lines: deque[str] = deque(maxlen=LAST_LINES)
    with tempfile.TemporaryDirectory(prefix="railbus-demo-") as folder:
        config = _config(Path(folder))
        specs = [
            replace(spec, command=(*spec.command, *EMULATOR_OPTIONS)) if spec.name == "vertex-emulator" else spec
            for spec in process_specs(config)
        ]
        try:
            async with Supervisor(specs, lines.append).running():
                tree = DemoTree(f"http://{LOOPBACK}:{config.edge_port}")
                bus = BusSettings(bootstrap=config.kafka, partitions=PARTITIONS)
                reader = TailReader(bus, handler=tree.on_records)
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(reader.run())
                    for topic in SHOWN_TOPICS:
                        await reader.follow(topic, 0, "beginning")
                    yield tree
                    reading.cancel()
        except UserError as error:
            raise UserError("\n  ".join([str(error), *lines])) from None


def _config(folder: Path) -> TreeConfig:
    port = free_port()
    return TreeConfig(
        engine="simulated", edge_port=free_port(), kafka=f"{LOOPBACK}:{port}", broker_port=port,
        log_dir=folder / "log", redis_port=None, redis_program=None, redis_url=None, health_ports={}, governed=True,
        cloud="emulator", emulator_port=free_port(), options=OPTIONS,
    )  # fmt: skip
