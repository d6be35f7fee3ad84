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
    """Return the class that the client names, or else the default class for the tenant, the model and the lane.

    The client can name a class in the header ``X-Railbus-Class``, in ``railbus.service_class`` or in ``service_tier``.

    Raises:
        ApiError: 400, if the class is unknown, if the names differ, or if ``lane`` is not the lane of the class; 403,
            if the client may not use the class.
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
