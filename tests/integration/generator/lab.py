"""A lab with generators on a real log. The test acts as the apps that send requests, and as the router."""

import random
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery, Message, Request, Sampling
from schemas.side_events import Cancel
from schemas.stream import Chunk, Failed, Finished, Started
from schemas.topics import REQUESTS, STREAMS
from tests.support.lab import Lab
from tests.support.waiting import until


class GeneratorLab(Lab):
    service = "services.generator"
    settings = {  # noqa: RUF012
        "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "1500", "RAILBUS_ENGINE": "simulated", "RAILBUS_SIM_TIME_SCALE": "0.2",
    }  # fmt: skip

    @property
    def records(self):
        """Return the records of ``railbus.streams`` that the test has read so far."""
        return [record for record in self.log if record.topic == STREAMS.name]

    async def generator(self, **env):
        process = self.start(**env)
        self.ready_line = await process.ready()
        return process

    async def ask(self, model="default", **changes):
        """Write a request to the log, and return the request's id."""
        request = make_request(model, **changes)
        await self.send(request)
        return request.request_id

    async def cancel(self, request_id, *, attempt=None, reason="client_gone"):
        event = Cancel(
            request_id=request_id,
            tenant="acme",
            at=time.time_ns() // 1_000,
            source="test",
            attempt=attempt,
            reason=reason,
        )
        await self.send(event)

    def events(self, request_id, *kinds):
        """Return the events of a request that were read from the stream log so far.

        If ``kinds`` are given, return only events of these kinds.
        """
        events = (record.event for record in self.records if record.event.request_id == request_id)
        return [event for event in events if not kinds or isinstance(event, kinds)]

    def chunks(self, request_id):
        return self.events(request_id, Chunk)

    async def chunk(self, request_id, seq=0):
        """Wait until chunk ``seq`` of the request has been read. The first chunk has number 0."""
        await self.until(lambda: len(self.chunks(request_id)) > seq)

    async def end(self, request_id):
        """Wait for the first ``Finished`` or ``Failed`` of a request, and return this event."""
        await self.until(lambda: self.events(request_id, Finished, Failed))
        return self.events(request_id, Finished, Failed)[0]

    async def begun_for_good(self, *request_ids):
        """Wait until the generators' consumer group has committed these requests, so no generator reads them again."""

        def records():
            wanted = (record for record in self.log if record.topic == REQUESTS.name)
            return [record for record in wanted if record.event.request_id in request_ids]

        await self.until(lambda: len(records()) == len(request_ids))
        async with AIOKafkaConsumer(
            bootstrap_servers=self.bus.bootstrap, group_id="generator", enable_auto_commit=False
        ) as group:

            async def committed():
                for record in records():
                    at = await group.committed(TopicPartition(record.topic, record.partition))
                    if at is None or at <= record.offset:
                        return False
                return True

            await until(committed, "the group has committed them", every_s=0.1)

    def check(self, request_id):
        """Check every run of a request, and return the names of the runs.

        In a run, ``Started`` comes first, then come chunks without a gap, then at most one ``Finished`` or ``Failed``.
        """
        events = self.events(request_id)
        runs = {event.run for event in events}
        for run in runs:
            mine = [event for event in events if event.run == run]
            chunks = [event for event in mine if isinstance(event, Chunk)]
            assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
            assert [chunk.start for chunk in chunks] == [
                sum(len(other.text) for other in chunks[:n]) for n in range(len(chunks))
            ]
            ends = [event for event in mine if isinstance(event, Finished | Failed)]
            assert len(ends) <= 1
            if ends:
                assert mine[-1] is ends[0]
                assert ends[0].last_seq == len(chunks) - 1
            if chunks:
                assert isinstance(mine[0], Started)
        return runs


def make_request(model="default", *, total_ms=60_000, mode="optimistic", age_ms=0, **changes):
    """Return a request as an app would write it. The app received the prompt ``age_ms`` milliseconds ago."""
    now_ms = time.time_ns() // 1_000_000
    return Request(
        request_id=uuid7(now_ms, random.getrandbits(74)),
        tenant="acme",
        at=now_ms * 1_000,
        waited_ms=age_ms,
        source="test",
        model=model,
        messages=(Message(role="user", content="Tell me about rivers."),),
        sampling=Sampling(max_tokens=500),
        delivery=Delivery(mode=mode),
        deadlines=Deadlines(total_ms=total_ms),
        **changes,
    )
