"""Test which ops the chaos campaign's client computes from the chunks of an answer in OpenAI's format.

New text is in the field ``content`` of a chunk. Redactions, restarts and withdrawals are in the field ``railbus``.
"""

from tests.chaos.cluster.clients import Person, Reader


def chunk(content="", *ops):
    field = {} if not ops else {"railbus": ops[0] if len(ops) == 1 else {"op": "catch_up", "ops": list(ops)}}
    return {"choices": [{"delta": {"content": content}}]} | field


def replace(start, end, text):
    return {"op": "replace", "start": start, "end": end, "text": text}


def received(*chunks):
    reader = Reader("sse")
    for number, each in enumerate(chunks):
        Person._chat_chunk(reader, f"0:{number}:0", each)
    return [op for each in reader.received for op in each.ops]


def test_a_redaction_of_text_that_was_not_sent_is_in_the_content():
    assert received(chunk("write to "), chunk("[address] today", replace(9, 9, "[address]"))) == [
        ("show", "write to "), ("show", "[address] today"),
    ]  # fmt: skip


def test_a_redaction_of_text_that_was_sent_comes_before_what_is_new():
    assert received(chunk("write to a@b.c"), chunk(" today", replace(9, 14, "[address]"))) == [
        ("show", "write to a@b.c"), ("replace", 9, 14, "[address]"), ("show", " today"),
    ]  # fmt: skip


def test_after_a_restart_the_content_is_all_there_is():
    restart = {"op": "restart", "attempt": 2, "trigger": "stall"}
    assert received(chunk("old text"), chunk("new [x]", restart, replace(4, 4, "[x]"))) == [
        ("show", "old text"), ("restart",), ("show", "new [x]"),
    ]  # fmt: skip


def test_a_withdrawn_answer_is_not_shown_twice():
    withdrawn = {"op": "withdraw", "text": "Withdrawn."}
    assert received(chunk("Withdrawn.", withdrawn)) == [("instead", "Withdrawn.")]
