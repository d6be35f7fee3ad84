"""Two of everything, each a process in a place of its own: a place keeps its name and port, its process may change."""

import asyncio
import signal
import sys
from contextlib import suppress

from tests.support.brokers import Broker, KafkaCluster
from tests.support.processes import ServiceProcess, free_port
from tests.support.waiting import comes_true

SERVICES = ("edge", "router", "safety", "rails", "generator", "vertex")
TWO_OF = ("edge", "router", "safety", "rails", "generator")
PARTITIONS = 8
SESSION_S = 6.0
STOP_S = 30.0
START_S = 300.0
"""Longest wait for a ready line: on a machine that others share a start of many at once takes minutes."""

START_TRIES = 2

UNHURRIED = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "15000", "RAILBUS_CLIENT_GRACE_MS": "30000"}
"""Where nothing is killed: no process or client that the machine holds up for seconds is taken for a dead one."""


class Place:
    """Where a member of a service runs.

    Attributes:
        ready: Whether its process has said that it serves.
        busy: Whether a fault is being done to it.
    """

    def __init__(self, service, number, env):
        self.service, self.name, self.env = service, f"{service}-{number}", env
        self.command = (f"services.{service}",)
        self.process = None
        self.ready = self.busy = False

    async def start(self):
        for attempt in range(START_TRIES):
            self.process = ServiceProcess(*self.command, **self.env)
            try:
                await self.process.ready(START_S)
            except AssertionError:
                self.drop()
                if attempt == START_TRIES - 1:
                    raise
            else:
                self.ready = True
                return

    def drop(self):
        """kill -9; what it wrote is kept only where it ended by itself."""
        self.ready = False
        if self.process is None:
            return
        process, self.process = self.process, None
        with suppress(ProcessLookupError):
            process.signal(signal.SIGKILL)
        process._popen.wait()
        process._out.close()
        process._err.close()

    async def stop(self):
        """SIGTERM, as an operator does; return the exit status, None where it had to be killed."""
        self.ready = False
        self.process.signal(signal.SIGTERM)
        ended = await comes_true(lambda: not self.process.running, STOP_S)
        status = self.process.status if ended else None
        self.drop()
        return status


class ClusterTree:
    """The broker, three nodes of Kafka or otherwise, and the services.

    Attributes:
        places: All places; those beyond two of a service come and go.
        trouble: What no process may do: end by itself, or not end when told to.
    """

    def __init__(self, folder, *, policy, scale, with_cloud, nodes=3, env=None):
        self._policy, self._scale, self._env = policy, scale, env or {}
        self._with_cloud = with_cloud
        self.kafka = KafkaCluster(folder / "kafka", nodes) if nodes else Broker("embedded", folder / "broker")
        self.places, self.trouble, self.emulator = [], [], None
        self._made = 0

    @property
    def bootstrap(self):
        return self.kafka.bootstrap if isinstance(self.kafka, KafkaCluster) else self.kafka.address

    async def open(self):
        self.kafka.launch()
        await asyncio.to_thread(self.kafka.wait_until_ready)
        if self._with_cloud:
            self.emulator = ServiceProcess(
                "services.devtools.vertex", "--gap-ms", "1", "--ttft-ms", "50", "--words", "300"
            )
            self._cloud_url = (await self.emulator.ready()).split()[-1]
        first, *others = [self.place(service) for service in (*TWO_OF, *TWO_OF)]
        if self._with_cloud:
            others.append(self.place("vertex"))
        await first.start()  # it makes the topics
        await asyncio.gather(*(place.start() for place in others))

    async def close(self):
        for place in self.places:
            place.drop()
        if self.emulator is not None:
            self.emulator.kill()
        await asyncio.to_thread(self.kafka.stop)

    def place(self, service):
        self._made += 1
        env = {
            "RAILBUS_KAFKA_BOOTSTRAP": self.bootstrap,
            "RAILBUS_PARTITIONS": str(PARTITIONS),
            "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": str(int(SESSION_S * 1_000)),
            "RAILBUS_POLICY": str(self._policy),
            "RAILBUS_INPUT_GATE": "hold",
            "RAILBUS_OUTPUT_CHECK": "on",
            "RAILBUS_ENGINE": "simulated",
            "RAILBUS_SIM_DRAFT": "none",
            "RAILBUS_SIM_TIME_SCALE": str(self._scale),
            "RAILBUS_EDGE_PORT": str(free_port()),
            "RAILBUS_HEALTH_PORT": "0",
            "RAILBUS_LOG_LEVEL": "WARNING",
        }
        if self._with_cloud:
            env |= {
                "RAILBUS_FALLBACK": "vertex", "RAILBUS_VERTEX_URL": self._cloud_url,
                "RAILBUS_VERTEX_MODEL": "emulated", "RAILBUS_FALLBACK_RATIO": "1", "RAILBUS_FALLBACK_FREE": "1000",
            }  # fmt: skip
        made = Place(service, self._made, env | self._env)
        self.places.append(made)
        return made

    def live(self, service):
        """The places of a service that serve and to which nothing is being done."""
        return [place for place in self.places if place.service == service and place.ready and not place.busy]

    def edges(self):
        return [
            f"http://127.0.0.1:{place.env['RAILBUS_EDGE_PORT']}" for place in self.places if place.service == "edge"
        ]

    async def watch(self):
        """Report each process that ends by itself, and start another."""
        while True:
            await asyncio.sleep(0.5)
            for place in self.places:
                if place.ready and not place.busy and not place.process.running:
                    said = place.process.stderr[-1_500:]
                    self.trouble.append(f"{place.name} ended by itself with {place.process.status}: {said}")
                    print(self.trouble[-1], file=sys.stderr, flush=True)
                    place.busy = True
                    place.drop()
                    await place.start()
                    place.busy = False
