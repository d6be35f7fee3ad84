"""Services and their broker, with two processes of each service except the Vertex worker.

A ``Place`` runs one process of a service. If another process replaces it, the name and the port stay the same.
"""

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
"""Maximum time in seconds for a process to start. On a shared machine, many starts at once take minutes."""

START_TRIES = 2

UNHURRIED = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "15000", "RAILBUS_CLIENT_GRACE_MS": "30000"}
"""Settings for campaigns that kill nothing. With them, a process or client that is slow for some seconds does not count
as dead."""


class Place:
    """A place where one process of a service runs.

    Attributes:
        ready: Whether the process has reported that it is ready.
        busy: Whether the process is now the target of a fault.
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
        """Kill the process with SIGKILL, if it still runs, and discard its output."""
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
        """Stop the process with SIGTERM, and return its exit status. Return None if it had to be killed."""
        self.ready = False
        self.process.signal(signal.SIGTERM)
        ended = await comes_true(lambda: not self.process.running, STOP_S)
        status = self.process.status if ended else None
        self.drop()
        return status


class ClusterTree:
    """The processes of the services, and a broker: a Kafka cluster or, with ``nodes=0``, the embedded broker.

    Attributes:
        places: Each place runs one process of a service. Faults may add and remove places.
        trouble: Descriptions of what went wrong, such as a process that ended by itself.
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
        """Return the places where a process of ``service`` is ready and not the target of a fault."""
        return [place for place in self.places if place.service == service and place.ready and not place.busy]

    def edges(self):
        return [
            f"http://127.0.0.1:{place.env['RAILBUS_EDGE_PORT']}" for place in self.places if place.service == "edge"
        ]

    async def watch(self):
        """If a process ends by itself, add a message to ``trouble``, and start another process in its place."""
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
