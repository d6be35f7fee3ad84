from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from services.runtime.errors import UserError
from services.runtime.settings import Variable, is_loopback, load_settings, settings_variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    port: int = field(default=0, metadata={"ge": 0, "le": 65_535, "help": "where it listens"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    name: str = "x"
    jobs: int = field(default=4, metadata={"ge": 1})
    share: float = field(default=0.5, metadata={"le": 1})
    fast: bool = False
    mode: Literal["hold", "off"] = "off"
    model: Path | None = None
    key: str | None = field(default=None, metadata={"env": "RAILBUS_UPSTREAM_KEY", "secret": True})
    size: int | None = field(default=None, metadata={"secret": True})
    inner: Inner = field(default_factory=Inner)


def test_nothing_set_gives_the_defaults() -> None:
    assert load_settings(Example, {}) == Example()


def test_an_empty_variable_counts_as_unset() -> None:
    assert load_settings(Example, {"RAILBUS_JOBS": " ", "RAILBUS_KEY": ""}) == Example()


def test_every_type() -> None:
    env = {
        "RAILBUS_NAME": "y",
        "RAILBUS_JOBS": "8",
        "RAILBUS_SHARE": "0.25",
        "RAILBUS_FAST": "on",
        "RAILBUS_MODE": "hold",
        "RAILBUS_MODEL": "/m.gguf",
        "RAILBUS_UPSTREAM_KEY": "k",
        "RAILBUS_PORT": "80",
    }
    assert load_settings(Example, env) == Example(
        name="y", jobs=8, share=0.25, fast=True, mode="hold", model=Path("/m.gguf"), key="k", inner=Inner(port=80)
    )


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_yes(text: str) -> None:
    assert load_settings(Example, {"RAILBUS_FAST": text}).fast


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_no(text: str) -> None:
    assert not load_settings(Example, {"RAILBUS_FAST": text}).fast


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("RAILBUS_JOBS", "many", "a whole number of at least 1"),
        ("RAILBUS_JOBS", "0", "a whole number of at least 1"),
        ("RAILBUS_JOBS", "1.5", "a whole number of at least 1"),
        ("RAILBUS_SHARE", "2", "a number of at most 1"),
        ("RAILBUS_SHARE", "nan", "a number of at most 1"),
        ("RAILBUS_SHARE", "-inf", "a number of at most 1"),
        ("RAILBUS_FAST", "maybe", "on or off"),
        ("RAILBUS_MODE", "on", "one of hold, off"),
        ("RAILBUS_PORT", "65536", "a whole number between 0 and 65535"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        load_settings(Example, {name: value})
    assert str(caught.value) == f"{name}={value!r}: must be {allowed}"


def test_a_text_that_is_not_utf_8_is_a_mistake_and_a_path_may_be() -> None:
    with pytest.raises(UserError) as caught:
        load_settings(Example, {"RAILBUS_NAME": "x\udcff"})
    assert str(caught.value) == r"RAILBUS_NAME='x\udcff': must be text"
    assert load_settings(Example, {"RAILBUS_MODEL": "x\udcff"}).model == Path("x\udcff")


def test_a_secret_is_never_repeated() -> None:
    with pytest.raises(UserError) as caught:
        load_settings(Example, {"RAILBUS_SIZE": "hush"})
    assert str(caught.value) == "RAILBUS_SIZE=(hidden): must be a whole number"


def test_the_list_of_variables() -> None:
    listed = list(settings_variables(Example))
    assert Variable("RAILBUS_JOBS", "a whole number of at least 1", "") in listed
    assert Variable("RAILBUS_MODEL", "a path", "") in listed
    assert listed[-1] == Variable("RAILBUS_PORT", "a whole number between 0 and 65535", "where it listens")


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "example.org", "10.0.0.1", "", "localhost.evil.example", "::")))
