"""A simulated world for tests of the batch core: a log, part files, and a service that may be replaced at any time."""

import random
from collections import deque

from msgspec import structs

from schemas.batches import BatchCreated
from schemas.requests import Deadlines, Delivery, Message, Request
from schemas.stream import Chunk, Closed, Failed, Finished, Started, Usage
from schemas.topics import REQUESTS_BATCH, STREAMS
from services.batch.core import BatchConfig, BatchCore
from services.batch.job import AskCancel, FinishJob, JobCheckpoint, RecordResult, SubmitLine
from services.bus import Received, partition_for
from services.jobs.ids import line_request_id
from services.jobs.job_state import Jobs

PARTITIONS = 2
BATCH_ID = "batch_018bcfe6082870008000000000000000"
NOW_US = 1_700_000_000_000_000
TOPICS = (STREAMS.name, REQUESTS_BATCH.name)


class World:
    """One job with its present batch core, and all that survives a kill: the log and the part files.

    Attributes:
        submitted: Ids of the requests that were written, in order.
        closed: Ids of the requests that ``answer`` has closed.
        effects: Effects of the core that ``perform`` has not carried out yet.
        lives: Number of services that were started.
    """

    def __init__(self, lines: int, window: int, attempts: int, rng: random.Random) -> None:
        self.rng = rng
        self.lines = lines
        self.log = {topic: [[] for _ in range(PARTITIONS)] for topic in TOPICS}
        self.jobs = Jobs()
        about = {"batch_id": BATCH_ID, "tenant": "t", "at": 0, "source": "test"}
        created = BatchCreated(**about, input_file="file-a", window_open=window, line_attempts=attempts)
        self.jobs.feed(created, 0)
        self.parts: dict[str, list] = {}
        self.submitted: list[str] = []
        self.closed: set[str] = set()
        self.cancels: list[str] = []
        self.finished = None
        self.now = NOW_US
        self.lives = 0
        self.begin()

    @property
    def state(self):
        return self.jobs.get(BATCH_ID)

    def begin(self) -> None:
        """Start a new service in place of the present one. What the present one has not written is lost."""
        self.lives += 1
        self.effects = deque()
        self.core = BatchCore(BatchConfig(partitions=PARTITIONS, source=f"batch/{self.lives}"))
        self.part = f"part-{self.lives}"
        self.parts[self.part] = []
        before = self.state.progress
        ends = {topic: [len(each) for each in self.log[topic]] for topic in TOPICS}
        self.positions = ends
        if before is not None:
            self.positions = {
                STREAMS.name: list(before.stream_offsets), REQUESTS_BATCH.name: list(before.request_offsets)
            }  # fmt: skip
        begins = {topic: list(each) for topic, each in self.positions.items()}
        self.effects.extend(self.core.begin(self.state, self.lines, 0, self.part, begins))

    def perform(self) -> None:
        """Carry out the first of the core's pending effects."""
        if not self.effects:
            return
        effect = self.effects.popleft()
        match effect:
            case SubmitLine():
                self._request(line_request_id(BATCH_ID, effect.place, effect.attempt))
            case RecordResult():
                self.parts[self.part].append((effect.place, effect.result))
            case AskCancel():
                self.cancels.append(effect.request_id)
            case JobCheckpoint():
                newest = structs.replace(effect.progress.parts[-1], length=len(self.parts[self.part]))
                self.jobs.feed(structs.replace(effect.progress, parts=(*effect.progress.parts[:-1], newest)), 0)
                job = self.core.job(BATCH_ID)
                if job.stage == "starting":
                    self.core.confirmed(BATCH_ID)
                    while self.read():
                        pass
                    self.effects.extend(self.core.caught_up(BATCH_ID, self.now))
            case FinishJob():
                self.finished = effect.outcome

    def step(self) -> None:
        self.now += self.rng.choice((1_000, 3_000_000))
        self.effects.extend(self.core.step(self.now, {t: list(each) for t, each in self.positions.items()}))

    def read(self) -> bool:
        """Pass the next record of a random partition to the core. Return whether there was one."""
        waiting = [
            (topic, number)
            for topic in TOPICS
            for number in range(PARTITIONS)
            if self.positions[topic][number] < len(self.log[topic][number])
        ]
        if not waiting:
            return False
        topic, number = self.rng.choice(waiting)
        offset = self.positions[topic][number]
        self.positions[topic][number] += 1
        record = Received(topic, number, offset, 0, self.log[topic][number][offset], None)
        self.effects.extend(self.core.read(record, self.now))
        return True

    def answer(self, *, well: bool) -> None:
        """Answer a random open request, as a worker and a router do. If ``well`` is false, the answer fails."""
        waiting = [each for each in dict.fromkeys(self.submitted) if each not in self.closed]
        if not waiting:
            return
        request_id = self.rng.choice(waiting)
        self.closed.add(request_id)
        about = {"request_id": request_id, "tenant": "t", "at": 0, "source": "test"}
        run = about | {"attempt": 1, "run": "r"}
        self._write(
            STREAMS.name,
            Started(
                **run, model="m", engine="e", queue_ms=0, received_at=0, delivery=Delivery(), deadlines=Deadlines(),
                input_gate="off", output_check="off",
            ),
        )  # fmt: skip
        if well:
            text = f"answer to {request_id}"
            self._write(STREAMS.name, Chunk(**run, seq=0, start=0, text=text))
            self._write(STREAMS.name, Finished(**run, last_seq=0, finish_reason="stop", usage=Usage(prompt_tokens=1)))
            self._write(STREAMS.name, Closed(**about, outcome="completed", cause="answered"))
        else:
            self._write(STREAMS.name, Failed(**run, error_class="unavailable", message="no", retryable=True))
            self._write(STREAMS.name, Closed(**about, outcome="failed", cause="attempts_failed"))

    def durable(self) -> list:
        """Return the results that a new service would recover.

        These are the results in the part files, up to the lengths that the newest ``BatchProgress`` names.
        """
        return [each for part in self.state.progress.parts for each in self.parts[part.name][: part.length]]

    def run_to_the_end(self) -> None:
        for _ in range(200 * self.lines + 200):
            if self.finished is not None and not self.effects:
                return
            self.step()
            while self.effects:
                self.perform()
            self.answer(well=True)
            while self.read():
                pass
        raise AssertionError("the job does not end")

    def _request(self, request_id: str) -> None:
        self.submitted.append(request_id)
        about = {"request_id": request_id, "tenant": "t", "at": 0, "source": "test"}
        self._write(REQUESTS_BATCH.name, Request(**about, messages=(Message(role="user", content="?"),), lane="batch"))

    def _write(self, topic: str, event) -> None:
        self.log[topic][partition_for(event.request_id, PARTITIONS)].append(event)
