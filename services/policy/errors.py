"""Why a policy cannot be used.

PolicyError
 |- BrokenPolicy    its files are at fault: every fault with file and line
 `- RulingError     Rego gave no usable answer: never to be read as "allowed"
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong in a policy.

    Attributes:
        path: File, relative to the policy's folder.
        line: 1-based; 0 when the fault is about the whole file.
        message: What is wrong and what would be right.
    """

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class PolicyError(Exception):
    """A policy cannot be used."""


class BrokenPolicy(PolicyError):
    """The policy's files are at fault; ``faults`` says where. The message is one fault a line."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))


class RulingError(PolicyError):
    """Rego gave no answer, or one that is not of the documented form. The caller must fail closed."""
