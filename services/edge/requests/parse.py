"""Parse and validate a client's request body."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import orjson
from msgspec import Struct, structs

from schemas.requests import MAX_WAITED_MS, Deadlines, Delivery, Lane, Request
from services.edge.encoders.chat_chunks import OnRestart
from services.edge.errors import ApiError
from services.edge.requests.chat_schema import (
    ACCEPTED_UNUSED,
    KNOWN_FIELDS,
    ChatRequestBody,
    RailbusExtension,
)
from services.edge.requests.choose_class import choose_class
from services.runtime.chat_body import REFUSED_UNLESS, BadBody, convert, refuse_unsupported
from services.runtime.classes.policy_deadlines import DeadlineBounds
from services.runtime.classes.service_classes import ServiceClass, ServiceClasses

DEFAULT_CLASSES: Final = ServiceClasses()

DEFAULT_MODEL: Final = "default"

_NESTED: Final[dict[str, type[Struct]]] = {"delivery": Delivery, "deadlines": Deadlines}


class ArrivalTimes(NamedTuple):
    """When a request arrived. Both times are in microseconds since the epoch.

    Attributes:
        at_us: When the request reached this host.
        read_us: When the edge read the request. The deadlines of the request count from this time.
    """

    at_us: int
    read_us: int

    @classmethod
    def at(cls, now_us: int) -> Self:
        return cls(now_us, now_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A validated request body.

    Attributes:
        template: The event to put on the log. Its request id, tenant, time and source are still empty.
        include_usage: Whether a stream ends with the token counts.
        on_restart: What an OpenAI-style stream does if another attempt takes over after text was sent.
        ignored: Names of unknown parameters in the body.
        asked: Lane, class and deadlines as the client gave them. The values that apply are in ``template``.
    """

    template: Request
    stream: bool = False
    include_usage: bool = False
    on_restart: OnRestart = "error"
    ignored: tuple[str, ...] = ()
    asked: tuple[Any, ...] = ()

    def request(self, *, request_id: str, tenant: str, at_us: int, source: str, waited_us: int = 0) -> Request:
        """Build the event to put on the log.

        ``at_us`` is when the request reached this host, in microseconds since the epoch. ``waited_us`` is the time from
        when the edge read the request until now, in microseconds.
        """
        waited_ms = min(max(0, waited_us) / 1_000, MAX_WAITED_MS)
        return structs.replace(
            self.template, request_id=request_id, tenant=tenant, at=at_us, source=source, waited_ms=waited_ms
        )

    @property
    def lane(self) -> Lane:
        return self.template.lane


def parse_json(raw: bytes | str) -> dict[str, Any]:
    """Parse the JSON object in a body or message.

    Raises:
        ApiError: 400, if the text is not a JSON object.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    return value


def parse_chat_request(
    body: dict[str, Any],
    classes: ServiceClasses = DEFAULT_CLASSES,
    *,
    tenant: str = "",
    class_header: str | None = None,
) -> ParsedRequest:
    """Validate the body of a chat request. The class of the request sets the default deadlines and their bounds.

    ``class_header`` is the value of the header ``X-Railbus-Class``, if any.

    Raises:
        ApiError: 400, if a field is not valid; 403, if the client may not use the class.
    """
    try:
        return _parse(body, classes, tenant, class_header)
    except BadBody as bad:
        raise ApiError(400, bad.message, code=bad.code, param=bad.param) from None


def _parse(body: dict[str, Any], classes: ServiceClasses, tenant: str, class_header: str | None) -> ParsedRequest:
    refuse_unsupported(body)
    _refuse_unknown_extension(body.get("railbus"))
    parsed = convert(body, ChatRequestBody)
    extension = parsed.railbus or RailbusExtension()
    chosen = choose_class(
        classes, tenant=tenant, model=parsed.model or DEFAULT_MODEL, lane=extension.lane, header=class_header,
        body=extension.service_class, tier=parsed.service_tier,
    )  # fmt: skip
    asked = (body.get("railbus") or {}).get("deadlines") or {}
    _check_deadlines(asked, chosen.bounds)
    options = parsed.stream_options
    return ParsedRequest(
        template=_template(parsed, extension, chosen, asked, named=_must_name(classes, chosen, tenant, parsed.model)),
        stream=bool(parsed.stream),
        include_usage=bool(options and options.include_usage),
        on_restart=extension.restart or "error",
        ignored=tuple(sorted(body.keys() - KNOWN_FIELDS - ACCEPTED_UNUSED - REFUSED_UNLESS.keys())),
        asked=(
            extension.lane, class_header, extension.service_class, parsed.service_tier, tuple(sorted(asked.items()))
        ),
    )  # fmt: skip


def _template(
    body: ChatRequestBody,
    extension: RailbusExtension,
    service_class: ServiceClass,
    asked: dict[str, int],
    *,
    named: bool,
) -> Request:
    delivery = extension.delivery
    if isinstance(delivery, str):
        delivery = Delivery(mode=delivery)
    chosen: dict[str, Any] = {
        "model": body.model,
        "delivery": delivery,
        "deadlines": structs.replace(service_class.deadlines, **asked) if asked else service_class.deadlines,
        "service_class": service_class.name if named else None,
        "priority": service_class.priority,
        "fallback": extension.fallback,
        "egress": extension.egress,
        "lane": service_class.lane,
    }
    return Request(
        request_id="", tenant="", at=0, source="",
        messages=body.prompt(),
        sampling=body.sampling(),
        **{name: value for name, value in chosen.items() if value is not None},
    )  # fmt: skip


def _must_name(classes: ServiceClasses, chosen: ServiceClass, tenant: str, model: str | None) -> bool:
    # A reader of an event without a class assumes the usual class.
    usual = classes.default(tenant, model or DEFAULT_MODEL)
    return chosen is not (usual if usual.lane == chosen.lane else classes.of(None, chosen.lane))


def _check_deadlines(asked: dict[str, int], bounds: DeadlineBounds) -> None:
    for name, ms in asked.items():
        least, largest = bounds.of(name)
        if not least <= ms <= largest:
            raise ApiError(
                400, f"{name} may be {least} to {largest} here: the policy allows no other deadline.",
                code="invalid_value", param=f"railbus.deadlines.{name}",
            )  # fmt: skip


def _refuse_unknown_extension(extension: Any) -> None:
    if not isinstance(extension, dict):
        return
    for name, cls in _NESTED.items():
        given = extension.get(name)
        known = {field.name for field in structs.fields(cls)}
        # A misspelt safety setting must not be ignored.
        if isinstance(given, dict) and (unknown := sorted(given.keys() - known)):
            raise ApiError(
                400, f"Unknown field {unknown[0][:64]!r}: the fields of {name} are {', '.join(sorted(known))}.",
                code="unknown_parameter", param=f"railbus.{name}",
            )  # fmt: skip
