"""Test the embedded broker with unmodified clients that this project does not use itself.

The tests of librdkafka from Python (confluent-kafka) are in tests/contract. Each test here needs its client, and is
skipped if the client is not available:

- kcat must be in PATH.
- kafka-clients needs a JDK in PATH, and Kafka's jars in the folder where infra/kafka/run.py keeps them.
- franz-go needs RAILBUS_TEST_FRANZ_GO=1, and Go in PATH. Go downloads the module of franz-go.
- Faust needs an installed faust-streaming, or RAILBUS_TEST_FAUST=1, which installs it into a virtual environment.
"""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.brokers import ROOT, Broker

CLIENTS = Path(__file__).parent / "clients"
# Long enough to fetch a client and compile it on a busy machine.
PATIENCE_S = 600
RECORDS = [f"k{number}=v{number}" for number in range(3)]


@pytest.fixture
def topic() -> str:
    return f"stranger-{random.getrandbits(64):x}"


def run(command: list[str | Path], *, given: str | None = None, folder: Path | None = None) -> list[str]:
    """Run a client in ``folder``, with ``given`` as its standard input. Return the lines of its standard output."""
    done = subprocess.run(
        command, input=given, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def create(broker: Broker, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat (Debian: apt install kcat)")
def test_kcat(embedded_broker: Broker, topic: str) -> None:
    create(embedded_broker, topic)
    kcat = ["kcat", "-q", "-b", embedded_broker.address]
    assert any(topic in line for line in run([*kcat, "-L"]))
    run([*kcat, "-P", "-t", topic, "-K", "=", "-X", "enable.idempotence=true"], given="\n".join(RECORDS) + "\n")
    assert run([*kcat, "-C", "-t", topic, "-o", "beginning", "-e", "-K", "="]) == RECORDS
    assert run([*kcat, "-C", "-t", topic, "-o", "-1", "-e", "-K", "="]) == RECORDS[-1:]
    in_group = [*kcat, "-X", "auto.offset.reset=earliest", "-X", "enable.partition.eof=true", "-e", "-K", "="]
    assert run([*in_group, "-G", topic, topic]) == RECORDS


def kafka_jars() -> Path | None:
    found = sorted((ROOT / ".railbus").glob("kafka-*/lib"))
    return found[-1] if found else None


@pytest.mark.kafka
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
@pytest.mark.skipif(kafka_jars() is None, reason="needs Kafka's jars: python infra/kafka/run.py --fetch-only")
def test_kafka_clients(embedded_broker: Broker, topic: str) -> None:
    command = ["java", "-cp", f"{kafka_jars()}/*", CLIENTS / "Clients.java", embedded_broker.address, topic]
    assert run(command) == RECORDS


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("RAILBUS_TEST_FRANZ_GO") != "1", reason="RAILBUS_TEST_FRANZ_GO=1 fetches franz-go")
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go")
def test_franz_go(embedded_broker: Broker, topic: str) -> None:
    assert run(["go", "run", ".", embedded_broker.address, topic], folder=CLIENTS / "franz_go") == RECORDS


def faust_python(folder: Path) -> Path:
    """Return a Python interpreter that can import Faust. Skip the test if there is none."""
    if "faust" in sys.modules or importlib.util.find_spec("faust") is not None:
        return Path(sys.executable)
    if os.environ.get("RAILBUS_TEST_FAUST") != "1":
        pytest.skip("needs faust-streaming; RAILBUS_TEST_FAUST=1 installs it into a virtual environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "faust-streaming>=0.11.3"])
    return python


@pytest.mark.slow
def test_a_faust_app_with_a_table(embedded_broker: Broker, topic: str, tmp_path: Path) -> None:
    python = faust_python(tmp_path / "venv")
    words = ["log", "fold", "log"]
    for name in ("words", "counts"):
        create(embedded_broker, f"{topic}-{name}", partitions=2)
    producer = Producer({"bootstrap.servers": embedded_broker.address})
    for word in words:
        producer.produce(f"{topic}-words", word, word)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {"bootstrap.servers": embedded_broker.address, "group.id": f"{topic}-reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([f"{topic}-counts"])
    log = tmp_path / "faust.log"
    with log.open("w") as output:
        command = [python, CLIENTS / "faust_app.py", embedded_broker.address, topic, tmp_path / "data"]
        app = subprocess.Popen([*command, "worker", "--without-web"], stdout=output, stderr=output)
    try:
        counted = []
        for _ in words:
            record = consumer.poll(PATIENCE_S)
            assert record is not None, log.read_text()
            assert record.error() is None
            counted.append(f"{record.key().decode()}={record.value().decode()}")
    finally:
        app.kill()
        app.wait()
        consumer.close()
    assert sorted(counted) == ["fold=1", "log=1", "log=2"]
