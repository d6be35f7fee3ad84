"""Hypothesis strategies for events, derived from the type annotations of the event classes."""

from datetime import UTC, datetime

import msgspec.inspect as types
from hypothesis import strategies as st
from msgspec import NODEFAULT

from schemas.base import UUID7_PATTERN
from schemas.ids import uuid7
from schemas.registry import KINDS

MOST_CHARS = 40
"""Maximum length of a generated text. Longer texts would only test the maximum lengths of fields."""

_NOW_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def events(kind: str):
    """Return a strategy for valid events of this kind."""
    return _of(types.type_info(KINDS[kind].cls))


def any_event():
    """Return a strategy for valid events of all kinds."""
    return st.sampled_from(sorted(KINDS)).flatmap(events)


def _of(kind: types.Type):
    match kind:
        case types.Metadata(type=inner):
            return _of(inner)
        case types.StructType(cls=cls, fields=fields):
            always = {field.name: _of(field.type) for field in fields if field.required}
            optional = {field.name: _of(field.type) for field in fields if not field.required}
            assert all(not field.required or field.default is NODEFAULT for field in fields)
            return st.fixed_dictionaries(always, optional=optional).map(lambda values: cls(**values))
        case types.StrType():
            return _text(kind)
        case types.IntType(ge=low, le=high):
            return st.integers(low, high)
        case types.FloatType():
            return _number(kind)
        case types.BoolType():
            return st.booleans()
        case types.NoneType():
            return st.none()
        case types.LiteralType(values=values):
            return st.sampled_from(values)
        case types.UnionType(types=members):
            return st.one_of(*(_of(member) for member in members))
        case types.VarTupleType(item_type=item, min_length=low):
            return st.lists(_of(item), min_size=low or 0, max_size=3).map(tuple)
        case types.TupleType(item_types=items):
            return st.tuples(*map(_of, items))
    raise AssertionError(f"no strategy for {kind}: add one")


def _text(kind: types.StrType):
    if kind.pattern == UUID7_PATTERN:
        return st.builds(uuid7, st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
    if kind.pattern:
        return st.from_regex(kind.pattern, fullmatch=True, alphabet=st.characters(max_codepoint=127))
    return st.text(min_size=kind.min_length or 0, max_size=min(kind.max_length or MOST_CHARS, MOST_CHARS))


def _number(kind: types.FloatType):
    low = kind.ge if kind.gt is None else kind.gt
    return st.floats(low, kind.le, exclude_min=kind.gt is not None, allow_nan=False, allow_infinity=False)
