"""The network interface by which a process reaches the others of its run."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import MutableMapping

import psutil

from trainers.settings import ConfigError

VARIABLE = "GLOO_SOCKET_IFNAME"


def choose_interface(environment: MutableMapping[str, str]) -> None:
    """Lets gloo meet the processes of other machines by the interface that leads to them.

    Left to itself, gloo takes the one that has the address of the machine's name; Debian gives the name a loopback
    address, at which no other machine answers.

    Args:
        environment: Variables of this process, as a launcher set them; changed where its run has other machines, and
            nobody has chosen.

    Raises:
        ConfigError: Nothing leads there, or several interfaces may.
    """
    world = environment.get("WORLD_SIZE", "1")
    if VARIABLE not in environment and environment.get("LOCAL_WORLD_SIZE", world) != world:
        environment[VARIABLE] = interface_to(environment["MASTER_ADDR"])


def interface_to(host: str) -> str:
    """Returns the name of the interface that leads to ``host``; if that is this machine, the one that leads out.

    Raises:
        ConfigError: Nothing leads there, or several interfaces may lead out.
    """
    address = address_towards(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    names = {
        name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if name in up and entry.family == family
        if (not _is_loopback(entry.address) if _is_loopback(address) else entry.address == address)
    }
    if len(names) != 1:
        which = f"one of {', '.join(sorted(names))}" if names else "no interface"
        raise ConfigError(f"{which} leads from {socket.gethostname()} to other machines; set {VARIABLE} to its name")
    name: str = names.pop()
    return name


def address_towards(host: str) -> str:
    """Returns the address of this machine at which ``host`` can reach it.

    Raises:
        ConfigError: The name has no address, or nothing leads there.
    """
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise ConfigError(f"{socket.gethostname()} finds no way to {host} ({error})") from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
