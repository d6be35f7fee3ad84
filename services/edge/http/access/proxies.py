"""The address of a client behind a proxy. It is believed only if a trusted proxy names it. Pure."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from services.runtime.errors import UserError

ProxyHeader = Literal["X-Forwarded-For", "Forwarded"]

MAX_HOPS: Final = 32
"""Maximum number of addresses in a header that are read, counted from its end."""

_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("?)([^";,]*)\1\s*(?:;|$)', re.IGNORECASE)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The proxies before this edge.

    Attributes:
        networks: Their addresses.
        header: The header that they append the address of their client to. They must not pass on another one unseen.
    """

    networks: tuple[_Network, ...] = ()
    header: ProxyHeader = "X-Forwarded-For"

    def trusts(self, address: str) -> bool:
        """Return whether this is a proxy's address."""
        if not self.networks:
            return False
        parsed = _parsed(address)
        return parsed is not None and any(
            parsed in network for network in self.networks if network.version == parsed.version
        )

    def client(self, peer: str, values: Sequence[str]) -> str:
        """Return the client's address: the last one in the header that is not a proxy's.

        Args:
            peer: The address of the connection, which is a proxy's.
            values: The header's values, in order. Addresses before the client's own may be forged.
        """
        hops = [hop for value in values for hop in value.split(",")]
        for hop in reversed(hops[-MAX_HOPS:]):
            address = self._address(hop)
            if _parsed(address) is None:
                return peer  # a proxy that does not say counts as the client
            if not self.trusts(address):
                return address
        return peer

    def _address(self, hop: str) -> str:
        if self.header == "Forwarded":
            found = _FOR.search(hop)
            hop = found[2] if found is not None else ""
        return _without_port(hop.strip())


def trusted_proxies(text: str, header: ProxyHeader) -> TrustedProxies:
    """Read the setting: addresses and networks, separated by commas.

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
