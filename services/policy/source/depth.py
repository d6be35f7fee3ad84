"""Limit the nesting of brackets in the Rego and JSON of a policy.

With every level of brackets, the compile time of Rego doubles.
"""

import re
from typing import Final

from services.policy.errors import PolicyFault

MAX_REGO_DEPTH: Final = 12
"""Maximum nesting of brackets in Rego. At this depth, compilation takes a tenth of a second. With 20 levels it would
take minutes, and with 20,000 the process would end."""

MAX_DATA_DEPTH: Final = 64

_REGO: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|`[^`]*`|#[^\n]*|(?P<open>[\[({])|(?P<close>[\])}])')
_JSON: Final = re.compile(r'"(?:\\.|[^"\\])*"|(?P<open>[\[{])|(?P<close>[\]}])')


def rego_depth_fault(name: str, text: str) -> PolicyFault | None:
    return _fault(name, text, _REGO, MAX_REGO_DEPTH)


def data_depth_fault(name: str, text: str) -> PolicyFault | None:
    return _fault(name, text, _JSON, MAX_DATA_DEPTH)


def _fault(name: str, text: str, tokens: re.Pattern[str], most: int) -> PolicyFault | None:
    depth = 0
    for token in tokens.finditer(text):
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
        if depth > most:
            line = text.count("\n", 0, token.start()) + 1
            return PolicyFault(name, line, f"is nested too deeply; the limit is {most} brackets within each other")
    return None
