"""A proxy before Kafka's brokers that lets a test break the network: request by request, or all at once.

Of a request it understands the sender and the kind; of a response, where it ends, and what it changes.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from support.wire import Api, Request, frame, not_leader, parsed, without_brokers
from tailrace.testing import embedded, wait_until
from tailrace.testing.broker import HOST
from tailrace.testing.embedded import PORT_TRIES

_CHUNK = 1 << 16


class Fault(Enum):
    """What happens to a request, or to its response."""

    DROP = auto()  # it never arrives; the connection stays open
    CUT = auto()  # it never arrives; the connection is closed
    CUT_ANSWER = auto()  # it arrives; the connection is closed before the response
    RESET_ANSWER = auto()  # the same, with a TCP reset instead of a close
    HOLD = auto()  # the connection is closed; it arrives when the test releases it
    DELAY = auto()  # it, and all that follows on the connection, arrive when the test releases it
    DELAY_ANSWER = auto()  # it arrives; the response, and all later ones, arrive when the test releases it
    NO_BROKERS = auto()  # it arrives; the response lists no brokers
    NOT_LEADER = auto()  # it arrives; the response says that the broker does not lead yet, and waits for the next one
    TWICE = auto()  # it arrives; a copy arrives over another connection when the test releases it


Judge = Callable[[Request], Fault | None]


def nth(api: Api, fault: Fault, number: int = 1, transaction: str | None = None, client: str | None = None) -> Judge:
    """Return a judge with a fault for the n-th request of a kind from now on, optionally of one sender only."""
    counted = 0
    lock = threading.Lock()

    def judge(request: Request) -> Fault | None:
        nonlocal counted
        other = transaction not in {None, request.transaction} or client not in {None, request.client}
        if request.api != api or other:
            return None
        with lock:
            counted += 1
            return fault if counted == number else None

    return judge


def brokerless(request: Request) -> Fault | None:
    """Judge: no answer lists a broker, as when a controller has heard of none lately."""
    return Fault.NO_BROKERS if request.api == Api.METADATA else None


@dataclass
class Held:
    """A request, or a response, that waits for `let_go`."""

    request: Request
    fault: Fault
    _gate: threading.Event = field(default_factory=threading.Event)
    _done: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Release it, without waiting for it to arrive."""
        self._gate.set()

    def let_go(self, limit: float = 30.0) -> None:
        """Release it; return once the broker has answered it, or the client has its response."""
        self.open()
        if not self._done.wait(limit):
            raise TimeoutError(f"waited {limit:g} s for {self.request} to arrive")

    def wait(self) -> None:
        """Block the proxy until the test releases it."""
        self._gate.wait()

    def arrived(self) -> None:
        """Record that the proxy has delivered it."""
        self._done.set()


class Proxy:
    """The proxies of all brokers: a fault set here applies to all of them."""

    def __init__(self, *, remember: bool = True, looks: bool = True) -> None:
        self._remember = remember  # whether to keep what was seen
        # Whether it parses what passes. One that does not costs a third of the CPU, and knows outages and cuts only.
        self.looks = looks
        self.judge: Judge = lambda request: None
        self.seen: list[Request] = []
        self.faults: list[tuple[Request, Fault]] = []
        self.held: list[Held] = []
        self.late: dict[int, float] = {}  # by broker: seconds for which each of its responses is held
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._listening: list[socket.socket] = []
        self._passable = threading.Event()
        self._passable.set()
        self._refusing = False
        self._closed = False

    # -- for the tests ---------------------------------------------------------------------------

    def outage(self, *, silent: bool) -> None:
        """Let nothing pass either way. Silent: connections stay open. Otherwise all are cut, and so are new ones."""
        self._passable.clear()
        self._refusing = not silent
        if not silent:
            self.cut()

    def restore(self) -> None:
        """End an outage. What was in flight in a silent one arrives now, as TCP would deliver it."""
        self._refusing = False
        self._passable.set()

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def count(self, api: Api, transaction: str | None = None) -> int:
        """Count the requests of a kind that have come."""
        with self._lock:
            return sum(each.api == api and transaction in {None, each.transaction} for each in self.seen)

    def one_held(self, after: Held | None = None, limit: float = 30.0) -> Held:
        """Wait until a request is held, and return it; with `after`, one held later than that."""

        def last() -> Held | None:
            return self.held[-1] if self.held and self.held[-1] is not after else None

        found = wait_until(last, "a request to be held", limit)
        if found is None:
            raise TimeoutError
        return found

    def heal(self) -> None:
        """Stop all faults, release whatever is held, and forget everything recorded."""
        self.judge = lambda request: None
        self.late = {}
        self.restore()
        for held in self.held:
            held.open()
        self.held, self.faults, self.seen = [], [], []

    # -- for the connections ---------------------------------------------------------------------

    def listen(self, broker: int, target: int) -> int:
        """Listen in front of one broker's listener, and return the port."""
        listening = _listening()
        self._listening.append(listening)
        threading.Thread(target=self._accept, args=[listening, broker, target], daemon=True).start()
        port: int = listening.getsockname()[1]
        return port

    def listen_no_more(self) -> None:
        """Close every listener."""
        for listening in self._listening:
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
        self._listening = []

    def close(self) -> None:
        """Close every listener and connection."""
        self._closed = True
        self._passable.set()
        self.listen_no_more()
        self.heal()
        self.cut()

    def _accept(self, listening: socket.socket, broker: int, target: int) -> None:
        while not self._closed:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                link = _Link(self, client, broker, target)
            except OSError:  # the broker is down
                client.close()
                continue
            with self._lock:
                self._links.add(link)
            link.start()

    def forget(self, link: _Link) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._links.discard(link)

    def verdict(self, request: Request) -> Fault | None:
        """Record a request, and return its fault if it has one."""
        if self._remember:
            with self._lock:
                self.seen.append(request)
        fault = self.judge(request)
        if fault is not None:
            self.faults.append((request, fault))
        return fault

    def hold(self, request: Request, fault: Fault) -> Held:
        """Hold a request or a response from now on."""
        held = Held(request, fault)
        self.held.append(held)
        return held

    def pass_on(self) -> None:
        """Wait while an outage lasts."""
        self._passable.wait()


