"""The verifier's arithmetic: a proof that overlooks a planted fault proves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.admin import verify as proof
from tailrace.admin.verify import Comparison, Examples, Identity, Message, compare, verify
from tailrace.config import Kafka
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_STAGE, HEADER_TOPIC

TINY = 1  # a memory limit at which every bucket is spilled at once and split again
ids = st.lists(st.one_of(st.none(), st.integers(0, 60).map(lambda number: b"%d" % number)), max_size=120)


def numbers(first: int, end: int) -> Iterator[bytes]:
    """Yield the ids of a range."""
    return (b"id-%d" % number for number in range(first, end))


def message(**fields: object) -> Message:
    """Return a record of which only the given fields matter."""
    return Message(**{"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "key": None, "value": None} | fields)  # type: ignore[arg-type]


def proved(monkeypatch: pytest.MonkeyPatch, **topics: list[Message]) -> Comparison:
    """Compare the records of these topics: `into`, `out` and `bad`; the rules differ."""
    monkeypatch.setattr(proof, "read", lambda _kafka, topic, **_: iter(topics[topic]))
    rules = Identity.parse("key"), Identity.parse("json:$.id")
    kafka = Kafka.model_validate({"bootstrap.servers": "x:1"})
    return verify(kafka, "into", "out", rules[0], output_identity=rules[1], rejected_topic="bad")


def test_rejected_output_is_told_by_the_outputs_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was rejected on its way into the sink has the output's key, which is not the input's."""
    place = ((HEADER_TOPIC, b"into"), (HEADER_PARTITION, b"0"), (HEADER_OFFSET, b"1"))
    found = proved(
        monkeypatch,
        into=[message(key=b"order-1"), message(key=b"order-2", offset=1)],
        out=[message(key=b"customer-7", value=b'{"id": "order-1"}')],
        bad=[message(key=b"customer-7", value=b'{"id": "order-2"}', headers=((HEADER_STAGE, b"sink"), *place))],
    )
    assert (found.lost, found.unexpected, found.rejected) == (0, 0, 1)


def test_record_that_is_nested_too_deep_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hostile record would otherwise make the proof impossible."""
    deep = b'{"id": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    found = proved(
        monkeypatch, into=[message(key=b"a")], out=[message(value=deep), message(value=b'{"id": "a"}')], bad=[]
    )
    assert (found.lost, found.unidentified) == (0, 1)


def test_equal_sides_are_exact() -> None:
    """The same ids in another order are neither lost nor duplicated."""
    found = compare(numbers(0, 1000), reversed(list(numbers(0, 1000))))
    assert found == Comparison(1000, 1000, 0, 0, 0, 0, 0)
    assert found.exact


def test_planted_faults_are_found_and_named() -> None:
    """One loss, two surplus copies and one unexpected id are each counted as such, with examples."""
    outputs = [*numbers(0, 7), *numbers(8, 100), b"id-3", b"id-3", b"stranger"]
    found = compare(numbers(0, 100), outputs)
    assert (found.lost, found.duplicated, found.unexpected) == (1, 2, 1)
    assert found.examples == Examples(("id-7",), ("id-3",), ("stranger",))
    assert not found.exact


def test_a_loss_is_not_balanced_by_a_duplicate() -> None:
    """Equal totals hide nothing: the ids are compared, not the counts."""
    found = compare([b"a", b"b"], [b"a", b"a"])
    assert (found.in_, found.out, found.lost, found.duplicated) == (2, 2, 1, 1)


def test_copies_in_the_input_must_come_out_as_often() -> None:
    """An id that went in twice must come out twice; a third copy is a surplus, one copy too few is a loss."""
    assert compare([b"a", b"a"], [b"a", b"a"]).exact
    assert compare([b"a", b"a"], [b"a", b"a", b"a"]).duplicated == 1
    assert compare([b"a", b"a"], [b"a"]).lost == 1


def test_a_rejected_record_counts_as_delivered_and_not_twice() -> None:
    """A rejected record is not lost; one that is both rejected and delivered is duplicated."""
    assert compare([b"a", b"b"], [b"a"], [b"b"]) == Comparison(2, 1, 1, 0, 0, 0, 0)
    assert compare([b"a", b"b"], [b"a", b"b"], [b"b"]).duplicated == 1


def test_records_without_an_id_are_no_proof() -> None:
    """A side without ids is never exact, even if the totals are equal."""
    found = compare([None, None], [None, None])
    assert (found.in_, found.out, found.lost, found.unidentified) == (2, 2, 0, 4)
    assert not found.exact


def test_five_examples_of_each_kind_are_kept() -> None:
    """A total loss names a few ids, not all."""
    found = compare(numbers(0, 500), [])
    assert found.lost == 500
    assert len(set(found.examples.lost)) == 5


@given(ids, ids, ids)
def test_any_sides_are_counted_as_plain_counters_would(
    inputs: list[bytes | None], outputs: list[bytes | None], rejected: list[bytes | None]
) -> None:
    """However the ids are spilled and split, the counts match the definition."""
    found = compare(inputs, outputs, rejected, memory=TINY)
    before = Counter(each for each in inputs if each is not None)
    after = Counter(each for each in outputs + rejected if each is not None)
    surplus = after - before
    assert found.lost == (before - after).total()
    assert found.duplicated == sum(count for each, count in surplus.items() if each in before)
    assert found.unexpected == sum(count for each, count in surplus.items() if each not in before)
    assert found.unidentified == (inputs + outputs + rejected).count(None)
    assert (found.in_, found.out, found.rejected) == (len(inputs), len(outputs), len(rejected))


def test_buckets_are_split_until_they_fit() -> None:
    """With room for two ids, a thousand are still compared exactly: some buckets are split more than once."""
    found = compare(numbers(0, 1000), numbers(1, 1001), memory=TINY)
    assert (found.lost, found.duplicated, found.unexpected) == (1, 0, 1)
    assert found.examples == Examples(lost=("id-0",), unexpected=("id-1000",))


# In a separate process: tracemalloc counts the allocations of every thread, and an earlier test may have left one.
_MEASURE = """
import tracemalloc
from tailrace.admin.verify import compare

