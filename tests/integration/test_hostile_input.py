"""Records that are made to do harm are delivered or rejected once, in bounded memory, and so are their neighbours."""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from support.threads import Line
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_REASON, HEADER_TIMESTAMP
from tailrace.startup import run
from tailrace.testing import Record, Topics, consume, produce
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MEGABYTE = 1_000_000
LARGEST = 12 * MEGABYTE
BOUND = 400 * MEGABYTE  # what a batch of 40 MB may add
NEIGHBOURS = 5  # before and after each hostile record
SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "numbers", "type": {"type": "array", "items": "long"}},
        {"name": "texts", "type": {"type": "array", "items": "string"}},
        {"name": "named", "type": {"type": "map", "values": "long"}},
    ],
}


def long(number: int) -> bytes:
    """Encode a number as Avro does."""
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


EMPTY = long(0)
JSON: Mapping[str, bytes] = {
    "arrays 200,000 deep": b'{"id":1,"text":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "objects 200,000 deep": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "a text of arrays 600 deep": b'{"id":1,"text":' + b"[" * 600 + b"]" * 600 + b"}",
    "a number of objects 900 deep": b'{"id":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    "5 MB of opening brackets": b"[" * 5 * MEGABYTE,
    "a huge exponent": b'{"id":1e999999999}',
    "a number of 5 MB": b'{"id":' + b"9" * 5 * MEGABYTE + b"}",
    "500,000 columns": b'{"id":1,' + b",".join(b'"k%d":1' % number for number in range(500_000)) + b"}",
    "a column 500,000 times": b"{" + b",".join(b'"id":%d' % number for number in range(500_000)) + b"}",
    "9 MB of text": b'{"id":1,"text":"' + b"x" * 9 * MEGABYTE + b'"}',
    "a million escapes": b'{"id":1,"text":"' + b"\\u0041" * MEGABYTE + b'"}',
    "half a character": b'{"id":1,"text":"\\ud800"}',
    "no number": b'{"id":NaN}',
}
AVRO: Mapping[str, bytes] = {
    "2^40 numbers, none there": long(1) + long(1 << 40) + EMPTY * 3,
    "-2^40 numbers": long(1) + long(-(1 << 40)) + long(4) + EMPTY * 3,
    "-2^63 numbers": long(1) + long(-(1 << 63)),
    "2^50 texts": long(1) + EMPTY + long(1 << 50) + b"a",
    "a text of 2^60 bytes": long(1) + EMPTY + long(1) + long(1 << 60) + b"a",
    "a text of -5 bytes": long(1) + EMPTY + long(1) + long(-5) + b"a",
    "2^55 names": long(1) + EMPTY * 2 + long(1 << 55) + long(1) + b"a",
    "a number without end": b"\x80" * 100,
}
HUGE = ("1e-99999999", "0e-999999999", "-1e-000000057", "350000000000000000000", "1e400", "1e9999999", "-1e9999999")
NUMBERS: Mapping[str, bytes] = {
    f"{number} in {field}": b'{"id":1,%b}' % (field % number).encode()
    for number in HUGE
    for field in (
        '"price":%s',
        '"price":"%s"',
        '"exact":%s',
        '"exact":"%s"',
        '"prices":[{"price":"%s"}]',
        '"single":%s',
        '"double":%s',
        '"id":%s',
    )
}
MODEL = """
from decimal import Decimal
from pydantic import BaseModel

class Price(BaseModel):
    price: Decimal

class Order(BaseModel):
    id: int
    price: Decimal | None = None
    exact: Decimal | None = None
    prices: list[Price] | None = None
    double: float | None = None
"""
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "json": {"source": {"format": "json", "schema": "id long not null, text string"}, "sink": {"format": "json"}},
    "avro": {"source": {"format": "avro", "schema": "r.avsc"}, "sink": {"format": "json"}},
    "numbers": {
        "source": {
            "format": "json",
            "schema": "id long not null, price decimal(10,2), exact decimal(38,18), "
            "prices array<struct<price:decimal(10,2)>>, single float, double double",
        },
        "sink": {"format": "json"},
    },
    "model": {"source": {"format": "json", "schema": "order.py:Order"}, "sink": {"format": "json"}},
}
HOSTILE = {"json": JSON, "avro": AVRO, "numbers": NUMBERS, "model": NUMBERS}


