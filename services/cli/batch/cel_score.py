"""Score answers with expressions in the Common Expression Language (https://github.com/google/cel-spec)."""

import math
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

from services.runtime.errors import UserError

LONGEST_ERROR_CHARS: Final = 200

_FAILED: Final = (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError)
"""Errors with which the evaluation of an expression may end."""


def cel_scorer(expression: str) -> Callable[[str], float | None]:
    """Compile a CEL expression to a function that returns an answer's score.

    The function returns None if the expression fails for the answer.

    In the expression, ``answer`` is the text and ``json`` the parsed text.

    Raises:
        UserError: The package ``cel`` is not installed.
        ValueError: The expression is invalid, or uses another variable.
    """
    try:
        import cel
    except ImportError:
        raise UserError("score.cel needs the package of the extra cel: pip install 'railbus[cel]'") from None
    try:
        program = cel.compile(expression)
    except ValueError as error:
        raise ValueError(f"score.cel: {_short(error)}") from None

    def score(answer: str) -> float | None:
        try:
            return finite(program.execute({"answer": answer, "json": _doubles(_parsed(answer))}))
        except _FAILED:  # for example, the answer lacks a field of the expression
            return None

    try:
        program.execute({"answer": "", "json": None})
    except RuntimeError as error:
        if str(error).startswith("Undefined variable"):
            raise ValueError(f"score.cel may use answer and json: {_short(error)}") from None
    except _FAILED:
        pass  # the expression may still work for an answer that is not empty
    return score


def finite(found: Any) -> float | None:
    """Convert a number or numeric string to a float. Return None for other values, infinity and NaN."""
    if not isinstance(found, str | int | float):
        return None
    try:
        value = float(found)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _parsed(answer: str) -> Any:
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None


def _doubles(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _doubles(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_doubles(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _short(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:LONGEST_ERROR_CHARS]
