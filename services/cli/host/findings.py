from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "change", "unknown", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFinding:
    """A setting of the host or of a GPU, its present value, and its recommended value.

    Attributes:
        found: The present value, or why it cannot be read.
        why: What happens if the value is not the recommended one.
        command: Command that sets the recommended value; empty if there is none.
        state: ``ok``; ``change`` if the value should be changed; ``note`` if a change helps only some uses;
            ``unknown`` if the value cannot be read.
    """

    name: str
    found: str
    wanted: str
    state: State
    why: str = ""
    command: str = ""


def unreadable(name: str, wanted: str, why: str, what: str) -> HostFinding:
    return HostFinding(name=name, found=f"not readable here ({what})", wanted=wanted, state="unknown", why=why)


def host_report(findings: Sequence[HostFinding]) -> str:
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
