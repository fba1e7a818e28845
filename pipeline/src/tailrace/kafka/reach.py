"""Why no broker answers: one connection to each bootstrap address, for the message of TR-201.

librdkafka reports an unknown host, a refused port and a silent one alike, as a transport failure, and reports nothing
at all about a listener that expects TLS. A connection of our own tells them apart, at the moment of the message: of the
first request, or of the error that ends a run.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.config import Kafka
from tailrace.errors import BrokerUnreachable, TailraceError

_LIMIT = 2.0  # seconds, for all addresses together
_TLS = frozenset({"SSL", "SASL_SSL"})


@dataclass(frozen=True)
class Finding:
    """How far a connection to one bootstrap address came."""

    address: str
    what: str
    connects: bool = False

    def __str__(self) -> str:
        """Return it for a message."""
        return f"{self.address}: {self.what}"


def findings(kafka: Kafka, limit: float = _LIMIT) -> list[Finding]:
    """Try each bootstrap address once, all at the same time."""
    protocol = kafka.options.get("security.protocol", "PLAINTEXT").upper()
    addresses = [each.strip() for each in kafka.bootstrap_servers.split(",")]
    found = [Finding(each, f"its host name was not resolved within {limit:.0f} s") for each in addresses]

    def try_one(index: int) -> None:
        address = addresses[index]
        try:
            places = _resolve(address)
            found[index] = Finding(
                address, f"no connection within {limit:.0f} s: a firewall, a wrong address, or a machine that is off"
            )
            found[index] = Finding(address, _connect(places, protocol, limit), connects=True)
        except socket.gaierror as error:
            found[index] = Finding(address, f"its host name cannot be resolved ({error.strerror})")
        except ConnectionRefusedError:
            found[index] = Finding(address, "connection refused: nothing listens on this port")
        except TimeoutError:
            pass  # found[index] says so already
        except OSError as error:
            found[index] = Finding(address, f"no connection ({error.strerror or error})")

    # A resolver may block beyond any limit of ours; such a thread is abandoned.
    threads = [threading.Thread(target=try_one, args=(index,), daemon=True) for index in range(len(addresses))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(found)


def advice(found: Sequence[Finding]) -> str:
    """Return what to check: the listener's protocol where a connection was accepted, otherwise the address."""
    if any(each.connects for each in found):
        return "check security.protocol of kafka.options and the port of kafka.bootstrap.servers"
    return "check kafka.bootstrap.servers, and that the brokers run"


def explained(error: TailraceError, kafka: Kafka) -> TailraceError:
    """Return the error; one about brokers that did not answer with the reason for each address, unless it has them.

    An address that accepts a connection by now explains nothing.
    """
    if not isinstance(error, BrokerUnreachable):
        return error
    found = [each for each in findings(kafka) if not each.connects]
    if not found or f"{found[0].address}: " in error.what:
        return error
    what = f"{error.what} ({'; '.join(map(str, found))})"
    return BrokerUnreachable(what, kept=error.kept, then=f"{advice(found)}, then: tailrace doctor FILE")


def _resolve(address: str) -> list[tuple[str, int]]:
    host, port = address.rpartition("://")[2].rsplit(":", 1)
    resolved = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(str(each[4][0]), int(port)) for each in resolved]


def _connect(places: Sequence[tuple[str, int]], protocol: str, limit: float) -> str:
    """Return what is wrong with a listener that accepts a connection; raise OSError if none does."""
    refused: OSError = OSError("the host name has no address")
    for place in places:
        try:
            with socket.create_connection(place, limit) as connection:
                if protocol not in _TLS and _speaks_tls(connection):
                    return f"the listener expects TLS, and security.protocol is {protocol}"
                return f"accepts a connection, but answers no request with security.protocol {protocol}"
        except OSError as error:
            refused = error
    raise refused


def _speaks_tls(connection: socket.socket) -> bool:
    """Shake hands without verifying anything: nothing is sent afterwards."""
    connection.settimeout(_LIMIT / 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with context.wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # such as: it demands a certificate of ours
    except OSError:
        return False
