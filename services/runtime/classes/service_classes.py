"""The classes of requests in a policy.

A class defines the lane, priority, deadlines and latency objectives of one kind of request, such as ``chat`` or
``batch``.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from schemas.base import Name
from schemas.requests import MAX_PRIORITY, Deadlines, Lane, Request
from services.runtime.classes.policy_deadlines import DAY_MS, Bounds, DeadlineBounds, Ms
from services.runtime.errors import UserError

ClassName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Names = Annotated[tuple[Name, ...], Meta(max_length=10_000)]
Priority = Annotated[int, Meta(ge=0, le=MAX_PRIORITY)]

CHAT: Final = "chat"
"""The default class of the lane ``interactive``."""

BATCH: Final = "batch"
"""The default class of the lane ``batch``."""

DEFAULT_NAMES: Final[Mapping[Lane, str]] = {"interactive": CHAT, "batch": BATCH}


class Objective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An upper limit for a latency of a request, such as the time to first token.

    Attributes:
        ms: The limit, in milliseconds.
    """

    ms: Annotated[float, Meta(gt=0, le=DAY_MS)]


class Slo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency objectives of a class. A request is good if it meets every objective that is set.

    Attributes:
        first_token: Objective for the time from the arrival of the request until text is visible.
        inter_token: Objective for the mean time between two tokens of an answer.
        step: Objective for the longest pause between two chunks of an answer.
        total: Objective for the time from the arrival of the request until the client has the whole answer.
        share: Share of the requests of the class that must be good.
    """

    first_token: Objective | None = None
    inter_token: Objective | None = None
    step: Objective | None = None
    total: Objective | None = None
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.99


class DefaultDeadlines(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The deadlines of a class for requests that do not set their own.

    If a deadline is None, the default of the lane applies.

    Attributes:
        verdict_ms: Deadline for the verdict.
        ttft_ms: Deadline for the first content token.
        stall_ms: Longest allowed pause in an answer.
        total_ms: Deadline for the whole request.
    """

    verdict_ms: Ms | None = None
    ttft_ms: Ms | None = None
    stall_ms: Ms | None = None
    total_ms: Ms | None = None


class ClassBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum and the maximum of each deadline that a request of the class may set.

    For a deadline that is missing here, the limits of the lane apply.

    Attributes:
        verdict_ms: Minimum and maximum of the deadline for the verdict.
        ttft_ms: Minimum and maximum of the deadline for the first content token.
        stall_ms: Minimum and maximum of the deadline for the next chunk of an answer.
        total_ms: Minimum and maximum of the deadline for the whole request.
    """

    verdict_ms: Bounds | None = None
    ttft_ms: Bounds | None = None
    stall_ms: Bounds | None = None
    total_ms: Bounds | None = None


class ClassSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[classes.NAME]`` of a policy.

    A missing field has the value of the built-in class NAME, or else the default of the lane.

    Attributes:
        lane: Lane of the requests. Requests of the lane ``batch`` wait for interactive ones.
        priority: Priority within the lane. Requests with priority 0 go first. Engines without priorities ignore this
            field.
        cloud: Whether the requests may fall back to the cloud. By default, only interactive requests may.
        deadlines: Default of each deadline that a request does not set itself.
        bounds: Minimum and maximum of the deadlines that a request may set.
        slo: Latency objectives of the class. The ledger counts the requests that meet them.
        allowed_tenants: Tenants that may use the class. If the list is empty, all tenants may.
        allowed_models: Models that may be requested with the class. If the list is empty, all models may.
        default_tenants: If a request of one of these tenants names no class, it gets this class.
        default_models: If a request for one of these models names no class, it gets this class. ``default_tenants``
            takes precedence.
    """

    lane: Lane | None = None
    priority: Priority | None = None
    cloud: bool | None = None
    deadlines: DefaultDeadlines | None = None
    bounds: ClassBounds | None = None
    slo: Slo | None = None
    allowed_tenants: Names | None = None
    allowed_models: Names | None = None
    default_tenants: Names | None = None
    default_models: Names | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceClass:
    """A class of requests, with defaults for all fields that the policy leaves out."""

    name: str
    lane: Lane
    priority: int
    cloud: bool
    deadlines: Deadlines
    bounds: DeadlineBounds
    slo: Slo
    allowed_tenants: frozenset[str] = frozenset()
    allowed_models: frozenset[str] = frozenset()

    def allows(self, tenant: str, model: str) -> bool:
        return (not self.allowed_tenants or tenant in self.allowed_tenants) and (
            not self.allowed_models or model in self.allowed_models
        )