def numbers(first, end):
    return (b"id-%d" % number for number in range(first, end))

tracemalloc.start()
found = compare(numbers(0, 200_000), numbers(1, 200_001), memory={allowed})
print(found.lost, found.unexpected, tracemalloc.get_traced_memory()[1])
"""


def test_memory_is_bounded_whatever_the_number_of_ids() -> None:
    """400,000 ids are compared within the allowed memory, which could not hold their digests."""
    allowed = 2_000_000
    command = [sys.executable, "-c", _MEASURE.format(allowed=allowed)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lost, unexpected, peak = map(int, printed.split())
    assert (lost, unexpected) == (1, 1)
    assert peak < allowed


@pytest.mark.parametrize(
    ("how", "record", "expected"),
    [
        ("key", message(key=b"k"), b"k"),
        ("key", message(), None),
        ("header:id", message(headers=(("id", b"1"), ("other", b"2"))), b"1"),
        ("header:id", message(headers=(("id", b"1"), ("id", b"2"))), b"2"),
        ("header:id", message(headers=(("id", None),)), None),
        ("json:$.a.b", message(value=b'{"a": {"b": "x"}}'), b"x"),
        ("json:$.a.1", message(value=b'{"a": [1, 2]}'), b"2"),
        ("json:$.a", message(value=b'{"a": {"y": 1, "x": [true]}}'), b'{"x":[true],"y":1}'),
        ("json:$.a", message(value=b'{"a": null}'), None),
        ("json:$.a", message(value=b'{"b": 1}'), None),
        ("json:$.a", message(value=b"not json"), None),
        ("json:$.a", message(value=b"\xff\xfe"), None),
        ("json:$.a", message(), None),
    ],
)
def test_an_id_is_read_from_its_configured_place(how: str, record: Message, expected: bytes | None) -> None:
    """Key, header and JSON path give the record's id; a record without it has none."""
    assert Identity.parse(how).of(record) == expected
    assert str(Identity.parse(how)) == how


def test_a_number_and_its_text_are_one_id() -> None:
    """The input may write an id as a number and the output as text."""
    how = Identity.parse("json:$.id")
    assert how.of(message(value=json.dumps({"id": 7}).encode())) == how.of(message(value=b'{"id": "7"}'))


@pytest.mark.parametrize("text", ["", "keys", "header:", "json:a", "json:$.", "json:$.a..b", "key:x"])
def test_an_invalid_identity_is_refused(text: str) -> None:
    """The error quotes it."""
    with pytest.raises(ValueError, match=repr(text).replace("$", r"\$")):
        Identity.parse(text)