class _Link:
    """One client's connection, and its counterpart to the broker."""

    def __init__(self, proxy: Proxy, client: socket.socket, broker: int, target: int) -> None:
        self._proxy, self._client, self._broker, self._target = proxy, client, broker, target
        self._server = socket.create_connection((HOST, target), timeout=10)
        self._server.settimeout(None)
        for each in (self._client, self._server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: dict[int, tuple[Fault, Request]] = {}  # by correlation id: what happens to the response
        self._lock = threading.Lock()

    def start(self) -> None:
        """Forward traffic both ways."""
        pumps = (self._requests, self._replies) if self._proxy.looks else (self._there, self._back)
        for pump in pumps:
            threading.Thread(target=self._run, args=[pump], daemon=True).start()

    def close(self, *, reset: bool = False) -> None:
        """Close both ends."""
        self._shut(self._client, reset)
        self._shut(self._server)
        self._proxy.forget(self)

    @staticmethod
    def _shut(end: socket.socket, reset: bool = False) -> None:
        with suppress(OSError):
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # The other thread's recv holds the socket, and must return before a reset can be sent.
            end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
        end.close()

    def _run(self, pump: Callable[[], None]) -> None:
        with suppress(OSError, EOFError):
            pump()
        self.close()

    def _requests(self) -> None:
        while True:
            sent = frame(self._client)
            request = parsed(sent, self._broker)
            self._proxy.pass_on()
            fault = self._proxy.verdict(request)
            if fault is Fault.DROP:
                continue
            if fault is Fault.CUT:
                return
            if fault is Fault.HOLD:
                self._copy(sent, request, fault)
                return
            if fault is Fault.DELAY:
                held = self._proxy.hold(request, fault)
                held.wait()
                self._server.sendall(sent)
                held.arrived()
                continue
            if fault is Fault.TWICE:
                self._copy(sent, request, fault)
            elif fault is not None:
                with self._lock:
                    self._answers[request.correlation] = (fault, request)
            self._server.sendall(sent)

    def _replies(self) -> None:
        waiting = b""
        while True:
            sent = frame(self._server)
            (correlation,) = struct.unpack_from(">i", sent, 4)
            with self._lock:
                fault, request = self._answers.pop(correlation, (None, None))
            self._proxy.pass_on()
            time.sleep(self._proxy.late.get(self._broker, 0.0))
            if fault is Fault.DELAY_ANSWER and request is not None:
                held = self._proxy.hold(request, fault)
                held.wait()
                self._client.sendall(sent)
                held.arrived()
            elif fault is Fault.NO_BROKERS and request is not None:
                self._client.sendall(without_brokers(sent, request.version))
            elif fault is Fault.NOT_LEADER and request is not None:
                waiting = not_leader(sent, request.version)
            elif fault is not None:
                self.close(reset=fault is Fault.RESET_ANSWER)
                return
            else:
                self._client.sendall(waiting + sent)
                waiting = b""

    def _there(self) -> None:
        self._pass_through(self._client, self._server)

    def _back(self) -> None:
        self._pass_through(self._server, self._client)

    def _pass_through(self, source: socket.socket, target: socket.socket) -> None:
        chunk = memoryview(bytearray(_CHUNK))
        while count := source.recv_into(chunk):
            self._proxy.pass_on()
            target.sendall(chunk[:count])

    def _copy(self, sent: bytes, request: Request, fault: Fault) -> None:
        """Hold a copy of a request, and send it over another connection when released: a broker does not care which."""
        held = self._proxy.hold(request, fault)

        def deliver() -> None:
            held.wait()
            with suppress(OSError, EOFError), socket.create_connection((HOST, self._target), timeout=10) as other:
                other.sendall(sent)
                frame(other)
                held.arrived()

        threading.Thread(target=deliver, daemon=True).start()


def _listening() -> socket.socket:
    """Listen on a free port below the ephemeral range."""
    for _ in range(PORT_TRIES - 1):
        with suppress(OSError):  # another process was quicker
            return socket.create_server((HOST, embedded._free_ports(1, ())[0]), backlog=128)
    return socket.create_server((HOST, embedded._free_ports(1, ())[0]), backlog=128)
