"""Test that programs shown in the documentation do what their pages say."""

import hashlib
import os
import subprocess
import sys

from msgspec import structs

from infra.docs.discover import ROOT
from schemas.topics import RECEIPTS, STREAMS
from services.bus import Received
from services.cli.show.event_format import event_json
from services.stream import Screen, encode_op
from tests.support.request_events import RequestEvents


def test_the_audit_program_compares_each_receipt() -> None:
    asked = RequestEvents()
    events = [asked.started(), asked.chunk(0), asked.chunk(1), asked.finished(1)]
    screen = Screen(asked.id)
    lines = [encode_op(op) + b"\n" for at_ms, event in enumerate(events) for op in screen.feed(event, at_ms)]
    receipts = [
        structs.replace(
            asked.detached(), ops=end - begin, ops_hash=hashlib.sha256(b"".join(lines[begin:end])).hexdigest()
        )
        for begin, end in ((0, 4), (0, 2), (3, 4))
    ]
    records = [Received(STREAMS.name, 0, at_ms, at_ms, event, None) for at_ms, event in enumerate(events)]
    records += [Received(RECEIPTS.name, 0, number, 9, receipt, None) for number, receipt in enumerate(receipts)]

    given = "".join(event_json(each, prompts=False) + "\n" for each in records)

    done = subprocess.run(
        [sys.executable, "docs/how-to/audit.py"], input=given,
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert done.stderr == ""
    assert done.stdout.splitlines()[-5:] == [
        "     2 ms  abcabc",
        "     3 ms  abcabc",
        "connection c: sent exactly this",
        "connection c: sent exactly the first 2 of 4 ops",
        "connection c: sent a later part, or something else",
    ]