BATCH_BOUNDS: Final = DeadlineBounds(
    verdict_ms=(30_000, DAY_MS), ttft_ms=(20, DAY_MS), stall_ms=(100, DAY_MS), total_ms=(500, DAY_MS)
)
"""Bounds of the deadlines of batch requests.

Batch requests may wait, so each deadline may be as long as a day. Their verdicts take longer: the rails judge batch
requests after all others, and load the classifiers for them only at the first batch prompt. So the minimum of
``verdict_ms`` is 30 s. If an app sets no ``verdict_ms``, the request has the default, one second, which is then raised
to this minimum.
"""

_LANE_DEADLINES: Final[Mapping[Lane, Deadlines]] = {
    "interactive": Deadlines(),
    "batch": Deadlines(verdict_ms=DAY_MS, ttft_ms=DAY_MS, stall_ms=60_000, total_ms=DAY_MS),
}

_BUILT_IN: Final[Mapping[str, ClassSpec]] = {
    CHAT: ClassSpec(
        lane="interactive",
        slo=Slo(first_token=Objective(ms=200), total=Objective(ms=2_000)),
    ),
    "voice": ClassSpec(
        lane="interactive",
        deadlines=DefaultDeadlines(stall_ms=500),
        slo=Slo(
            first_token=Objective(ms=200),
            inter_token=Objective(ms=100),
            step=Objective(ms=100),
        ),
    ),
    BATCH: ClassSpec(lane="batch", slo=Slo(total=Objective(ms=DAY_MS))),
}


class ServiceClasses:
    """All classes of a policy, including the built-in classes ``chat``, ``voice`` and ``batch``.

    Args:
        specs: The classes that the policy defines, by name.
        bounds: Minimum and maximum deadlines of interactive classes, from the table ``[deadlines]`` of the policy.

    Raises:
        ValueError: The definition of a class is invalid.
    """

    def __init__(self, specs: Mapping[str, ClassSpec] | None = None, bounds: DeadlineBounds | None = None) -> None:
        lane_bounds: dict[Lane, DeadlineBounds] = {"interactive": bounds or DeadlineBounds(), "batch": BATCH_BOUNDS}
        named = {name: _merged(_BUILT_IN.get(name), spec) for name, spec in {**_BUILT_IN, **(specs or {})}.items()}
        own = {name: _given(spec.deadlines) for name, spec in (specs or {}).items()}
        self._by_name = {name: _filled_in(name, spec, lane_bounds, own.get(name, {})) for name, spec in named.items()}
        for lane, name in DEFAULT_NAMES.items():
            if self._by_name[name].lane != lane:
                msg = f"classes.{name}: its lane must be {lane}: it is the class of {lane} requests that name none"
                raise ValueError(msg)
            if self._by_name[name].allowed_tenants or self._by_name[name].allowed_models:
                msg = f"classes.{name}: it must be allowed to all: it is the class of {lane} requests that name none"
                raise ValueError(msg)
        self._of_tenant = _defaults(named, "default_tenants")
        self._of_model = _defaults(named, "default_models")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_name))

    def __iter__(self) -> Iterator[ServiceClass]:
        return iter(self._by_name.values())

    def get(self, name: str) -> ServiceClass | None:
        return self._by_name.get(name)

    def of(self, name: str | None, lane: Lane) -> ServiceClass:
        """Return the named class if it belongs to the lane. Otherwise, return the default class of the lane."""
        found = self._by_name.get(name or "")
        return found if found is not None and found.lane == lane else self._by_name[DEFAULT_NAMES[lane]]

    def default(self, tenant: str, model: str) -> ServiceClass:
        """Return the class of a request that names neither a class nor a lane.

        A class that the request must not use is skipped.
        """
        for name in (self._of_tenant.get(tenant), self._of_model.get(model)):
            if name is not None and self._by_name[name].allows(tenant, model):
                return self._by_name[name]
        return self._by_name[CHAT]

    def of_request(self, request: Request) -> ServiceClass:
        """Return the class of a request: the class that it names, or the default class of its tenant or model.

        If that class is not in the request's lane, or the request must not use it, return the default class of this
        lane.
        """
        if request.service_class is not None:
            found = self.of(request.service_class, request.lane)
        else:
            found = self.of(self.default(request.tenant, request.model).name, request.lane)
        return found if found.allows(request.tenant, request.model) else self.of(None, request.lane)

    def deadlines_of(self, request: Request) -> Deadlines:
        return self.of_request(request).bounds.clamp(request.deadlines)

    def longest_total_ms(self, lane: Lane) -> int:
        """Return the largest ``total_ms`` that a request of this lane may set."""
        return max(each.bounds.total_ms[1] for each in self._by_name.values() if each.lane == lane)