def line(kafka: EmbeddedKafka, folder: Path) -> Line:
    """Return a pipeline whose topics take large records."""
    (folder / "r.avsc").write_text(json.dumps(SCHEMA))
    (folder / "order.py").write_text(MODEL)
    topics = Topics(kafka.bootstrap_servers)
    name = f"hostile-{uuid.uuid4().hex[:8]}"
    source, sink = (topics(each, 1, max_message_bytes=LARGEST) for each in ("in", "out"))
    return Line(topics, folder, name, source, sink, 1)


def settings(one: Line, form: str) -> dict[str, Any]:
    """Return the sections for a format."""
    found = {name: dict(value) for name, value in SECTIONS[form].items()}
    found["sink"]["options"] = {"message.max.bytes": str(LARGEST)}
    rejected = one.topics("rejected", 1, max_message_bytes=LARGEST)
    return {**found, "rejected": rejected}


def usual(form: str, number: int) -> bytes:
    """Return a record that nothing is wrong with."""
    return long(number) + EMPTY * 3 if form == "avro" else b'{"id":%d}' % number


def send(one: Line, form: str, *hostile: bytes) -> list[int]:
    """Write each hostile record among others; return the numbers of the others."""
    numbers = itertools.count(100)
    sent: list[int] = []
    producer = Producer({"bootstrap.servers": one.kafka, "message.max.bytes": LARGEST})

    def write(value: bytes) -> None:
        producer.produce(one.source, value)
        producer.poll(0)

    for value in (*hostile, None):
        for number in itertools.islice(numbers, NEIGHBOURS):
            write(usual(form, number))
            sent.append(number)
        if value is not None:
            write(value)
    assert producer.flush(60) == 0
    return sent


def delivered(one: Line, sent: list[int], rejected: str) -> None:
    """Check that the usual records came out once, in order, and that each of the others came out or was rejected."""
    out = [json.loads(each.value or b"")["id"] for each in consume(one.kafka, one.sink)]
    assert [number for number in out if number in sent] == sent
    refused = consume(one.kafka, rejected)
    hostile = (len(sent) // NEIGHBOURS) - 1
    assert len(out) - len(sent) + len(refused) == hostile


@contextmanager
def bounded(limit: int) -> Iterator[None]:
    """Fail if this process grows by more than the limit at any moment."""
    own = psutil.Process()
    before, peak, over = own.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.01):
            peak = max(peak, own.memory_info().rss)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(10)
    assert peak - before < limit, f"{(peak - before) / MEGABYTE:.0f} MB more"


@pytest.mark.parametrize("form", HOSTILE)
def test_hostile_records_harm_neither_memory_nor_their_neighbours(
    tailrace_kafka: EmbeddedKafka, tmp_path: Path, form: str
) -> None:
    """Without Spark: all of a format in one batch, among usual records."""
    one = line(tailrace_kafka, tmp_path)
    sections = settings(one, form)
    sent = send(one, form, *HOSTILE[form].values())
    with bounded(BOUND):
        one.run(**sections)
    delivered(one, sent, sections["rejected"])


