"""Download the jars of Apache Kafka with Maven into `.railbus/kafka-VERSION/lib`.

The jars are downloaded once, and again if `pom.xml` changes. While one process downloads, other processes wait.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
CACHE = HERE.parent.parent / ".railbus"
MIN_JAVA = 17
FETCH_LIMIT_S = 600
_STAMP = "pom.sha256"


class KafkaError(Exception):
    """Apache Kafka cannot be downloaded, started or run. `run.py` exits with the `status` of the error."""

    status = 1


class PrerequisiteError(KafkaError):
    """Java or Maven is missing, or Java is too old."""

    status = 3


def kafka_version() -> str:
    found = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", POM.read_text())
    if found is None:
        raise KafkaError(f"{POM.name} names no kafka.version")
    return found[1]


def find_java() -> str:
    """Return the path of ``java``, from JAVA_HOME or PATH.

    Raises:
        PrerequisiteError: Java is missing, does not run, or is older than version 17.
    """
    remedy = f"install a Java runtime, version {MIN_JAVA} or newer (Debian: openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise PrerequisiteError(f"no Java found: {remedy}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    if shown.returncode or version is None:
        raise PrerequisiteError(f"{java} does not run: {remedy}")
    if int(version[1]) < MIN_JAVA:
        raise PrerequisiteError(f"{java} is Java {version[1]}: {remedy}")
    return java


def fetch(cache: Path = CACHE) -> Path:
    """Return the folder with the jars. Download the jars if they are missing.

    Raises:
        PrerequisiteError: Maven is needed and missing.
        KafkaError: Maven fails or takes longer than ten minutes.
    """
    home = cache / f"kafka-{kafka_version()}"
    lib = home / "lib"
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        if not is_complete(lib):
            _download(lib)
    return lib


def is_complete(lib: Path) -> bool:
    stamp = lib / _STAMP
    return stamp.is_file() and stamp.read_text() == _digest()


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent dies (Linux only). Call it in a child before exec."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _digest() -> str:
    return hashlib.sha256(POM.read_bytes()).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(lib: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PrerequisiteError("no mvn found: install Apache Maven 3.6 or newer (Debian: maven)")
    partial = lib.with_name("lib.partial")
    for old in (partial, lib):
        shutil.rmtree(old, ignore_errors=True)
    print(f"fetching Apache Kafka {kafka_version()} (about 45 MB, once)", file=sys.stderr, flush=True)
    # -C: a jar whose checksum does not match is an error, not a warning.
    command = [maven, "-B", "-q", "-C", "-f", str(POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_LIMIT_S,
            check=False,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise KafkaError(f"download failed: Maven had not finished after {FETCH_LIMIT_S} s") from None
    if done.returncode:
        raise KafkaError(f"download failed: {_first_error(done.stdout)}")
    (partial / _STAMP).write_text(_digest())
    partial.rename(lib)


def _first_error(output: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    errors = [line.removeprefix("[ERROR] ") for line in plain.splitlines() if line.startswith("[ERROR]")]
    lines = errors or plain.split("\n")[-1:]
    return lines[0].split(" -> [Help")[0].strip() or "Maven gave no reason"
