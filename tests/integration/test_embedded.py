"""The embedded Kafka: it serves, keeps what it should keep, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.kafkaproxy import ProxiedKafka
from tailrace.errors import BrokerDidNotStart, ConfigInvalid, KafkaFailed, TopicUnknown
from tailrace.testing import Record, Topics, consume, embedded, produce, wait_until
from tailrace.testing.broker import HOST, random_id, wait_for
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.takes(102),
]

PARENT = """
import sys, time
from tailrace.testing.embedded import EmbeddedKafka
kafka = EmbeddedKafka().start()
sys.stdout.write(f"{kafka.brokers[0].pid} {kafka.folder}\\n")
sys.stdout.flush()
time.sleep(300)
"""


def values(kafka: EmbeddedKafka, topic: str) -> list[bytes | None]:
    """Return the values in the topic, in order."""
    return sorted((record.value for record in consume(kafka.bootstrap_servers, topic, limit=60)), key=str)


def numbered(first: int, last: int) -> list[Record]:
    """Return records whose values are three-digit numbers."""
    return [Record(b"%03d" % number) for number in range(first, last)]


def gone(pid: int) -> bool:
    """Return whether the process has ended; a zombie counts as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedKafka]:
    """Start three brokers, for tests that stop one; each test restarts it. They often look for expired records."""
    soon = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}
    with EmbeddedKafka(EmbeddedOptions(brokers=3, settings=soon)) as kafka:
        yield kafka


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """Open so many files that the next one has a number above 1,023."""
    with ExitStack() as files:
        while files.enter_context(Path(os.devnull).open("rb")).fileno() < 1_023:
            pass
        yield


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """Start a process that starts a broker and waits."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def started(parent: subprocess.Popen[str]) -> tuple[int, Path]:
    """Return the broker that the parent started, and its folder."""
    assert parent.stdout is not None
    pid, _, folder = parent.stdout.readline().strip().partition(" ")
    assert Path(folder).is_dir()
    assert not gone(int(pid))
    return int(pid), Path(folder)


@pytest.mark.usefixtures("many_open_files")
def test_broker_starts_in_a_process_that_has_many_files_open() -> None:
    """`select.select` takes no file whose number is above 1,023."""
    with EmbeddedKafka() as kafka:
        assert kafka.brokers[0].alive


def test_records_come_back_as_they_were_written(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> None:
    """Value, key, headers, partition and timestamp stay the same, including nulls."""
    topic = tailrace_topics("in", partitions=2)
    written = [
        Record(b"value", key=b"key", headers=(("a", b"1"), ("a", None)), partition=0, timestamp=1_700_000_000_000),
        Record(None, partition=1, timestamp=5),
    ]
    produce(tailrace_kafka.bootstrap_servers, topic, written)
    read = consume(tailrace_kafka.bootstrap_servers, topic)
    assert [Record(each.value, each.key, each.headers, each.partition, each.timestamp) for each in read] == written


def test_topic_has_the_requested_settings(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> None:
    """A topic takes its partitions and settings from the call, and two topics of one name differ."""
    small, large = tailrace_topics(max_message_bytes=1000), tailrace_topics(max_message_bytes=6_000_000)
    assert small != large
    record = Record(b"x" * 5_000_000)
    produce(tailrace_kafka.bootstrap_servers, large, [record])
    assert [each.value for each in consume(tailrace_kafka.bootstrap_servers, large)] == [record.value]
    with pytest.raises(KafkaFailed, match="too large"):
        produce(tailrace_kafka.bootstrap_servers, small, [record])


def test_missing_topic_is_not_created(tailrace_kafka: EmbeddedKafka) -> None:
    """Neither reading nor writing creates a topic as a side effect."""
    with pytest.raises(KafkaFailed, match="UNKNOWN_TOPIC"):
        produce(tailrace_kafka.bootstrap_servers, "never-created", [Record(b"x")])
    with pytest.raises(TopicUnknown, match="never-created"):
        consume(tailrace_kafka.bootstrap_servers, "never-created")


def test_only_committed_records_are_consumed(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics) -> None:
    """Reading skips aborted and open records, and ends although the last offset is a control record."""
    from confluent_kafka import Producer

    topic, servers = tailrace_topics("out"), tailrace_kafka.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for value, ending in ((b"committed", "commit"), (b"aborted", "abort"), (b"open", "leave")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        if ending == "commit":
            producer.commit_transaction(30)
        elif ending == "abort":
            producer.abort_transaction(30)
    assert values(tailrace_kafka, topic) == [b"committed"]
    dirty = consume(servers, topic, isolation="read_uncommitted")
    assert [each.value for each in dirty] == [b"committed", b"aborted", b"open"]
    producer.abort_transaction(30)


def test_stopping_leaves_no_process_and_no_folder() -> None:
    """After stop, the broker, its watcher and the temporary folder are gone."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with EmbeddedKafka() as kafka:
        pid, folder = kafka.brokers[0].pid, kafka.folder
        ours = {child.pid for child in psutil.Process().children(recursive=True)} - before
        assert pid in ours
    assert all(gone(each) for each in ours)
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_broker_ends_with_its_parent(parent: subprocess.Popen[str], number: signal.Signals) -> None:
    """When the parent is killed, even with -9, the broker ends and the temporary folder is removed."""
    pid, folder = started(parent)
    parent.send_signal(number)
    wait_until(lambda: gone(pid), f"the end of broker {pid} after its parent's", limit=30)
    wait_until(lambda: not folder.exists(), f"the removal of {folder}", limit=30)


