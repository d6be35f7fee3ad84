"""Findings about settings of the host: the value, the wanted value, and the command that would change it. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "change", "unknown", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinding:
    """One setting of the host or of a GPU, and its value.

    Attributes:
        name: Name of the setting.
        found: The present value, or why the value cannot be read.
        wanted: The value that it should have.
        why: What a value other than ``wanted`` costs.
        command: The command that would change the value. Empty if nothing has to be changed.
        state: ``ok``: the value is as wanted. ``change``: the value should be changed. ``unknown``: the value cannot be
            read here. ``note``: whether to change it depends on the use.
    """

    name: str
    found: str
    wanted: str
    state: State
    why: str = ""
    command: str = ""


def unreadable(name: str, wanted: str, why: str, what: str) -> HostFinding:
    """Return a finding about a setting whose value cannot be read."""
    return HostFinding(name=name, found=f"not readable here ({what})", wanted=wanted, state="unknown", why=why)


def host_report(findings: Sequence[HostFinding]) -> str:
    """Return the findings as text, one line each. Reason and command follow where a change may be needed."""
    width = max((len(each.name) for each in findings), default=0)
    marks = {"ok": "ok", "change": "CHANGE", "unknown": "?", "note": "-"}
    lines: list[str] = []
    for each in findings:
        wanted = "" if each.state == "ok" else f"; should be {each.wanted}"
        lines.append(f"{marks[each.state]:<7} {each.name:<{width}}  {each.found}{wanted}")
        if each.state in {"change", "note"}:
            lines += [f"{'':<8}{text}" for text in (each.why, each.command and f"$ {each.command}") if text]
    change, unknown = (sum(each.state == state for each in findings) for state in ("change", "unknown"))
    return "\n".join([*lines, f"{change} to change, {unknown} not readable here; nothing was changed"])
