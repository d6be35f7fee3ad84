"""Determine the class of a request, and whether the client may use it."""

from typing import Final

from schemas.requests import Lane
from services.edge.errors import ApiError
from services.runtime.classes.service_classes import BATCH, ServiceClass, ServiceClasses

CLASS_HEADER: Final = "X-Railbus-Class"

BODY_FIELD: Final = "railbus.service_class"

USUAL_TIERS: Final = frozenset({"auto", "default", "priority", "scale"})
"""OpenAI's service tiers that mean the default class here, because Railbus makes no difference between them."""

FLEX: Final = "flex"
"""OpenAI's tier for requests that may wait. It means the class ``batch`` if the policy has no class ``flex``."""


def choose_class(
    classes: ServiceClasses,
    *,
    tenant: str,
    model: str,
    lane: Lane | None,
    header: str | None,
    body: str | None,
    tier: str | None,
) -> ServiceClass:
    """Return the class of a request.

    If the client names no class, return the policy's default class for ``tenant`` and ``model``. If ``lane`` is given
    and is not the lane of this class, return the default class of ``lane`` instead.

    Args:
        classes: The policy's classes.
        tenant: The tenant that sent the request.
        model: The model that the request names.
        lane: The lane that the request names, if any.
        header: Value of the header ``X-Railbus-Class``, if any.
        body: Value of the body field ``railbus.service_class``, if any.
        tier: Value of the body field ``service_tier``, if any. ``flex`` means the class ``batch``, unless the policy
            has a class ``flex``. A value in ``USUAL_TIERS`` selects no class. Any other value names a class.

    Raises:
        ApiError: 400, if the class is unknown, if ``header``, ``body`` and ``tier`` name different classes, or if
            ``lane`` is not the lane of the class; 403, if the client may not use the class.
    """
    tier = None if tier in USUAL_TIERS else BATCH if tier == FLEX and classes.get(FLEX) is None else tier
    asked = {CLASS_HEADER: header, BODY_FIELD: body, "service_tier": tier}
    given = {where: name for where, name in asked.items() if name is not None}
    if len(set(given.values())) > 1:
        both = " and ".join(given)
        raise ApiError(
            400, f"{both} name different classes: send one of them.", code="invalid_value", param=[*given][1]
        )
    if not given:
        usual = classes.default(tenant, model)
        return usual if lane is None or lane == usual.lane else classes.of(None, lane)
    ((where, name),) = list(given.items())[:1]
    found = classes.get(name)
    if found is None:
        raise ApiError(
            400, f"Unknown class {name[:64]!r}: the classes are {', '.join(classes.names)}.", code="unknown_class",
            param=where,
        )  # fmt: skip
    if not found.allows(tenant, model):
        raise ApiError(
            403, f"The policy does not let this tenant use the class {found.name} with this model.",
            code="class_not_allowed", param=where,
        )  # fmt: skip
    if lane is not None and lane != found.lane:
        raise ApiError(
            400, f"The class {found.name} is in the lane {found.lane}: leave railbus.lane out.", code="invalid_value",
            param="railbus.lane",
        )  # fmt: skip
    return found
