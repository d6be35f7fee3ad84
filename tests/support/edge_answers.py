"""Events of answers for tests of the edge, and the simplest possible client."""

import orjson

from schemas.ids import time_ms
from schemas.requests import Deadlines, Delivery
from schemas.stream import Chunk, Cleared, Closed, Cutover, Finished, Recall, Started, Usage, Verdict


class AnswerWriter:
    """Makes the events of one request, each a millisecond later than the one before."""

    def __init__(self, request_id, tenant="local", *, checked=False, delivery=None):
        self.request_id = request_id
        self.tenant = tenant
        self.checked = checked
        self.delivery = delivery or Delivery()
        self.at = time_ms(request_id) * 1_000
        self.seq = 0
        self.start = 0
        self.attempt = 1

    def common(self):
        self.at += 1_000
        return {"request_id": self.request_id, "tenant": self.tenant, "at": self.at, "source": "test/1"}

    def voiced(self):
        return self.common() | {"attempt": self.attempt, "run": f"run{self.attempt}"}

    def started(self, model="tiny"):
        return Started(
            **self.voiced(), model=model, engine="test", queue_ms=1.0, received_at=time_ms(self.request_id) * 1_000,
            delivery=self.delivery, deadlines=Deadlines(), input_gate="hold" if self.checked else "off",
            output_check="on" if self.checked else "off",
        )  # fmt: skip

    def allowed(self):
        return Verdict(**self.common(), decision="allow", policy_version="v1")

    def denied(self, refusal="No."):
        return Verdict(**self.common(), decision="deny", policy_version="v1", refusal=refusal)

    def chunk(self, text, tokens=1):
        event = Chunk(**self.voiced(), seq=self.seq, start=self.start, text=text, tokens=tokens)
        self.seq += 1
        self.start += len(text)
        return event

    def finished(self, reason="stop"):
        usage = Usage(prompt_tokens=5, completion_tokens=self.seq)
        return Finished(**self.voiced(), last_seq=self.seq - 1, finish_reason=reason, usage=usage)

    def cleared(self, *, final=True):
        return Cleared(**self.voiced(), seq=self.seq - 1, final=final, policy_version="v1")

    def recall(self, start, end, action="redact", replacement="[gone]"):
        return Recall(
            **self.voiced(), recall_id=f"{action}{start}", start=start, end=end, action=action,
            replacement=replacement, rule="card", category="pii", policy_version="v1",
        )  # fmt: skip

    def cutover(self, trigger="stall"):
        """Return a cutover to the next attempt. The chunks of that attempt are numbered from 0 again."""
        self.attempt += 1
        event = Cutover(**self.common(), attempt=self.attempt, trigger=trigger, seen_seq=self.seq - 1)
        self.seq = self.start = 0
        return event

    def closed(self, outcome="completed", reason=""):
        return Closed(**self.common(), outcome=outcome, reason=reason, attempt=self.attempt)


def plain_answer(request_id, texts, *, tenant="local", checked=False):
    """Return the events of an answer without incidents, from ``Started`` to ``Closed``.

    With ``checked``, the prompt has a verdict and the text is cleared.
    """
    writer = AnswerWriter(request_id, tenant, checked=checked)
    head = [writer.started(), *([writer.allowed()] if checked else [])]
    body = [writer.chunk(text) for text in texts]
    end = [writer.finished(), *([writer.cleared()] if checked else []), writer.closed()]
    return [*head, *body, *end]


def sse_events(data: bytes):
    """Yield the fields of each event in a stream of server-sent events."""
    for block in data.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line and not line.startswith(b":"))
        if fields:
            yield {name.decode(): value for name, value in fields.items()}


class ClientScreen:
    """A client that applies each op to its visible text, as a browser does."""

    def __init__(self):
        self.visible = ""
        self.ops = 0

    def take(self, event):
        self.op(orjson.loads(event["data"]))

    def op(self, op):
        self.ops += 1
        match op["op"]:
            case "catch_up":
                for inner in op["ops"]:
                    self.op(inner)
            case "show":
                self.visible += op["text"]
            case "replace":
                self.visible = self.visible[: op["start"]] + op["text"] + self.visible[op["end"] :]
            case "withdraw" | "refuse":
                self.visible = op["text"]
            case "restart":
                self.visible = ""