def test_broker_ends_with_its_watcher(parent: subprocess.Popen[str]) -> None:
    """Killing the watcher does not leave an orphaned broker."""
    if sys.platform != "linux":
        pytest.skip("only Linux can tell a process that its parent has ended")
    pid, folder = started(parent)
    watcher = psutil.Process(pid).ppid()
    assert watcher not in {parent.pid, os.getpid()}
    os.kill(watcher, signal.SIGKILL)
    wait_until(lambda: gone(pid), f"the end of broker {pid} after its watcher's", limit=30)
    shutil.rmtree(folder)  # the watcher would have removed it if the parent had been killed too


def test_interrupt_from_the_terminal_does_not_reach_the_broker(tailrace_kafka: EmbeddedKafka) -> None:
    """The broker has its own session, so Ctrl-C in the parent's terminal reaches only the parent."""
    pid = tailrace_kafka.brokers[0].pid
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)


def test_folder_keeps_data_and_ports(tmp_path: Path) -> None:
    """A stopped or killed broker comes back with its records, and so does another Kafka on the same folder."""
    options = EmbeddedOptions(folder=tmp_path / "kafka")
    with EmbeddedKafka(options) as kafka:
        servers, topic = kafka.bootstrap_servers, Topics(kafka.bootstrap_servers)("in")
        produce(servers, topic, numbered(0, 10))
        broker = kafka.brokers[0]
        broker.stop()
        assert not broker.alive
        broker.start()
        assert values(kafka, topic) == [record.value for record in numbered(0, 10)]
        broker.kill()
        assert not broker.alive
        broker.start()
        produce(servers, topic, numbered(10, 20))
    with EmbeddedKafka(options) as kafka:
        assert kafka.bootstrap_servers == servers
        assert values(kafka, topic) == [record.value for record in numbered(0, 20)]
    assert (tmp_path / "kafka").is_dir()


def test_folder_with_another_number_of_brokers_is_refused(tmp_path: Path) -> None:
    """A folder that holds three brokers is not started as one."""
    embedded._cluster(tmp_path / embedded.CLUSTER_FILE, 3)
    with pytest.raises(ConfigInvalid, match="3 brokers, but 1"):
        EmbeddedKafka(EmbeddedOptions(folder=tmp_path)).start()


