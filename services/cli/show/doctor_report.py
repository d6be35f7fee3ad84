from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check and its result.

    Attributes:
        found: What was found, such as a version.
        remedy: What to do if the check failed.
        needed: Whether the check must pass for Railbus to work.
    """

    name: str
    good: bool
    found: str
    remedy: str
    needed: bool

    @property
    def missing(self) -> bool:
        return self.needed and not self.good


def doctor_report(findings: Sequence[DoctorCheck]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = [_line(finding, width) for finding in findings]
    missing = sum(finding.missing for finding in findings)
    closing = "everything needed is here" if not missing else f"{missing} thing(s) needed are missing"
    return "\n".join([*lines, closing])


def _line(finding: DoctorCheck, width: int) -> str:
    mark = "ok" if finding.good else "MISSING" if finding.needed else "-"
    remedy = "" if finding.good else f": {finding.remedy}"
    return f"{mark:<8} {finding.name:<{width}}  {finding.found}{remedy}"