class _Document(Struct, frozen=True):
    deadlines: DeadlineBounds = DeadlineBounds()
    classes: dict[ClassName, ClassSpec] = {}


def read_service_classes(folder: Path) -> ServiceClasses:
    """Return the request classes that the policy in this folder defines, and the built-in ones.

    Raises:
        UserError: The policy cannot be read, or its deadlines or classes are invalid.
    """
    file = folder / "policy.toml"
    try:
        document = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Document)
        return ServiceClasses(document.classes, document.deadlines)
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        why = getattr(error, "strerror", None) or error
        raise UserError(f"RAILBUS_POLICY: {file}: {why}: name a folder with a policy.toml, and correct it") from None


def find_class(folder: Path, name: str) -> ServiceClass:
    """Return the class with this name from the policy in this folder.

    Raises:
        UserError: The policy cannot be read, or has no such class.
    """
    classes = read_service_classes(folder)
    found = classes.get(name)
    if found is None:
        raise UserError(f"--class {name}: the classes of this policy are {', '.join(classes.names)}")
    return found


def _merged(built_in: ClassSpec | None, spec: ClassSpec) -> ClassSpec:
    if built_in is None:
        return spec
    given = {name: value for name, value in msgspec.structs.asdict(spec).items() if value is not None}
    return msgspec.structs.replace(built_in, **given)


def _filled_in(
    name: str, spec: ClassSpec, lane_bounds: Mapping[Lane, DeadlineBounds], own: Mapping[str, object]
) -> ServiceClass:
    lane = spec.lane or "interactive"
    try:
        bounds = msgspec.structs.replace(lane_bounds[lane], **_given(spec.bounds))
        default = _LANE_DEADLINES[lane]
        asked = {field: getattr(default, field) for field in DefaultDeadlines.__struct_fields__}
        named = _given(spec.deadlines)
        deadlines = bounds.clamp(Deadlines(**asked | named))
    except ValueError as error:
        msg = f"classes.{name}.bounds: {error}"
        raise ValueError(msg) from None
    for field, ms in own.items():  # bounds clamp what only the built-in class names
        if getattr(deadlines, field) != ms:
            least, largest = bounds.of(field)
            msg = f"classes.{name}.deadlines: {field} is {ms}, and the bounds are {least} to {largest}"
            raise ValueError(msg)
    return ServiceClass(
        name=name,
        lane=lane,
        priority=spec.priority or 0,
        cloud=lane == "interactive" if spec.cloud is None else spec.cloud,
        deadlines=deadlines,
        bounds=bounds,
        slo=spec.slo or Slo(),
        allowed_tenants=frozenset(spec.allowed_tenants or ()),
        allowed_models=frozenset(spec.allowed_models or ()),
    )


def _defaults(specs: Mapping[str, ClassSpec], field: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, spec in specs.items():
        for each in getattr(spec, field) or ():
            if found.setdefault(each, name) != name:
                msg = f"classes.{name}.{field}: {each!r} is named by {found[each]} already: keep one of them"
                raise ValueError(msg)
    return found


def _given(spec: Struct | None) -> dict[str, object]:
    return {} if spec is None else {name: ms for name, ms in msgspec.structs.asdict(spec).items() if ms is not None}
