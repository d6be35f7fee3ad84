"""Read a policy's ``nemo/config.yml`` without importing NeMo."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from services.policy.errors import BrokenPolicy, PolicyFault
from services.policy.rulings import Side
from services.policy.source.files import Files

CONFIG: Final = "nemo/config.yml"

FOLDED_FLOW: Final = "railbus output"
"""Railbus's own output flow, which finds the disguised words of patterns with ``folded``."""


def yaml_faults(files: Files) -> list[PolicyFault]:
    """Find faults in NeMo's files, and return them. Faults that only NeMo itself can find are not among them."""
    faults: list[PolicyFault] = []
    for name in sorted(files):
        if name.startswith("nemo/") and name.endswith((".yml", ".yaml")):
            try:
                yaml.safe_load(files[name])
            except yaml.MarkedYAMLError as error:
                line = error.problem_mark.line + 1 if error.problem_mark else 0
                faults.append(PolicyFault(name, line, error.problem or "is not YAML"))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                faults.append(PolicyFault(name, 0, f"is not YAML: {error}"))
            else:
                faults += _own_input_rails(name, yaml.compose(files[name], yaml.SafeLoader))
    if not faults:
        try:
            one_side(files, "input")
        except BrokenPolicy as broken:
            faults.extend(broken.faults)
    return faults


def has_rails(files: Files, side: Side) -> bool:
    """Return whether NeMo's configuration has rails for ``side``: ``input`` means prompts, ``output`` answers."""
    rails = one_side(files, side)["rails"].get(side)
    return bool(rails.get("flows")) if isinstance(rails, dict) else rails is not None


def has_folded_flow(files: Files) -> bool:
    """Return whether NeMo's configuration lists the output flow that finds disguised words."""
    rails = one_side(files, "output")["rails"].get("output")
    flows = rails.get("flows") if isinstance(rails, dict) else None
    return isinstance(flows, list) and FOLDED_FLOW in flows


def one_side(files: Files, side: Side) -> dict[str, Any]:
    """Return NeMo's configuration with only the rails for prompts (``input``) or for answers (``output``).

    Raises:
        BrokenPolicy: The configuration is not a mapping.
    """
    body = yaml.safe_load(files.get(CONFIG, b"{}")) or {}
    if not isinstance(body, dict) or not isinstance(body.get("rails", {}), dict):
        raise BrokenPolicy([PolicyFault(CONFIG, 1, "must be a mapping with 'rails'")])
    body.setdefault("models", [])
    rails = body["rails"] = {**body.get("rails", {})}
    rails.pop("output" if side == "input" else "input", None)
    return body


def _own_input_rails(name: str, root: Any) -> Iterator[PolicyFault]:
    # Older policies named Railbus's own input rails in this file too.
    flows = _value(_value(_value(root, "rails"), "input"), "flows")
    for flow in flows.value if isinstance(flows, yaml.SequenceNode) else ():
        if isinstance(flow, yaml.ScalarNode) and flow.value.startswith("railbus "):
            message = f"remove {flow.value!r}: policy.toml names Railbus's own input rails"
            yield PolicyFault(name, flow.start_mark.line + 1, message)


def _value(node: Any, key: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for name, value in pairs if name.value == key), None)
