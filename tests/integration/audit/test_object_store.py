"""Test an archive in an S3-compatible object store: killed archivers leave no gap in it, and audit commands read it."""

import asyncio
import json
import random
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("moto", reason="needs moto: pip install 'moto[server]'")

from pyarrow import fs

from services.archive.reader import Archive
from services.archive.store import Store
from tests.integration.audit.lab import places
from tests.support.processes import ROOT, bare_environment
from tests.support.s3 import CREDENTIALS, s3_server
from tests.support.waiting import until

pytestmark = pytest.mark.slow
KILLS = 6


@pytest.fixture(scope="module")
def bucket():
    with s3_server() as uri:
        yield uri


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def archived(uri):
    archive = Archive(Store(uri))
    return [record for file in archive.files() for record in archive.records(file)]


async def railbus(*arguments):
    return await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "services.cli", "audit", *arguments],
        capture_output=True, text=True, timeout=180, cwd=ROOT, env=bare_environment(), check=False,
    )  # fmt: skip


async def test_an_archiver_that_is_killed_leaves_no_gap_and_the_commands_read_it(lab, bucket):
    rng = random.Random(11)
    archiver = lab.archiver(RAILBUS_ARCHIVE=bucket)
    await archiver.ready()
    for _ in range(KILLS):
        await lab.ask(3)
        await asyncio.sleep(rng.uniform(0.0, 0.6))
        archiver.kill()
        archiver = lab.archiver(RAILBUS_ARCHIVE=bucket)
        await archiver.ready()
    await lab.ask(3)
    logged = await lab.on_log()
    await until(lambda: len(archived(bucket)) >= len(logged), "everything is archived", within_s=90, every_s=0.5)
    assert await archiver.stop() == 0
    found = archived(bucket)
    assert max(places(found).values()) == 1
    assert sorted(found) == sorted(logged)

    where = ("--archive", bucket)
    done = await railbus("verify", *where, "--json")
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert (told["count"], told["records"]) == (0, len(logged))

    done = await railbus("find", *where, "--from", "1d", "--json", "--most", "1000")
    requests = [json.loads(line)["request_id"] for line in done.stdout.splitlines()]
    assert sorted(requests) == sorted({record.key.decode() for record in logged if record.topic == "railbus.requests"})

    done = await railbus("show", requests[0], *where, "--json")
    assert done.returncode == 0, done
    assert len(json.loads(done.stdout)["events"]) == 25

    await tamper(bucket)
    done = await railbus("verify", *where, "--json")
    assert done.returncode == 1
    (change,) = {each["file"] for each in json.loads(done.stdout)["tampering"]}
    assert change == tampered(bucket)


def tampered(uri):
    """Return the path of the file that ``tamper`` changes: the oldest file of the stream log."""
    return Archive(Store(uri)).files(["railbus.streams"])[0].path


async def tamper(uri):
    """Flip one bit in a file of the archive."""
    store, name = Store(uri), tampered(uri)
    content = bytearray(store.read(name))
    content[len(content) // 3] ^= 1
    with store.filesystem.open_output_stream(store.path(name)) as file:
        file.write(bytes(content))


async def test_a_bucket_that_is_not_there_is_one_sentence(lab, bucket):
    archiver = lab.archiver(RAILBUS_ARCHIVE=bucket.replace("s3://archive/", "s3://nowhere/"))
    assert await archiver.ended(60) != 0
    assert "RAILBUS_ARCHIVE" in archiver.stderr or "the archive s3://nowhere" in archiver.stderr
    assert "Traceback" not in archiver.stderr


def test_secrets_in_the_address_are_not_shown(bucket):
    uri = bucket.replace("s3://", "s3://KEY:very-secret@")
    assert "very-secret" not in Store(uri).location
    assert isinstance(Store(uri).filesystem, fs.S3FileSystem)
