"""A setting of the host: what it is, what it should be, and the command that would change it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "change", "unknown", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinding:
    """One setting.

    Attributes:
        name: Name of the setting.
        found: Its present value, or why the value cannot be read.
        wanted: The value that it should have.
        why: The cost of another value.
        command: The command that would change it. Empty if nothing has to be changed.
        state: ``unknown``: not readable here. ``note``: it depends on what is wanted.
    """

    name: str
    found: str
    wanted: str
    state: State
    why: str = ""
    command: str = ""


def unreadable(name: str, wanted: str, why: str, what: str) -> HostFinding:
    """Return a finding about something that cannot be read."""
    return HostFinding(name=name, found=f"not readable here ({what})", wanted=wanted, state="unknown", why=why)


def host_report(findings: Sequence[HostFinding]) -> str:
    """Return the findings as text: a line each, and the remedy below what should be changed."""
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