@pytest.mark.parametrize("form", HOSTILE)
def test_hostile_records_harm_nothing_in_spark(
    tailrace_kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """The same through Spark's own decoding."""
    one = line(tailrace_kafka, tmp_path)
    (tmp_path / "hostile_rows.py").write_text("def same(frame):\n    return frame.select('id')\n")
    sections = {**settings(one, form), "process": {"function": "hostile_rows.py:same"}}
    sent = send(one, form, *HOSTILE[form].values())
    run.run(one.pipeline(**sections), tmp_path, batch=True, spark=spark)
    delivered(one, sent, sections["rejected"])


def test_flood_of_headers_and_a_forged_reason_stay_on_their_record(
    tailrace_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """A rejected record keeps what it came with; the reason that a reader sees is Tailrace's."""
    one = line(tailrace_kafka, tmp_path)
    sections = settings(one, "json")
    flood = [(f"../../etc/{number}", b"x" * 50) for number in range(20_000)]
    forged = [(HEADER_REASON, b"nothing is wrong"), (HEADER_OFFSET, b"7")]
    producer = Producer({"bootstrap.servers": one.kafka, "message.max.bytes": LARGEST})
    producer.produce(one.source, b"not json", headers=[*forged, *flood])
    producer.produce(one.source, b'{"id":1}', headers=[*flood, ("", b"")])
    assert producer.flush(60) == 0
    with bounded(BOUND):
        one.run(**sections)
    (refused,) = consume(one.kafka, sections["rejected"])
    headers = list(refused.headers)
    assert dict(headers)[HEADER_OFFSET] == b"0"
    assert dict(headers)[HEADER_REASON] != b"nothing is wrong"
    assert len(consume(one.kafka, one.sink)) == 1


FUTURE = {"message_timestamp_after_max_ms": 2**63 - 1}
MICROSECONDS = 1_700_000_000_000_000  # where milliseconds belong: the year 55840
TIMES = {
    b'{"id":1,"text":"micro"}': MICROSECONDS,
    b'{"id":2,"text":"nano"}': MICROSECONDS * 1000,
    b'{"id":3,"text":"none"}': -1,
    b'{"id":4,"text":"usual"}': 1_700_000_000_123,
}


@pytest.mark.parametrize("form", ["json", "raw"])
@pytest.mark.parametrize("engine", ["threads", "spark"])
def test_odd_timestamps_neither_stop_a_pipeline_nor_reject_a_record(
    tailrace_kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest, engine: str, form: str
) -> None:
    """Microseconds are kept as they are; nanoseconds, which do not fit, and no time become the time of writing."""
    topics = Topics(tailrace_kafka.bootstrap_servers)
    source, sink = topics("in", 1, **FUTURE), topics("out", 1, **FUTURE)
    one = Line(topics, tmp_path, f"hostile-{uuid.uuid4().hex[:8]}", source, sink, 1)
    records = [Record(value, timestamp=at) for value, at in TIMES.items()]
    produce(one.kafka, source, [*records, *(Record(b"not json", timestamp=at) for at in TIMES.values())])
    sections = {**SECTIONS["json"]} if form == "json" else {}
    started = int(time.time() * 1000)
    if engine == "threads":
        one.run(**sections)
    else:
        frames = {**sections, "process": {"partitions": 1}}  # a shuffle, for which Spark's own functions are needed
        run.run(one.pipeline(**frames), tmp_path, batch=True, spark=request.getfixturevalue("spark"))
    now = range(started, int(time.time() * 1000) + 1)
    found = consume(one.kafka, sink)
    out = {each.value or b"": each.timestamp for each in found if each.value != b"not json"}
    assert {value: "now" if at in now else at for value, at in out.items()} == {
        value: at if 0 < at <= MICROSECONDS else "now" for value, at in TIMES.items()
    }
    refused = consume(one.kafka, f"{one.name}.rejected")
    assert len(found) + len(refused) == 2 * len(TIMES)
    times = [dict(each.headers).get(HEADER_TIMESTAMP) for each in refused]
    assert times == ([b"%d" % MICROSECONDS, None, None, b"1700000000123"] if form == "json" else [])


EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}
EVENTS = [
    b'{"id":1,"at":"2026-01-01T00:00:00Z"}',
    b'{"id":2,"at":"9999-12-31T23:59:59-05:00"}',
    b'{"id":3,"at":"2026-01-01T00:00:00Z"}',
]


@pytest.mark.parametrize("engine", ["threads", "spark"])
def test_year_that_python_does_not_have_rejects_its_record(
    tailrace_kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest, engine: str
) -> None:
    """It is 10000 in UTC, which Arrow and Spark have; the format of the sink is written in Python."""
    one = line(tailrace_kafka, tmp_path)
    (tmp_path / "event.avsc").write_text(json.dumps(EVENT))
    (tmp_path / "event.py").write_text(
        "from datetime import datetime\nfrom pydantic import BaseModel\n\n"
        "class Event(BaseModel):\n    id: int\n    at: datetime\n"
    )
    (tmp_path / "far_years.py").write_text("def same(frame):\n    return frame.drop('kafka')\n")
    produce(one.kafka, one.source, [Record(value) for value in EVENTS])
    avro: dict[str, Any] = {"sink": {"format": "avro", "schema": "event.avsc"}}
    if engine == "threads":
        one.run(source={"format": "json", "schema": "event.py:Event"}, **avro)
    else:
        sections = {"source": {"format": "json", "schema": "id long, at timestamp"}, **avro}
        found = one.pipeline(**sections, process={"function": "far_years.py:same"})
        run.run(found, tmp_path, batch=True, spark=request.getfixturevalue("spark"))
    assert len(consume(one.kafka, one.sink)) == 2
    [refused] = consume(one.kafka, f"{one.name}.rejected")
    assert json.loads(refused.value or b"") == {"id": 2, "at": 253_402_318_799_000_000}
    assert dict(refused.headers)[HEADER_REASON] == b"time out of range"
