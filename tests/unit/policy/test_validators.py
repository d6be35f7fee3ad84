"""Test the validators of matched text, such as Luhn and IBAN."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.policy.matching.validators import VALIDATORS, iban, valid


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "luhn",
            ["4111111111111111", "3782 822463 10005", "6011-0009-9013-9424"],
            ["4111111111111112", "0" * 16, "42"],
        ),
        ("iban", ["GB82 WEST 1234 5698 7654 32", "DE89370400440532013000"], ["DE88370400440532013000", "GB82", ""]),
        (
            "ssn",
            ["078-05-1120", "899-99-9999"],
            ["000-12-3456", "666-12-3456", "900-12-3456", "123-00-4567", "123-45-0000", "123-45-678"],
        ),
        (
            "ipv4",
            ["8.8.8.8", "172.32.0.1", "193.99.144.80"],
            [
                "10.0.0.1",
                "127.0.0.1",
                "192.168.1.1",
                "172.31.0.1",
                "172.16.0.1",
                "169.254.1.1",
                "256.1.1.1",
                "01.2.3.4",
                "1.2.3",
            ],
        ),
        ("entropy", ["a8f5f167f44f4964e6c998dee827110c", "Tr0ub4dor&3x"], ["xxxxxxxxxxxxxxxx", "abababab", ""]),
    ],
)
def test_validators(name, good, bad):
    assert all(valid(name, text) for text in good)
    assert not any(valid(name, text) for text in bad)


@given(number=st.from_regex(r"[1-9][0-9]{11,17}", fullmatch=True), at=st.integers(0, 17), other=st.integers(1, 9))
@settings(deadline=None)
def test_luhn_has_one_check_digit_and_sees_every_single_wrong_digit(number, at, other):
    good = [number + digit for digit in "0123456789" if valid("luhn", number + digit)]
    assert len(good) == 1 or len(set(number)) == 1
    at %= len(number)
    wrong = number[:at] + str((int(number[at]) + other) % 10) + number[at + 1 :]
    assert not any(valid("luhn", wrong + whole[-1]) for whole in good)


@given(account=st.from_regex(r"[0-9A-Z]{11,30}", fullmatch=True))
@settings(deadline=None)
def test_iban_has_check_digits_for_every_account(account):
    value = int("".join(str(int(char, 36)) for char in account + "DE00"))
    assert iban(f"DE{98 - value % 97:02}{account}")


@given(text=st.text(min_size=1, max_size=50))
@settings(deadline=None)
def test_entropy_does_not_depend_on_order(text):
    assert valid("entropy", text) == valid("entropy", text[::-1])


@given(text=st.text(min_size=1, max_size=80))
@settings(deadline=None)
def test_entropy_is_shannons(text):
    shares = [text.count(char) / len(text) for char in set(text)]
    bits = -sum(share * math.log2(share) for share in shares)
    assert abs(bits - 3) < 1e-6 or valid("entropy", text) == (bits > 3)


@pytest.mark.parametrize("name", sorted(VALIDATORS))
@given(text=st.text(alphabet="0123456789ADE-. ", min_size=1, max_size=40), sizes=st.lists(st.integers(1, 9)))
@settings(deadline=None)
def test_a_text_may_come_in_pieces(name, text, sizes):
    running, at = VALIDATORS[name](), 0
    for size in sizes:
        if at < len(text):
            assert running.feed(text[at : at + size]) == valid(name, text[: at + size])
            at += size


@pytest.mark.parametrize("name", sorted(VALIDATORS))
@pytest.mark.parametrize(
    "text", ["10.2.1.", "1.2.3.²", "1.2.3.-", "4111 1111 1111 111²", "DE89 Müller 1234 5678", "²" * 20]
)
def test_a_pattern_may_allow_any_text(name, text):
    assert valid(name, text) == (name == "entropy" and text.startswith("DE89"))


@pytest.mark.parametrize("name", sorted(VALIDATORS))
@given(text=st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("12.²Ü"), max_size=40))
@settings(deadline=None)
def test_no_text_is_an_error(name, text):
    assert valid(name, text) in {True, False}
