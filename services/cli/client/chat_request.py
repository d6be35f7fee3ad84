"""A chat request, and its conversion to a JSON body or a Kafka event. No I/O."""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import structs

from schemas.requests import Deadlines, Delivery, DeliveryMode, Fallback, Message, Request, Sampling
from schemas.topics import DAY_MS
from services.runtime.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A prompt and its options. An option of None is left out of the request.

    Attributes:
        fallback: What happens if the first token misses its deadline.
        ttft_ms: Deadline of the first token, in milliseconds.
        stall_ms: Maximum pause between two chunks, in milliseconds.
        total_ms: Deadline of the whole answer, in milliseconds.
        service_class: Name of the request's class in the policy.
    """

    prompt: str
    system: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    delivery: DeliveryMode | None = None
    fallback: Fallback | None = None
    ttft_ms: int | None = None
    stall_ms: int | None = None
    total_ms: int | None = None
    service_class: str | None = None

    def timeout_s(self, usual_ms: int = DAY_MS) -> float:
        """Return the maximum time to wait for the end of the answer, in seconds.

        ``usual_ms`` is the total deadline, in milliseconds, of a request without ``total_ms``. A client of an edge does
        not know this deadline, because it depends on the policy's classes. So the default of ``usual_ms`` is a day.
        """
        return (self.total_ms or usual_ms) / 1_000 + 10  # the router gets 10 s to close the request

    def body(self) -> dict[str, Any]:
        """Return the JSON body of an OpenAI chat completion request, with the extension ``railbus``."""
        extension = _given(
            delivery=self.delivery, fallback=self.fallback, deadlines=self._deadlines() or None,
            service_class=self.service_class,
        )  # fmt: skip
        body = _given(
            model=self.model, max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed,
            railbus=extension or None,
        )  # fmt: skip
        return {"messages": [structs.asdict(message) for message in self._messages()], **body}

    def request(self, *, request_id: str, at_us: int, source: str) -> Request:
        """Return the Kafka event for this request. Its tenant is ``local``.

        Raises:
            UserError: A value is out of its bounds.
        """
        sampling = _given(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)
        chosen = _given(
            model=self.model,
            delivery=None if self.delivery is None else Delivery(mode=self.delivery),
            fallback=self.fallback,
            service_class=self.service_class,
            deadlines=Deadlines(**self._deadlines()),
            sampling=Sampling(**sampling),
        )
        made = Request(
            request_id=request_id, tenant="local", at=at_us, source=source, messages=self._messages(), **chosen
        )
        try:
            return msgspec.convert(msgspec.to_builtins(made), Request)
        except msgspec.ValidationError as error:
            raise UserError(str(error)) from None

    def _messages(self) -> tuple[Message, ...]:
        system = () if self.system is None else (Message(role="system", content=self.system),)
        return (*system, Message(role="user", content=self.prompt))

    def _deadlines(self) -> dict[str, int]:
        return _given(ttft_ms=self.ttft_ms, stall_ms=self.stall_ms, total_ms=self.total_ms)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
