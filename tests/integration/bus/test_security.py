"""Test encryption and authentication on Apache Kafka. The embedded broker has neither, as it serves only loopback."""

import asyncio
import dataclasses
import os
import shutil
import subprocess
import sys

import pytest

from schemas.topics import STREAMS
from services.bus import BusSettings, Producer, TailReader, ensure_topics
from services.runtime import UserError
from tests.contract.conftest import running_broker
from tests.integration.bus.lab import LIMIT_S, RecordCollector, chunk, request_in
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of
from tests.support.certificates import certificate
from tests.support.processes import free_port

pytestmark = [
    pytest.mark.kafka,
    # uvloop waits 30 s for a peer's close_notify, which Kafka does not send. A test's event loop ends sooner.
    pytest.mark.filterwarnings("ignore:Exception ignored in. 'uvloop:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate"),
]

SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:${{port}},CONTROLLER://127.0.0.1:${{controller_port}},SECURE://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://127.0.0.1:${{port}},SECURE://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={keystore}
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_railbus="right";
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """Start an Apache Kafka whose listener requires TLS and a password. Yield the settings that a client needs."""
    folder = tmp_path_factory.mktemp("secure")
    key, cert = certificate(folder, "broker")
    (folder / "keystore.pem").write_text(key.read_text() + cert.read_text())
    port = free_port()
    settings = folder / "more.properties"
    settings.write_text(SETTINGS.format(port=port, keystore=folder / "keystore.pem"))
    for _ in running_broker(Broker("kafka", folder / "data", options=("--settings", str(settings)))):
        yield BusSettings(
            bootstrap=f"127.0.0.1:{port}", security_protocol="SASL_SSL", sasl_mechanism="PLAIN",
            sasl_username="railbus", sasl_password="right", ssl_cafile=cert,
        )  # fmt: skip


async def test_what_is_sent_over_tls_with_a_password_is_read(secure):
    topic = copy_of(STREAMS)
    await ensure_topics(secure, [topic])
    got, request_id = RecordCollector(), request_in(2)
    reader = TailReader(secure, handler=got)
    producer = Producer(secure, role=any_role(), name="test")
    await producer.start()
    reading = asyncio.create_task(reader.run())
    await reader.follow(topic, 2, "beginning")
    for seq in range(3):
        await producer.send(topic, chunk(request_id, seq))
    await got.until_count(3)
    assert got.seqs == [0, 1, 2]
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await producer.stop()


def test_a_command_is_told_by_its_environment_and_ends_without_a_word(secure):
    told = {
        "RAILBUS_KAFKA_BOOTSTRAP": secure.bootstrap, "RAILBUS_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "RAILBUS_KAFKA_SASL_MECHANISM": "PLAIN", "RAILBUS_KAFKA_SASL_USERNAME": "railbus",
        "RAILBUS_KAFKA_SASL_PASSWORD": "right", "RAILBUS_KAFKA_SSL_CAFILE": str(secure.ssl_cafile),
    }  # fmt: skip
    command = [sys.executable, "-m", "services.cli", "topics", "--create"]
    done = subprocess.run(command, env=os.environ | told, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_wrong_password_is_the_operators_mistake(secure):
    wrong = dataclasses.replace(secure, sasl_password="wrong")
    with pytest.raises(UserError, match="SASL") as error:
        async with asyncio.timeout(LIMIT_S):
            await ensure_topics(wrong)
    assert "wrong" not in str(error.value)


async def test_a_broker_that_nobody_vouches_for_is_not_spoken_to(secure, tmp_path):
    _, stranger = certificate(tmp_path, "stranger")
    with pytest.raises(UserError, match=r"certificate is not trusted .* set RAILBUS_KAFKA_SSL_CAFILE"):
        async with asyncio.timeout(LIMIT_S):
            await ensure_topics(dataclasses.replace(secure, ssl_cafile=stranger))
