"""Test that an op has the same bytes in every version of Railbus. A receipt has a hash of these bytes."""

from typing import get_args

import pytest

from schemas.stream import Usage
from services.stream.ops import (
    Begin,
    Close,
    Finish,
    Op,
    Refuse,
    Replace,
    Restart,
    Show,
    Withdraw,
    encode_op,
    name_of,
)

TEXT = 'a"\\\n\x01é\u2028😀'
SENT = 'a\\"\\\\\\n\\u0001é\u2028😀'
RECALL = {"text": TEXT, "rule": "r", "category": "c", "policy_version": "p", "recall_id": "i"}
RECALLED = f'"text":"{SENT}","rule":"r","category":"c","policy_version":"p","recall_id":"i"'
USAGE = Usage(prompt_tokens=1, completion_tokens=2)

OPS = {
    Begin(attempt=2, run="r", model="m"): '{"op":"begin","attempt":2,"run":"r","model":"m"}',
    Show(text=TEXT, tokens=3): f'{{"op":"show","text":"{SENT}","tokens":3}}',
    Replace(start=1, end=2, **RECALL): f'{{"op":"replace","start":1,"end":2,{RECALLED}}}',
    Withdraw(end=2, **RECALL): f'{{"op":"withdraw","end":2,{RECALLED}}}',
    Restart(attempt=2, trigger="ttft"): '{"op":"restart","attempt":2,"trigger":"ttft"}',
    Refuse(text=TEXT, policy_version="p"): f'{{"op":"refuse","text":"{SENT}","policy_version":"p"}}',
    Finish(attempt=1, run="r", finish_reason="stop", usage=USAGE): (
        '{"op":"finish","attempt":1,"run":"r","finish_reason":"stop",'
        '"usage":{"prompt_tokens":1,"completion_tokens":2,"cached_tokens":0}}'
    ),
    Close(outcome="completed", reason=""): '{"op":"close","outcome":"completed","reason":""}',
}


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_an_op_has_the_bytes_that_it_always_had(op: Op) -> None:
    assert encode_op(op).decode() == OPS[op]


def test_every_op_is_here() -> None:
    assert {type(op) for op in OPS} == set(get_args(Op))
