import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka.conn import collect_hosts
from faust.transport.drivers.aiokafka import server_list
from yarl import URL

from services.bus import BusSettings
from services.bus.kafka.clients import common_options
from services.runtime.errors import UserError
from services.runtime.settings import load_settings, settings_variables
from tests.support.certificates import certificate


def test_defaults() -> None:
    settings = load_settings(BusSettings, {})
    assert settings == BusSettings()
    assert settings.addresses() == [("127.0.0.1", 9092)]
    assert settings.ssl_context() is None


def test_every_setting_has_its_variable() -> None:
    names = {variable.name for variable in settings_variables(BusSettings)}
    assert names == {
        "RAILBUS_KAFKA_BOOTSTRAP",
        "RAILBUS_PARTITIONS",
        "RAILBUS_REPLICATION",
        "RAILBUS_MIN_INSYNC_REPLICAS",
        "RAILBUS_KAFKA_LINGER_MS",
        "RAILBUS_KAFKA_SESSION_TIMEOUT_MS",
        "RAILBUS_KAFKA_SECURITY_PROTOCOL",
        "RAILBUS_KAFKA_SASL_MECHANISM",
        "RAILBUS_KAFKA_SASL_USERNAME",
        "RAILBUS_KAFKA_SASL_PASSWORD",
        "RAILBUS_KAFKA_SSL_CAFILE",
        "RAILBUS_KAFKA_SSL_CERTFILE",
        "RAILBUS_KAFKA_SSL_KEYFILE",
    }


def test_several_brokers_and_ipv6() -> None:
    settings = load_settings(BusSettings, {"RAILBUS_KAFKA_BOOTSTRAP": "a:1, [::1]:9092"})
    assert settings.addresses() == [("a", 1), ("::1", 9092)]
    read_by_aiokafka = collect_hosts(common_options(settings, "test")["bootstrap_servers"], randomize=False)
    assert [(host, port) for host, port, _ in read_by_aiokafka] == settings.addresses()
    urls = [URL(f"kafka://{server}") for server in settings.servers()]
    assert server_list(urls, 9092) == ["a:1", "[::1]:9092"], "as the ledger's Faust reads it"


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":9092", "host:x", "host:0", "host:70000", "a:1,,b:2", "a..b:9092", f"{'x' * 64}.net:9092"],
)
def test_a_wrong_address_is_named(address: str) -> None:
    with pytest.raises(UserError, match=r"RAILBUS_KAFKA_BOOTSTRAP=.*must be HOST:PORT"):
        BusSettings(bootstrap=address)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RAILBUS_PARTITIONS": "none"}, "RAILBUS_PARTITIONS='none': must be a whole number between 1 and 10000"),
        ({"RAILBUS_PARTITIONS": "0"}, "RAILBUS_PARTITIONS='0': must be"),
        ({"RAILBUS_KAFKA_LINGER_MS": "-1"}, "RAILBUS_KAFKA_LINGER_MS='-1': must be a number"),
        ({"RAILBUS_KAFKA_SECURITY_PROTOCOL": "TLS"}, "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"RAILBUS_KAFKA_SASL_MECHANISM": "GSSAPI"}, "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (
            {"RAILBUS_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "RAILBUS_KAFKA_SASL_USERNAME": "me"},
            "needs RAILBUS_KAFKA_SASL_USERNAME and RAILBUS_KAFKA_SASL_PASSWORD",
        ),
        ({"RAILBUS_KAFKA_SASL_PASSWORD": "hush"}, "set it to SASL_SSL or SASL_PLAINTEXT"),
        ({"RAILBUS_KAFKA_SSL_CAFILE": "/ca.pem"}, "does not encrypt: set it to SSL or SASL_SSL"),
        (
            {"RAILBUS_KAFKA_SECURITY_PROTOCOL": "SSL", "RAILBUS_KAFKA_SSL_KEYFILE": "/key.pem"},
            "needs RAILBUS_KAFKA_SSL_CERTFILE",
        ),
    ],
)
def test_what_cannot_work_is_said_with_its_remedy(env: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings(BusSettings, env)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_unreadable_certificate_is_named(tmp_path: Path) -> None:
    settings = BusSettings(security_protocol="SSL", ssl_cafile=tmp_path / "missing.pem")
    with pytest.raises(UserError, match="RAILBUS_KAFKA_SSL_CAFILE"):
        settings.ssl_context()


def test_a_key_with_a_password_is_not_asked_for_on_the_terminal(tmp_path: Path) -> None:
    plain, cert = certificate(tmp_path, "client")
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(plain), "-aes256", "-passout", "pass:hush", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    program = (
        "from pathlib import Path; from services.bus import BusSettings; "
        f"BusSettings(security_protocol='SSL', ssl_certfile=Path({str(cert)!r}), ssl_keyfile=Path({str(locked)!r}))"
        ".ssl_context()"
    )
    on_terminal = f"import pty; pty.spawn([{sys.executable!r}, '-c', {program!r}])"
    run = subprocess.run(
        [sys.executable, "-c", on_terminal], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, text=True
    )
    assert "_KEYFILE cannot be used" in run.stdout
    assert "without a password" in run.stdout
    assert "pass phrase" not in run.stdout


def test_the_password_is_not_in_the_repr() -> None:
    settings = BusSettings(security_protocol="SASL_SSL", sasl_username="me", sasl_password="hush")
    assert "hush" not in repr(settings)
