"""Read the settings of a service from environment variables.

The settings of a service are a dataclass. By default, the name of a field's variable is
``RAILBUS_`` and the field's name in capitals. For example, the variable of ``max_jobs`` is ``RAILBUS_MAX_JOBS``.
"""

import ipaddress
import os
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields, is_dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from services.runtime.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    SettingsT = TypeVar("SettingsT", bound=DataclassInstance)
else:
    SettingsT = TypeVar("SettingsT")

PREFIX: Final = "RAILBUS_"

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})
_SECRET: Final = ("KEY", "TOKEN", "PASSWORD", "SECRET")  # a variable is secret if its name ends in one of these
_COUNT: Final = re.compile("[0-9]{1,9}")  # int() would take other digits, and fail on very many


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    allowed: str
    help: str


def setting(default: Any, help_text: str, **metadata: Any) -> Any:
    """Return a dataclass field for a setting, with a default and a description.

    ``metadata`` may have these entries:

    * ``env``: name of the environment variable. By default, it is derived from the name of the field.
    * ``ge`` and ``le``: minimum and maximum of a number.
    * ``secret``: if true, messages do not show the value.
    """
    return dataclass_field(default=default, metadata={"help": help_text, **metadata})


def load_settings(cls: type[SettingsT], env: Mapping[str, str] = os.environ) -> SettingsT:
    """Read settings from the environment. If a variable is unset or empty, its field gets the default.

    Raises:
        UserError: A value is not allowed. The message names the variable and the allowed values.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in fields(cls):
        hint = hints[field.name]
        if _is_settings(hint):
            values[field.name] = load_settings(hint, env)
            continue
        text = env.get(variable_name(field), "").strip()
        if text:
            values[field.name] = _parse(field, hint, text)
    return cls(**values)


def variable_name(field: Field[Any]) -> str:
    return str(field.metadata.get("env", PREFIX + field.name.upper()))


def settings_variables(cls: type[Any]) -> Iterator[Variable]:
    hints = get_type_hints(cls)
    for field in fields(cls):
        hint = hints[field.name]
        if _is_settings(hint):
            yield from settings_variables(hint)
        else:
            yield Variable(variable_name(field), _allowed(field, hint), str(field.metadata.get("help", "")))


def _is_settings(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _parse(field: Field[Any], hint: Any, text: str) -> Any:
    value = _convert(hint, text)
    low, high = field.metadata.get("ge"), field.metadata.get("le")
    if value is None or (low is not None and value < low) or (high is not None and value > high):
        shown = "(hidden)" if field.metadata.get("secret") else repr(text[:200])
        raise UserError(f"{variable_name(field)}={shown}: must be {_allowed(field, hint)}")
    return value


def _convert(hint: Any, text: str) -> Any:
    # None means that the text is not a value of this type.
    if get_origin(hint) in {types.UnionType, Union}:
        values = (_convert(option, text) for option in get_args(hint) if option is not type(None))
        return next((value for value in values if value is not None), None)
    if get_origin(hint) is Literal:
        return next((choice for choice in get_args(hint) if str(choice) == text), None)
    if hint is bool:
        return True if text.lower() in _YES else False if text.lower() in _NO else None
    if hint in {int, float}:
        try:
            number = hint(text)
        except ValueError:
            return None
        return number if abs(number) < float("inf") else None  # infinity and NaN are not allowed
    if hint is str and not is_utf8(text):
        return None  # Python decodes bytes that are not UTF-8 to surrogates, which no service can encode
    if hint in {str, Path}:
        return hint(text)
    msg = f"a setting cannot be of type {hint}"
    raise TypeError(msg)


def _allowed(field: Field[Any], hint: Any) -> str:
    low, high = field.metadata.get("ge"), field.metadata.get("le")
    bounds = "" if low is None else f" of at least {low}" if high is None else f" between {low} and {high}"
    return _kind(hint) + (bounds or ("" if high is None else f" of at most {high}"))


def _kind(hint: Any) -> str:
    if get_origin(hint) in {types.UnionType, Union}:
        return " or ".join(_kind(h) for h in get_args(hint) if h is not type(None))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(hint))
    names: dict[Any, str] = {
        bool: "on or off",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a path",
    }
    return names.get(hint, str(hint))


def is_utf8(given: str) -> bool:
    """Return whether a text can be encoded as UTF-8, that is, has no surrogates."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_count(text: str, most: int) -> int | None:
    """Convert a text to a whole number from 1 to ``most``; None if it is anything else or has over 9 digits."""
    number = int(text) if _COUNT.fullmatch(text) else 0
    return number if 1 <= number <= most else None


def is_http_url(url: str) -> bool:
    """Return whether the text is the URL of an HTTP server, with a valid host name and port."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or a part of the host's name is empty or too long
        return False


def without_login(url: str) -> str:
    """Return the URL without user, password and query, so that it can be printed."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.partition("?")[0].rpartition("@")[2]


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables so that they can be printed.

    The value of a secret is replaced by ``(set)``. User, password and query are left out of URLs.
    """
    return {
        name: "(set)" if name.endswith(_SECRET) else without_login(value) if name.endswith("_URL") else value
        for name, value in env.items()
    }


@contextmanager
def checked_redis_url(url: str) -> Iterator[None]:
    """Check ``RAILBUS_REDIS_URL`` and run the body of the ``with`` statement, which must create the Redis client.

    If creating the client raises a ``ValueError``, raise a ``UserError`` instead.

    Raises:
        UserError: The URL cannot be used. The message does not show it, because it may contain a password.
    """
    try:
        (urlsplit(url).hostname or "").encode("idna")  # the client would do so at each connection only
        yield
    except ValueError:
        allowed = "redis://HOST:PORT, or rediss://HOST:PORT with TLS"
        raise UserError(f"RAILBUS_REDIS_URL=(hidden): must be {allowed}") from None


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine. An IPv6 address may be in brackets."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
