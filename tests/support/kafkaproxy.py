"""An embedded Kafka whose clients come through a proxy, and its brokers to each other, so that a test can part them.

Each broker has a second listener for proxied clients and advertises the proxy's port for it, so nothing has to be
rewritten, and the oracle reads past the proxy.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from support.proxy import Proxy
from tailrace.errors import BrokerDidNotStart
from tailrace.testing import embedded, wait_until
from tailrace.testing.broker import HOST, Broker
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

_API_VERSIONS = 18  # the request that any listener answers, before a login too
LISTENER, GUARDED, BETWEEN = "PROXIED", "GUARDED", "BETWEEN"
USER, PASSWORD = "pipeline", "a-password-of-the-tests"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# Everybody is a super user, but who comes as USER: he may do everything until an entry of a list forbids it.
_GUARD = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "inter.broker.listener.name": BETWEEN,
    f"listener.name.{GUARDED.lower()}.sasl.enabled.mechanisms": "PLAIN",
    f"listener.name.{GUARDED.lower()}.plain.sasl.jaas.config": f'{_PLAIN} required user_{USER}="{PASSWORD}";',
}


class ProxiedKafka(EmbeddedKafka):
    """An embedded Kafka with a second listener on each broker, for the clients that come through the proxy.

    If `apart`, the brokers too reach each other through proxies, one for each broker, so that one can be cut off from
    the others; and there is a third listener, whose clients log in, so that a right can be withdrawn from them.
    """

    def __init__(self, options: EmbeddedOptions | None = None, *, apart: bool = False) -> None:
        super().__init__(options)
        self.proxy = Proxy(remember=not apart)
        self.between: dict[int, Proxy] = {}  # by broker: the way to it from the others
        self._apart = apart
        self._doors: list[_Door] = []

    @property
    def proxied_servers(self) -> str:
        """Return the addresses that lead through the proxy."""
        return self._servers(LISTENER)

    @property
    def guarded_servers(self) -> str:
        """Return the addresses that lead through the proxy, too, for clients that log in."""
        return self._servers(GUARDED)

    def _servers(self, listener: str) -> str:
        return ",".join(f"{HOST}:{each.port}" for each in self._doors if each.listener == listener)

    def _lay_out(self, java: Sequence[str]) -> None:
        super()._lay_out(java)
        # Another process may have taken a broker's port, so that all of this is tried again.
        for each in (self.proxy, *self.between.values()):
            each.listen_no_more()
        self._doors = []
        taken = {broker.port for broker in self.brokers}
        names = (LISTENER, GUARDED, BETWEEN) if self._apart else (LISTENER,)
        for broker in self.brokers:
            doors = [self._door(broker.node_id, name, taken) for name in names]
            self._doors += doors
            file = broker.folder / "server.properties"
            known = dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines())
            more = {
                "listeners": [f"{each.listener}://{HOST}:{each.behind}" for each in doors],
                "advertised.listeners": [f"{each.listener}://{HOST}:{each.port}" for each in doors],
                "listener.security.protocol.map": [
                    f"{each.listener}:{'SASL_PLAINTEXT' if each.listener == GUARDED else 'PLAINTEXT'}" for each in doors
                ],
            }
            known |= {name: ",".join([known[name], *values]) for name, values in more.items()}
            if self._apart:
                known |= _GUARD
            file.write_text("".join(f"{name}={value}\n" for name, value in known.items()), encoding="utf-8")

    def _start_brokers(self) -> None:
        super()._start_brokers()
        # A broker answers at its own listener, and a moment later ends because the port of another is taken.
        by_id = {each.node_id: each for each in self.brokers}
        for each in self._doors:
            broker = by_id[each.broker]
            wait_until(partial(_settled, broker, each.behind), f"port {each.behind} of broker {each.broker}", 30)
            if not broker.alive:
                raise BrokerDidNotStart(f"broker {each.broker} ended when it was to listen on port {each.behind}")

    def _door(self, broker: int, listener: str, taken: set[int]) -> _Door:
        [behind] = embedded._free_ports(1, taken)
        taken.add(behind)
        by = self.between.setdefault(broker, Proxy(looks=False)) if listener == BETWEEN else self.proxy
        return _Door(broker, listener, by.listen(broker, behind), behind)

    def stop(self) -> None:
        """Stop the brokers and the proxies."""
        for each in (self.proxy, *self.between.values()):
            each.close()
        super().stop()


@dataclass(frozen=True)
class _Door:
    """A broker's listener that is reached through a proxy."""

    broker: int
    listener: str
    port: int  # the proxy's
    behind: int  # the broker's own


def _settled(broker: Broker, port: int) -> bool:
    """Return whether Kafka answers on a port, or its process has ended: another process may have the port."""
    with suppress(OSError), socket.create_connection((HOST, port), timeout=2) as asked:
        asked.sendall(struct.pack(">ihhih", 10, _API_VERSIONS, 0, 1, -1))
        if asked.recv(4):
            return True
    return not broker.alive


@contextmanager
def proxied(settings: Mapping[str, str] | None = None, brokers: int = 1) -> Iterator[ProxiedKafka]:
    """Run a Kafka behind a proxy."""
    with ProxiedKafka(EmbeddedOptions(brokers=brokers, settings=settings or {})) as kafka:
        yield kafka
