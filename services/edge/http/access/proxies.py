"""Determine the address of a client behind trusted proxies."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from services.runtime.errors import UserError

ProxyHeader = Literal["X-Forwarded-For", "Forwarded"]

MAX_HOPS: Final = 32
"""Maximum number of addresses that are read from a header. If it has more, only the last ones are read."""

_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("?)([^";,]*)\1\s*(?:;|$)', re.IGNORECASE)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The trusted proxies in front of this edge.

    Attributes:
        header: The header in which a proxy writes the address of its client.
    """

    networks: tuple[_Network, ...] = ()
    header: ProxyHeader = "X-Forwarded-For"

    def trusts(self, address: str) -> bool:
        if not self.networks:
            return False
        parsed = _parsed(address)
        return parsed is not None and any(
            parsed in network for network in self.networks if network.version == parsed.version
        )

    def client(self, peer: str, values: Sequence[str]) -> str:
        """Return the client's address. ``values`` are the values of the header that ``self.header`` names.

        Read the entries of ``values`` from the last to the first, and skip the addresses of trusted proxies. If the
        next entry is an address, return it. If it is no address, or if no entry is left, return ``peer``.
        """
        hops = [hop for value in values for hop in value.split(",")]
        for hop in reversed(hops[-MAX_HOPS:]):
            address = self._address(hop)
            if _parsed(address) is None:
                return peer  # the proxy itself counts as the client, because it names no valid address
            if not self.trusts(address):
                return address
        return peer

    def _address(self, hop: str) -> str:
        if self.header == "Forwarded":
            found = _FOR.search(hop)
            hop = found[2] if found is not None else ""
        return _without_port(hop.strip())


def trusted_proxies(text: str, header: ProxyHeader) -> TrustedProxies:
    """Return the trusted proxies. ``text`` is a comma-separated list of their addresses and networks.

    Raises:
        UserError: An entry is not an address or network.
    """
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise UserError(
                f"RAILBUS_TRUSTED_PROXIES: {error}: write addresses or networks such as 10.0.0.0/8"
            ) from None
    return TrustedProxies(tuple(networks), header)


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if parsed.version == 6 else None
    return mapped or parsed
