"""The address guard: which addresses handlers may reach."""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from shared.errors import GiveUp

Address = IPv4Address | IPv6Address

# Outside global unicast are loopback, link-local, private, multicast, and forms that carry an IPv4 address.
_GLOBAL_V6 = IPv6Network("2000::/3")

# What Python's `is_global` lets through, in this or an older version; also from the IANA special-purpose registries
_CLOSED = tuple(
    ip_network(block)
    for block in (
        "192.0.0.0/24",  # IETF protocol assignments
        "192.88.99.0/24",  # 6to4 relays, withdrawn
        "224.0.0.0/4",  # multicast
        "2001::/23",  # IETF protocol assignments, Teredo among them
        "2002::/16",  # 6to4: carries an IPv4 address inside
        "3fff::/20",  # documentation
    )
)


class AddressRefused(GiveUp):
    """Handlers may not visit a URL, or the address that it leads to."""


def is_public(address: Address) -> bool:
    """Return whether an address is public unicast; IPv6 forms that carry an IPv4 address never are."""
    is_unicast = address.version == 4 or address in _GLOBAL_V6
    return is_unicast and address.is_global and not any(address in block for block in _CLOSED)


def is_any(address: Address) -> bool:  # noqa: ARG001 — the shape of a rule
    """Let every address pass."""
    return True


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """An installation's rule for addresses."""

    is_allowed: Callable[[Address], bool] = is_public

    def check(self, host: str, address: str) -> None:
        """Raise AddressRefused when the rule forbids an address that a host leads to."""
        if not self.is_allowed(ip_address(address)):
            raise AddressRefused(
                f"{host} leads to {address}, a private or reserved address; "
                "set DORMICE_HTTP_ALLOW_PRIVATE=true if handlers may go there"
            )
