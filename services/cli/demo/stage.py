"""A tree of its own on free ports, the questions asked of its edge, and what came to stand on its log."""

import asyncio
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from schemas.base import Event
from schemas.books import Account
from schemas.topics import ACCOUNTS, CONTROL, REQUESTS, REQUESTS_VERTEX, STREAMS
from services.bus import BusSettings, Received, TailReader, Unread
from services.cli.answers import Answered, AnswerFailed
from services.cli.ask_edge import Edge, ask_edge
from services.cli.demo.scenes import Scene, Told
from services.cli.demo.story import Place
from services.cli.fleet import LOOPBACK, Plan, launches
from services.cli.ports import free_port
from services.cli.question import Question
from services.cli.supervisor import Supervisor
from services.runtime.errors import UserError
from services.stream import Op

SHOWN: Final = (REQUESTS, REQUESTS_VERTEX, STREAMS, CONTROL, ACCOUNTS)
"""The topics that tell a scene."""

PARTITIONS: Final = 1

EMULATOR: Final = ("--ttft-ms", "120", "--gap-ms", "15", "--words", "24")
"""The cloud is slow enough for a race to be one."""

BOOKS_S: Final = 5.0
"""Longest wait for the books of a closed request."""

LAST_LINES: Final = 20
"""Lines of the services that are kept, to be told when something goes wrong."""

REDRAW_S: Final = 0.05


@dataclass(slots=True)
class Played:
    """What is known of a scene.

    Attributes:
        records: Of its request, as they were read.
        ops: What the edge sent, by the event in the stream log that they came from.
        told: The same without their places.
        failure: Why there is no answer.
    """

    records: list[Received] = field(default_factory=list)
    ops: dict[Place, list[Op]] = field(default_factory=lambda: defaultdict(list))
    told: Told = field(default_factory=Told)
    failure: str = ""


class Stage:
    """A running tree and its log.

    Args:
        url: Of the edge.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._log: dict[str, list[Received]] = defaultdict(list)
        self._news = asyncio.Event()

    async def play(self, scene: Scene, draw: Callable[[Played], None]) -> Played:
        """Asks the scene's question; ``draw`` is told now and then how far it is. Ends when its books are written."""
        played = Played()
        asking = asyncio.create_task(self._ask(scene.question, played))
        while not asking.done():
            await asyncio.wait({asking}, timeout=REDRAW_S)
            draw(played)
        return played

    async def warm_up(self) -> None:
        """The first use of everything, so that no scene pays for it."""
        for script in ("n3", "err503"):
            await self._ask(Question(prompt="Hello.", model=f"simulated-{script}", total_ms=15_000), Played())

    def on_records(self, records: Sequence[Received | Unread]) -> None:
        """What the log brings."""
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Event):
                self._log[record.event.request_id].append(record)
        self._news.set()

    async def _ask(self, question: Question, played: Played) -> None:
        def take(answered: Answered) -> None:
            partition, offset, _ = map(int, answered.op_id.split(":"))
            played.ops[partition, offset].append(answered.op)
            played.told.ops.append(answered.op)
            played.records = self._log[answered.request_id]

        try:
            await ask_edge(question, Edge(self._url), take)
        except AnswerFailed as error:
            played.failure = str(error)
            return
        try:
            async with asyncio.timeout(BOOKS_S):
                while not any(isinstance(record.event, Account) for record in played.records):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            played.failure = f"its books were not written within {BOOKS_S:.0f} s"
        played.told.events = [record.event for record in played.records]


@asynccontextmanager
async def opened() -> AsyncIterator[Stage]:
    """Everything runs while the block does; nothing is left behind.

    Raises:
        UserError: A service cannot run; the message has its last words.
    """
    words: deque[str] = deque(maxlen=LAST_LINES)
    with tempfile.TemporaryDirectory(prefix="railbus-demo-") as folder:
        plan = _plan(Path(folder))
        emulated = [
            replace(launch, command=(*launch.command, *EMULATOR)) if launch.name == "vertex-emulator" else launch
            for launch in launches(plan)
        ]
        try:
            async with Supervisor(emulated, words.append).running():
                stage = Stage(f"http://{LOOPBACK}:{plan.edge_port}")
                reader = TailReader(BusSettings(bootstrap=plan.kafka, partitions=PARTITIONS), handler=stage.on_records)
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(reader.run())
                    for topic in SHOWN:
                        await reader.follow(topic, 0, "beginning")
                    yield stage
                    reading.cancel()
        except UserError as error:
            raise UserError("\n  ".join([str(error), *words])) from None


def _plan(folder: Path) -> Plan:
    port = free_port()
    return Plan(
        engine="simulated", edge_port=free_port(), kafka=f"{LOOPBACK}:{port}", broker_port=port,
        log_dir=folder / "log", redis_port=None, redis_program=None, redis_url=None, health_ports={}, governed=True,
        cloud="emulator", emulator_port=free_port(), options={"RAILBUS_PARTITIONS": str(PARTITIONS)},
    )  # fmt: skip
