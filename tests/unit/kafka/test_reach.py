"""Why no broker answers, as TR-201 tells it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from e2e.standin.certificates import authority, issue
from support.served import free_port
from tailrace import errors
from tailrace.config import Kafka
from tailrace.kafka import cluster as kafka_cluster
from tailrace.kafka import reach
from tailrace.kafka.cluster import Cluster


@pytest.fixture
def mute() -> Iterator[int]:
    """Return the port of a listener that accepts connections and closes them at the first byte."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=_close_each, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def _close_each(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1)


def _told(servers: str, **options: str) -> str:
    return "; ".join(map(str, reach.findings(Kafka(bootstrap_servers=servers, options=options))))


def test_unknown_host_and_refused_port_are_told_apart() -> None:
    """Each address has its own reason."""
    port = free_port()
    told = _told(f"kafka.invalid:9092,127.0.0.1:{port}")
    assert "kafka.invalid:9092: its host name cannot be resolved" in told
    assert f"127.0.0.1:{port}: connection refused" in told


def test_listener_without_kafka_is_told_with_the_protocol_that_was_tried(mute: int) -> None:
    """The address is right as far as TCP can tell."""
    found = reach.findings(Kafka(bootstrap_servers=f"PLAINTEXT://localhost:{mute}"))
    assert "accepts a connection, but answers no request with security.protocol PLAINTEXT" in str(found[0])
    assert "security.protocol" in reach.advice(found)


def test_address_that_never_answers_is_told_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall that drops packets, and a resolver that blocks, look like this."""
    never = threading.Event()

    def blocked(*_: object, **__: object) -> None:
        never.wait(20)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", blocked)
    found = reach.findings(Kafka(bootstrap_servers="127.0.0.1:9092"), limit=0.2)
    assert "no connection within" in str(found[0])
    monkeypatch.setattr(socket, "getaddrinfo", blocked)
    found = reach.findings(Kafka(bootstrap_servers="127.0.0.1:9092"), limit=0.2)
    assert "not resolved within" in str(found[0])
    assert "kafka.bootstrap.servers" in reach.advice(found)
    never.set()


def test_listener_that_expects_tls_is_told(tmp_path: Path) -> None:
    """librdkafka reports nothing about it."""
    issued = issue(authority("clients-ca"), "localhost", 1)
    (tmp_path / "key").write_bytes(issued.key)
    (tmp_path / "certificate").write_bytes(issued.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as accepted, context.wrap_socket(accepted, True) as tls:
            tls.recv(1)

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        assert "expects TLS, and security.protocol is PLAINTEXT" in _told(f"127.0.0.1:{listener.getsockname()[1]}")


def test_error_of_an_unreachable_broker_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has more than librdkafka's "Broker transport failure"."""
    monkeypatch.setattr(kafka_cluster, "ANSWER_LIMIT", 0.3)
    with pytest.raises(errors.BrokerUnreachable, match="cannot be resolved") as raised:
        Cluster(Kafka(bootstrap_servers="kafka.invalid:9092")).topics()
    assert "check kafka.bootstrap.servers" in raised.value.then


def test_error_that_ends_a_run_gets_the_reason_for_each_address_once() -> None:
    """A request in the middle of a run reports only that nothing answered; the first request of a run asks itself."""
    kafka = Kafka(bootstrap_servers=f"127.0.0.1:{free_port()}")
    found = reach.explained(errors.BrokerUnreachable("fetching: _TIMED_OUT", kept="all of it"), kafka)
    why = f"{kafka.bootstrap_servers}: connection refused: nothing listens on this port"
    assert found.what == f"fetching: _TIMED_OUT ({why})"
    assert found.kept == "all of it"
    assert "kafka.bootstrap.servers" in found.then
    assert reach.explained(found, kafka) is found
    other = errors.DriverFenced("a newer driver")
    assert reach.explained(other, kafka) is other


def test_address_that_accepts_connections_again_explains_nothing(mute: int) -> None:
    """The brokers came back between the error and its report."""
    error = errors.BrokerUnreachable("fetching: _TIMED_OUT")
    assert reach.explained(error, Kafka(bootstrap_servers=f"127.0.0.1:{mute}")) is error


def test_refusal_before_an_answer_is_not_given_as_the_reason_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that refused the client and then let it in are unreachable later for another reason."""
    made = Cluster(Kafka(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    refused = KafkaError(KafkaError._AUTHENTICATION, "wrong password")
    answers: list[Callable[[], object]] = [lambda: SimpleNamespace(topics={}), lambda: _raised(KafkaError._TRANSPORT)]
    waiting = [refused]

    def poll(_: float) -> None:
        made._refusals.extend(waiting)
        waiting.clear()

    admin = SimpleNamespace(list_topics=lambda timeout: answers.pop(0)(), poll=poll)
    monkeypatch.setattr(made, "_admin", admin)
    assert made.topics() == {}
    with pytest.raises(errors.BrokerUnreachable, match="connection refused"):
        made.topics()


def _raised(code: int) -> None:
    raise KafkaException(KafkaError(code))