def test_broker_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    """The error has the log's path and its last lines, and no process is left."""
    kafka = EmbeddedKafka(EmbeddedOptions(folder=tmp_path, settings={"num.io.threads": "none"}))
    with pytest.raises(BrokerDidNotStart, match=r"(?s)broker-1/kafka.log.*num\.io\.threads"):
        kafka.start()
    assert kafka.brokers == []


def test_taken_port_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a port is taken between the choice and the start, a new Kafka uses other ports."""
    choose = embedded._free_ports
    with socket.create_server((HOST, 0)) as taken:
        answers = iter([[taken.getsockname()[1], choose(1, ())[0]], choose(2, ())])
        monkeypatch.setattr(embedded, "_free_ports", lambda count, avoid: next(answers))
        with EmbeddedKafka() as kafka:
            assert kafka.brokers[0].port != taken.getsockname()[1]
            assert consume(kafka.bootstrap_servers, Topics(kafka.bootstrap_servers)("in")) == []


def test_chosen_port_is_used_and_can_be_changed(tmp_path: Path) -> None:
    """Brokers listen on the chosen ports, and a folder can move to another port."""
    folder, ports = tmp_path / "kafka", embedded._free_ports(2, ())
    for count, port in enumerate(ports):
        with EmbeddedKafka(EmbeddedOptions(folder=folder, port=port)) as kafka:
            assert kafka.bootstrap_servers == f"{HOST}:{port}"
            if not count:
                topic = Topics(kafka.bootstrap_servers)("in")
            produce(kafka.bootstrap_servers, topic, numbered(count, count + 1))
            assert values(kafka, topic) == [record.value for record in numbered(0, count + 1)]


def test_taken_chosen_port_is_named(tmp_path: Path) -> None:
    """Nothing is started or written, and the error names the port."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerDidNotStart, match=f"port {port} of {HOST}"):
            EmbeddedKafka(EmbeddedOptions(folder=tmp_path / "kafka", port=port)).start()
    assert not (tmp_path / "kafka").exists()


@pytest.mark.parametrize(("port", "brokers"), [(0, 1), (65_534, 3), (65_536, 1)])
def test_invalid_port_is_refused(port: int, brokers: int) -> None:
    """Each broker needs a port between 1 and 65535."""
    with pytest.raises(ConfigInvalid, match="1 to 65535"):
        EmbeddedOptions(port=port, brokers=brokers)


def test_controllers_port_is_not_given_to_a_broker(tmp_path: Path) -> None:
    """Controllers of a kept folder keep their ports, so these are refused for brokers."""
    file = tmp_path / embedded.CLUSTER_FILE
    controller = embedded._cluster(file, 1).nodes[0].controller_port
    before = file.read_text()
    with pytest.raises(ConfigInvalid, match=str(controller)):
        embedded._cluster(file, 1, [controller])
    assert file.read_text() == before


def test_kafka_behind_a_proxy_starts_although_another_process_took_a_port() -> None:
    """The second try has other ports, and the proxy leads there."""

    class Robbed(ProxiedKafka):
        def _start_brokers(self) -> None:
            with ExitStack() as taken:
                if not self.tries:
                    taken.enter_context(socket.create_server((HOST, self._doors[0].behind)))
                self.tries += 1
                super()._start_brokers()

        tries = 0

    with Robbed() as kafka:
        topic = Topics(kafka.proxied_servers)("in")
        produce(kafka.proxied_servers, topic, numbered(0, 1))
        assert values(kafka, topic) == [record.value for record in numbered(0, 1)]
    assert kafka.tries == 2


def test_records_survive_a_killed_broker(three: EmbeddedKafka) -> None:
    """With one of three brokers killed, acks=all still succeeds, and nothing is lost or duplicated."""
    topic = Topics(three.bootstrap_servers)("in", partitions=3)
    produce(three.bootstrap_servers, topic, numbered(0, 100))
    three.brokers[1].kill()
    produce(three.bootstrap_servers, topic, numbered(100, 200))
    assert values(three, topic) == [record.value for record in numbered(0, 200)]
    three.brokers[1].start()
    assert [broker.alive for broker in three.brokers] == [True, True, True]
    assert values(three, topic) == [record.value for record in numbered(0, 200)]


