"""Whatever a record contains, it comes out once or is rejected once, with exactly the bytes that went in.

Hypothesis generates the records. They pass through a complete pipeline in a few large batches, because a Spark job for
each would take minutes and show no more.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.pipelines import Bench
from tailrace.testing import Consumed, Record, consume, produce

pytestmark = [pytest.mark.integration, pytest.mark.takes(23)]

MakeBench = Callable[..., Bench]

MEGABYTE = 1_000_000
OURS = {
    "type": "record",
    "name": "Ours",
    "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "price", "type": "double"}]}


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    """Encode a single value as plain Avro."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


longs = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
values = st.one_of(
    st.none(),  # a tombstone
    st.just(b""),
    st.binary(max_size=64),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.builds(lambda number, text: json.dumps({"id": number, "text": text}).encode(), longs, st.text(max_size=20)),
    st.builds(lambda number, text: avro(OURS, {"id": number, "text": text}), longs, st.text(max_size=20)),
    st.floats().map(lambda price: avro(OTHER, {"price": price})),
    st.sampled_from([b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\x00" * 9, b'{"id":1}{"id":2}', b"\xef\xbb\xbf{}"]),
    st.integers(0, 300).map(lambda length: b"\x80" * length),  # every length of what Avro reads as a number
)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=16)), max_size=3).map(tuple)
keys = st.none() | st.just(b"") | st.binary(max_size=12)
records = st.builds(Record, value=values, key=keys, headers=headers, partition=st.integers(0, 1))


def generated(count: int) -> list[Record]:
    """Return `count` records, the same in each run, and others of a megabyte and of each length up to 256."""
    found: list[Record] = []

    @settings(
        max_examples=count // 20,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(records, min_size=20, max_size=20))
    def collect(some: list[Record]) -> None:
        found.extend(some)

    collect()
    large = [bytes([number]) * (MEGABYTE - number) for number in range(2)]
    found += [Record(value, key=b"large", partition=number) for number, value in enumerate(large)]
    return found + [Record(bytes(range(length)), partition=length % 2) for length in range(257)]


@pytest.fixture(scope="module")
def given_records() -> list[Record]:
    """Generate the records once for all tests."""
    return generated(1500)


Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def content(record: Record | Consumed) -> Content:
    """Return the parts of a record that must not change."""
    return record.key, record.value, tuple(each for each in record.headers if not each[0].startswith("tailrace."))


def made(bench: MakeBench, given: list[Record]) -> Bench:
    """Return a bench with these records in its source topic, which accepts large ones."""
    one = bench(partitions=2, out=2)
    one.source = one.topics("in", 2, max_message_bytes=4 * MEGABYTE)
    one.sink = one.topics("out", 2, max_message_bytes=4 * MEGABYTE)
    produce(one.kafka, one.source, given)
    return one


def rejected(one: Bench) -> list[Consumed]:
    """Return the rejected records."""
    return consume(one.kafka, f"{one.name}.rejected")


LARGE = {"options": {"message.max.bytes": 4 * MEGABYTE}}


def test_raw_records_come_out_as_they_went_in(bench: MakeBench, given_records: list[Record]) -> None:
    """Key, value and headers are equal byte by byte, null differs from empty, and none is rejected."""
    one = made(bench, given_records)
    one.run(sink={"format": "raw", **LARGE}, batch={"max_records": 700})
    went_in, came_out = (Counter(map(content, consume(one.kafka, topic))) for topic in (one.source, one.sink))
    assert went_in.total() == len(given_records)
    assert not went_in - came_out  # lost or changed records
    assert not came_out - went_in
    assert rejected(one) == []


@pytest.mark.parametrize(
    ("form", "schema"), [("json", "id long, text string"), ("avro", "ours.avsc")], ids=["json", "avro"]
)
def test_each_record_is_delivered_or_rejected(
    bench: MakeBench, given_records: list[Record], form: str, schema: str
) -> None:
    """Each offset appears once, in one of the two topics; rejected records have their own bytes, key and headers."""
    one = made(bench, given_records)
    one.write("ours.avsc", json.dumps(OURS))
    one.write(
        "placed.py",
        """
        from pyspark.sql import functions as F

        def placed(frame):
            where = F.concat_ws(":", F.col("kafka.partition"), F.col("kafka.offset"))
            return frame.select(where.cast("binary").alias("value"), F.col("kafka.headers").alias("headers"))
        """,
    )
    one.run(
        source={"format": form, "schema": schema},
        process={"function": "placed.py:placed"},
        sink={"format": "raw", **LARGE},
        batch={"max_records": 700},
    )
    went_in = {b"%d:%d" % (each.partition, each.offset): content(each) for each in consume(one.kafka, one.source)}
    assert len(went_in) == len(given_records)
    came_out = [each.value or b"" for each in consume(one.kafka, one.sink)]
    aside = {place(each): content(each) for each in rejected(one)}
    assert len(aside) == len(rejected(one))
    assert sorted([*came_out, *aside]) == sorted(went_in)
    assert {where: went_in[where] for where in aside} == aside
    assert len(came_out) > 50  # both outcomes occur
    assert len(aside) > 500


def place(record: Consumed) -> bytes:
    """Return where a rejected record came from."""
    found = dict(record.headers)
    return b"%s:%s" % (found["tailrace.source.partition"], found["tailrace.source.offset"])


def test_row_with_any_topic_name_is_delivered_or_rejected(bench: MakeBench) -> None:
    """Rows with null, empty, too long or invalid names are rejected with the reason; others go to their topics."""
    one = bench(out=1)
    odd = ["GOOD", None, "", ".", "..", "a b", "ä", "x" * 250, "a/b", "\x00", "tab\t"] * 20
    given = [Record(json.dumps({"id": number, "to": name}).encode()) for number, name in enumerate(odd)]
    produce(one.kafka, one.source, given)
    one.write(
        "routed.py",
        f"""
        from pyspark.sql import functions as F

        def routed(frame):
            to = F.when(F.col("to") == "GOOD", F.lit({one.sink!r})).otherwise(F.col("to"))
            return frame.select(F.col("id").cast("string").cast("binary").alias("value"), to.alias("topic"))
        """,
    )
    one.run(
        source={"format": "json", "schema": "id long, to string"},
        process={"function": "routed.py:routed"},
        sink={"topic": None, "format": "raw"},
    )
    good = sorted(b"%d" % number for number, name in enumerate(odd) if name == "GOOD")
    assert sorted(filter(None, one.values())) == good
    wrong = Counter(dict(each.headers)["tailrace.reason"] for each in rejected(one))
    assert wrong == {b"no topic": 20, b"not a topic's name": 180}
    numbers = sorted(int(each.value or b"-1") for each in rejected(one))
    assert numbers == [number for number, name in enumerate(odd) if name != "GOOD"]
