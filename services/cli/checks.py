"""What the doctor found. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: What.
        good: Whether it is there, and as it should be.
        found: What was found, such as a version.
        remedy: What to do when it is not good.
        needed: Whether anything works without it.
    """

    name: str
    good: bool
    found: str
    remedy: str
    needed: bool

    @property
    def missing(self) -> bool:
        """Whether something needed is not there."""
        return self.needed and not self.good


def report(findings: Sequence[Finding]) -> str:
    """One line a finding, and a closing one."""
    width = max(len(finding.name) for finding in findings)
    lines = [_line(finding, width) for finding in findings]
    missing = sum(finding.missing for finding in findings)
    closing = "everything needed is here" if not missing else f"{missing} thing(s) needed are missing"
    return "\n".join([*lines, closing])


def _line(finding: Finding, width: int) -> str:
    mark = "ok" if finding.good else "MISSING" if finding.needed else "-"
    remedy = "" if finding.good else f": {finding.remedy}"
    return f"{mark:<8} {finding.name:<{width}}  {finding.found}{remedy}"
