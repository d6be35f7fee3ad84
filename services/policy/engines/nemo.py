"""Run NeMo Guardrails with a policy's configuration.

The version of nemoguardrails is pinned, because ``add_rail`` uses private names of nemoguardrails.
"""

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("NEMO_GUARDRAILS_NO_USAGE_STATS", "1")  # it would post telemetry otherwise

from nemoguardrails import RailsConfig
from nemoguardrails.guardrails.iorails import IORails
from nemoguardrails.manifests import (
    ActionRef,
    Binding,
    RailActions,
    RailDirection,
    RailFlows,
    RailManifest,
    RailSpec,
    RailSurface,
    default_rail_catalog,
)
from nemoguardrails.manifests import registry as nemo_registry
from nemoguardrails.manifests.catalog import RailCatalog, RailManifestRecord

from services.policy.errors import BrokenPolicy, PolicyFault
from services.policy.rulings import Side
from services.policy.source.files import Files
from services.policy.source.nemo_config import CONFIG, one_side

_MESSAGE = {"input": "user_message", "output": "bot_message"}


def add_rail(flow: str, side: Side, target: str) -> None:
    """Add a rail to NeMo's catalog. Do nothing if the catalog has it already.

    Args:
        flow: The rail's name in ``config.yml``, such as ``railbus output``.
        side: Which text the rail gets: the prompt (``input``) or the answer (``output``).
        target: The rail's function as ``module:function``. It is an ``async def (text, config) -> RailOutcome``.
    """
    catalog = default_rail_catalog()
    name = flow.replace(" ", "_")
    if name in catalog.records:
        return
    action = ActionRef(name=name, target=target)
    surface = RailSurface(
        name=flow,
        direction=RailDirection(side),
        action=action,
        bindings=(Binding.context("text", _MESSAGE[side]),),
    )
    manifest = RailManifest(
        name=name,
        spec=RailSpec(flows=RailFlows(flow_names=(flow,)), actions=RailActions(refs=(action,)), surfaces=(surface,)),
    )
    record = RailManifestRecord(manifest=manifest, source=target)
    nemo_registry._catalog = RailCatalog([*catalog.records.values(), record])  # noqa: SLF001 - there is no public interface


async def build_engine(files: Files, side: Side, custom: Mapping[str, Any]) -> IORails:
    """Build and start a NeMo engine. The caller must stop the engine.

    Args:
        files: The policy's files, with ``nemo/config.yml``.
        side: ``input`` loads the rails for prompts, ``output`` those for answers.
        custom: Values to add to ``config.custom_data``, where a rail's function can read them.

    Raises:
        BrokenPolicy: NeMo rejects the configuration.
    """
    body = one_side(files, side)
    try:
        config = RailsConfig.from_content(config=body)
        config.custom_data.update(custom)
        engine = IORails(config)
        await engine.start()
    except Exception as error:  # noqa: BLE001 - whatever NeMo raises, the configuration is at fault
        reason = str(error).splitlines() or [type(error).__name__]
        raise BrokenPolicy([PolicyFault(CONFIG, 0, f"NeMo rejects it: {reason[0]}")]) from None
    return engine
