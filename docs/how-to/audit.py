"""Fold the events of one request, as `railbus tail --json` prints them, and compare the result with its receipts."""

import hashlib
import json
import sys

import msgspec

from schemas.registry import KINDS
from services.stream import Screen, encode_op

records = [json.loads(line) for line in sys.stdin]
screen, sent, visible_at = None, [], []
for record in records:
    if record["topic"] == "railbus.streams":
        event = msgspec.convert(record["event"], KINDS[record["kind"]].cls)
        screen = screen or Screen(event.request_id)
        for op in screen.feed(event, record["timestamp_ms"]):
            sent.append(encode_op(op) + b"\n")
            visible_at.append((record["timestamp_ms"], screen.visible))

start_ms = records[0]["timestamp_ms"]
for at_ms, text in visible_at:
    print(f"{at_ms - start_ms:6} ms  {text}")
for record in records:
    if record["kind"] == "Detached":
        receipt = record["event"]
        same = receipt["ops_hash"] == hashlib.sha256(b"".join(sent[: receipt["ops"]])).hexdigest()
        what = (
            "exactly this" if receipt["ops"] == len(sent) else f"exactly the first {receipt['ops']} of {len(sent)} ops"
        )
        print(f"connection {receipt['connection']}: sent {what if same else 'a later part, or something else'}")
