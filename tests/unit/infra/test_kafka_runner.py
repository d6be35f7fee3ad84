"""Test what `infra/kafka/run.py` reports if it cannot run, and that it never uses an incomplete download."""

import hashlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each is a process

ROOT = Path(__file__).resolve().parents[3]
KAFKA = ROOT / "infra" / "kafka"
JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
FAKE_JARS = (
    'for a in "$@"; do case $a in -DoutputDirectory=*) d=${a#*=}; mkdir -p "$d"; echo jar > "$d/kafka.jar";; esac; done'
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with a copy of `infra/kafka` and an empty folder `bin`.

    The copy of ``run.py`` downloads into the returned folder. ``_run`` starts it with only `bin` on the ``PATH``.
    """
    copied = tmp_path / "infra" / "kafka"
    copied.mkdir(parents=True)
    for name in ("run.py", "jars.py", "node.py", "pom.xml", "server.properties", "log4j2.properties"):
        (copied / name).write_bytes((KAFKA / name).read_bytes())
    (tmp_path / "bin").mkdir()
    return tmp_path


def _program(checkout: Path, name: str, script: str) -> None:
    program = checkout / "bin" / name
    program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    program.chmod(0o755)


def _run(checkout: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(checkout / "infra" / "kafka" / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": str(checkout / "bin")},
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""


def _lib(checkout: Path) -> Path:
    (lib,) = (checkout / ".railbus").glob("kafka-*/lib")
    return lib


def test_no_java(checkout: Path) -> None:
    status, said = _run(checkout, "--port", "0")

    assert status == 3
    assert said.startswith("kafka: no Java found: install")


def test_java_too_old(checkout: Path) -> None:
    _program(checkout, "java", "echo 'openjdk version \"1.8.0_392\"' >&2")

    status, said = _run(checkout, "--port", "0")

    assert status == 3
    assert "is Java 8: install a Java runtime, version 17 or newer" in said


def test_java_that_does_not_run(checkout: Path) -> None:
    _program(checkout, "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")

    status, said = _run(checkout, "--port", "0")

    assert status == 3
    assert "does not run: install" in said


def test_no_maven(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)

    assert _run(checkout, "--fetch-only") == (
        3,
        "kafka: no mvn found: install Apache Maven 3.6 or newer (Debian: maven)",
    )


def test_a_failed_download_says_why_and_leaves_nothing_that_looks_whole(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)
    _program(checkout, "mvn", f"{FAKE_JARS}\necho '[INFO] x'\necho '[ERROR] no route to host -> [Help 1]'\nexit 1")

    assert _run(checkout, "--fetch-only") == (1, "kafka: download failed: no route to host")
    assert not list((checkout / ".railbus").glob("kafka-*/lib"))

    _program(checkout, "mvn", FAKE_JARS)
    assert _run(checkout, "--fetch-only")[0] == 0
    assert (_lib(checkout) / "kafka.jar").exists()


def test_the_jars_are_fetched_once(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)
    _program(checkout, "mvn", f"echo called >> {checkout}/calls\n{FAKE_JARS}")

    for _ in range(3):
        assert _run(checkout, "--fetch-only")[0] == 0

    assert (checkout / "calls").read_text() == "called\n"


def test_two_at_once_fetch_once(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)
    _program(checkout, "mvn", f"echo called >> {checkout}/calls\nsleep 0.5\n{FAKE_JARS}")
    command = [sys.executable, str(checkout / "infra" / "kafka" / "run.py"), "--fetch-only"]
    both = [subprocess.Popen(command, env={"PATH": str(checkout / "bin")}, stderr=subprocess.DEVNULL) for _ in range(2)]

    assert [process.wait(60) for process in both] == [0, 0]
    assert (checkout / "calls").read_text() == "called\n"


def test_jars_without_a_stamp_or_of_another_pom_are_fetched_again(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)
    _program(checkout, "mvn", f"echo called >> {checkout}/calls\n{FAKE_JARS}")
    _run(checkout, "--fetch-only")
    stamp = _lib(checkout) / "pom.sha256"

    stamp.unlink()
    _run(checkout, "--fetch-only")
    assert (checkout / "calls").read_text() == "called\n" * 2
    pom = checkout / "infra" / "kafka" / "pom.xml"
    pom.write_text(pom.read_text() + "<!-- changed -->\n")
    _run(checkout, "--fetch-only")
    assert (checkout / "calls").read_text() == "called\n" * 3
    assert stamp.read_text() == hashlib.sha256(pom.read_bytes()).hexdigest()


def test_a_port_in_use(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)
    _program(checkout, "mvn", FAKE_JARS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        status, said = _run(checkout, "--port", str(port))

    assert status == 1
    assert said == f"kafka: port {port} is in use: choose another with --port, or --port 0 for a free one"


@pytest.mark.parametrize("port", ["-1", "65536", "many"])
def test_a_port_that_is_none(checkout: Path, port: str) -> None:
    status, said = _run(checkout, "--port", port)

    assert status == 2
    assert "--port" in said


def test_a_data_directory_that_cannot_be(checkout: Path) -> None:
    _program(checkout, "java", JAVA_17)
    _program(checkout, "mvn", FAKE_JARS)
    (checkout / "file").write_text("")

    status, said = _run(checkout, "--port", "0", "--data-dir", str(checkout / "file"))

    assert status == 1
    assert said == f"kafka: --data-dir {checkout}/file: File exists"


def test_a_broker_that_ends_at_once_is_reported_with_its_own_words(checkout: Path) -> None:
    starts = 'case "$*" in *kafka.Kafka*) echo "java.lang.IllegalStateException: the disk is full"; exit 1;; esac'
    _program(checkout, "java", f"{JAVA_17}\n{starts}")
    _program(checkout, "mvn", FAKE_JARS)

    status, said = _run(checkout, "--port", "0", "--data-dir", str(checkout / "data"))

    assert status == 1
    assert "the broker did not start: java.lang.IllegalStateException: the disk is full" in said


def test_storage_that_cannot_be_formatted(checkout: Path) -> None:
    tool = 'case "$*" in *StorageTool*) echo "no permission" >&2; exit 1;; esac'
    _program(checkout, "java", f"{JAVA_17}\n{tool}")
    _program(checkout, "mvn", FAKE_JARS)

    status, said = _run(checkout, "--port", "0", "--data-dir", str(checkout / "data"))

    assert (status, said) == (1, "kafka: storage could not be formatted: no permission")


def test_the_pom_names_no_address() -> None:
    text = (KAFKA / "pom.xml").read_text().replace("http://maven.apache.org/POM/4.0.0", "")

    assert "http" not in text


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--nodes", "0"), "--nodes 0: must be between 1 and 5"),
        (("--nodes", "6"), "--nodes 6: must be between 1 and 5"),
        (("--restart",), "--restart: one node that ends ends the run; give --nodes 3, or leave --restart out"),
        (("--nodes", "3", "--port", "65534"), "--port 65534"),
    ],
)
def test_nodes_that_cannot_be(checkout: Path, arguments: tuple[str, ...], remedy: str) -> None:
    status, said = _run(checkout, *arguments)

    assert status == 2
    assert remedy in said


def test_nodes_that_end_at_once_are_reported(checkout: Path) -> None:
    starts = 'case "$*" in *kafka.Kafka*) echo "java.lang.IllegalStateException: the disk is full"; exit 1;; esac'
    _program(checkout, "java", f"{JAVA_17}\n{starts}")
    _program(checkout, "mvn", FAKE_JARS)

    status, said = _run(checkout, "--nodes", "3", "--port", "0", "--data-dir", str(checkout / "data"))

    assert status == 1
    assert "the broker did not start: java.lang.IllegalStateException: the disk is full" in said
    voters = set()
    for number in (1, 2, 3):
        settings = (checkout / "data" / f"node-{number}" / "server.properties").read_text().splitlines()
        assert f"node.id={number}" in settings
        assert "default.replication.factor=3" in settings
        assert "min.insync.replicas=2" in settings
        assert "offsets.topic.replication.factor=3" in settings
        voters |= {line for line in settings if line.startswith("controller.quorum.voters=")}
    assert len(voters) == 1