def test_records_of_any_age_stay_unless_their_topic_lets_them_expire(three: EmbeddedKafka) -> None:
    """A test that writes records with old times must not lose them to a check that comes every five minutes."""
    topics, old = Topics(three.bootstrap_servers), Record(b"old", timestamp=1_700_000_000_000)
    kept, expiring = topics("kept"), topics("expiring", retention_ms=1000)
    produce(three.bootstrap_servers, kept, [old])

    def expired() -> bool:
        with suppress(KafkaFailed):  # it expired between the look at the topic's offsets and the read
            return values(three, expiring) == []
        return False

    for _ in range(2):  # the second time, a check has passed over every topic
        produce(three.bootstrap_servers, expiring, [old])
        wait_until(expired, "the expiry of a record", 60)
    assert values(three, kept) == [b"old"]


def test_topics_of_three_brokers_need_two_replicas_in_sync(three: EmbeddedKafka) -> None:
    """Such a topic has three replicas, and accepts a record with two in sync."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

    topic = Topics(three.bootstrap_servers)("in")
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers, "log_level": 0})
    # A broker learns of a new topic a moment after the one that created it, and any broker may be asked.
    found = wait_until(lambda: admin.list_topics(topic, timeout=30).topics[topic].partitions, f"{topic} to be known")
    assert len(found[0].replicas) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def settings() -> Any:
        with suppress(KafkaException):
            return admin.describe_configs([resource])[resource].result(timeout=30)
        return None

    assert wait_until(settings, f"the settings of {topic} to be known")["min.insync.replicas"].value == "2"


def test_paused_broker_is_replaced_and_can_resume(three: EmbeddedKafka) -> None:
    """It is alive but silent; the others take its place, and it serves again when resumed."""
    topic = Topics(three.bootstrap_servers)("in", partitions=3)
    broker = three.brokers[0]
    produce(three.bootstrap_servers, topic, numbered(0, 100))
    broker.pause()
    try:
        assert broker.alive
        process = psutil.Process(broker.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the broker to halt", limit=10)
        produce(three.bootstrap_servers, topic, numbered(100, 200))
    finally:
        broker.resume()
    wait_for([broker], {1, 2, 3})
    # Until it has heard that others lead them now, it answers for its partitions, as they were when it was paused.
    expected = [record.value for record in numbered(0, 200)]
    wait_until(lambda: len(values(three, topic)) >= len(expected), "the broker to learn of the new leaders", limit=60)
    assert values(three, topic) == expected


def test_paused_broker_can_be_stopped_and_started(three: EmbeddedKafka) -> None:
    """Stopping a paused broker ends it, and it can start again."""
    broker = three.brokers[2]
    broker.pause()
    broker.stop()
    assert not broker.alive
    broker.start()
    wait_for(three.brokers, {1, 2, 3})
    assert broker.alive


def test_brokers_have_ids_of_their_own(three: EmbeddedKafka) -> None:
    """Only the first broker's folder is formatted by Kafka's tool; the others share its cluster and its features."""
    lines = [(broker.folder / "data" / "meta.properties").read_text(encoding="utf-8") for broker in three.brokers]
    found = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in lines]
    assert [each["node.id"] for each in found] == ["1", "2", "3"]
    assert len({each["directory.id"] for each in found}) == 3
    assert len({each["cluster.id"] for each in found}) == 1


def test_no_cluster_id_begins_with_a_dash() -> None:
    """Kafka's storage tool would take it for an option, in one of sixty-four starts."""
    ids = [random_id() for _ in range(500)]
    assert not [each for each in ids if each.startswith("-")]
    assert {len(each) for each in ids} == {22}
    assert len(set(ids)) == 500
