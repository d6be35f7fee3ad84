"""Test how the edge finds the address of a client behind proxies."""

import pytest

from services.edge.http.access.proxies import trusted_proxies
from services.runtime.errors import UserError

PROXIES = "10.0.0.0/8, 2001:db8::/32"


@pytest.mark.parametrize(
    ("values", "client"),
    [
        (["203.0.113.7"], "203.0.113.7"),
        (["198.51.100.1, 203.0.113.7, 10.2.3.4"], "203.0.113.7"),  # the first is the client's own claim
        (["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7:4711"], "203.0.113.7"),
        (["[2001:4860::1]:443"], "2001:4860::1"),
        (["2001:4860::1"], "2001:4860::1"),
        (["203.0.113.7, unknown"], "10.0.0.1"),
        (["10.0.0.2, 10.0.0.3"], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
    ],
)
def test_the_last_address_that_is_no_proxys(values, client):
    assert trusted_proxies(PROXIES, "X-Forwarded-For").client("10.0.0.1", values) == client


@pytest.mark.parametrize(
    ("value", "client"),
    [
        ("for=203.0.113.7;proto=https;by=10.0.0.1", "203.0.113.7"),
        ('For="[2001:4860::1]:4711", for=10.1.1.1', "2001:4860::1"),
        ("proto=https;for=203.0.113.7", "203.0.113.7"),
        ("for=_hidden", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
    ],
)
def test_the_standard_header(value, client):
    assert trusted_proxies(PROXIES, "Forwarded").client("10.0.0.1", [value]) == client


@pytest.mark.parametrize(
    ("address", "trusted"),
    [("10.9.9.9", True), ("::ffff:10.9.9.9", True), ("2001:db8::1", True), ("11.0.0.1", False), ("unknown", False)],
)
def test_who_is_a_proxy(address, trusted):
    assert trusted_proxies(PROXIES, "Forwarded").trusts(address) is trusted
    assert not trusted_proxies("", "Forwarded").trusts(address)


def test_a_mistake_names_the_setting():
    with pytest.raises(UserError, match="RAILBUS_TRUSTED_PROXIES"):
        trusted_proxies("proxy.example", "Forwarded")
