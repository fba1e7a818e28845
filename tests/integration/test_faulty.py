"""A record at which the function raises: the pipeline stops and names it, or rejects it, and delivers the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.expiry import expire
from support.pipelines import Bench, events_of, numbered
from support.threads import Line
from tailrace import errors
from tailrace.driver.engine import NO_FAULTS, Engine
from tailrace.driver.spark_engine import SparkEngine
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.progress import last_error
from tailrace.progress.plan import BatchId, Plan, Range
from tailrace.startup.run import assemble
from tailrace.testing import consume

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
MakeLine = Callable[..., Line]

PYTHON = """
from pyspark.sql import functions as F

def strict(frame):
    def check(value):
        if int(value) in (13, 250):
            raise ValueError("unlucky")
        return bytes(value)
    return frame.select(F.udf(check, "binary")("value").alias("value"))
"""
SQL = """
from pyspark.sql import functions as F

def strict(frame):
    number = F.col("value").cast("string").cast("int")
    return frame.where(1000 / F.when(number.isin(13, 250), 0).otherwise(1000) > F.lit(0)).select("value")
"""
ARROW = """
import pyarrow as pa

def strict(batches):
    for batch in batches:
        for value in batch.column("value").to_pylist():
            if int(value) in (13, 250):
                raise ValueError("unlucky")
        yield batch.select(["value"])
"""
MAPPED = """
import pyarrow as pa

def one(batch):
    for value in batch.column("value").to_pylist():
        next(each for each in (int(value),) if each not in (13, 250))
    return batch.select(["value"])

def strict(batches):
    return map(one, batches)
"""
BAD = [b"000013", b"000250"]
MESSAGES = {"python": "ValueError: unlucky", "sql": "DIVIDE_BY_ZERO"}


def filled(one: Bench | Line) -> list[bytes]:
    """Put 400 records into the first of two source partitions, and 10 into the second; return those that are good."""
    one.send(numbered(0, 400), 0)
    one.send(numbered(400, 410), 1)
    return [b"%06d" % number for number in range(410) if b"%06d" % number not in BAD]


@pytest.mark.takes(20)
@pytest.mark.parametrize(("how", "text"), [("python", PYTHON), ("sql", SQL)])
def test_faulty_record_is_named_then_rejected(bench: MakeBench, how: str, text: str) -> None:
    """The pipeline stops with the offset; with `reject`, the same batch is delivered and only these are rejected."""
    one = bench(partitions=2)
    good = filled(one)
    one.write("strict.py", text)
    with pytest.raises(errors.FunctionFailed, match=MESSAGES[how]) as caught:
        one.run(process={"function": "strict.py:strict"})
    assert f"at {one.source}-0, offset 13, in batch 0" in caught.value.what
    assert "process.on_error: reject" in caught.value.then
    kept = last_error.read(one.pipeline())
    assert kept is not None
    assert (kept["error"], kept["what"]) == ("TR-401", caught.value.what)  # for the page of the next driver
    one.settle()
    events = one.run(process={"function": "strict.py:strict", "on_error": "reject"})
    assert one.values() == good
    assert sorted(value or b"" for value, _ in one.rejected()) == BAD
    for _, headers in one.rejected():
        assert headers["tailrace.reason"] == b"function raised"
        assert headers["tailrace.stage"] == b"process"
        assert MESSAGES[how].encode() in (headers["tailrace.detail"] or b"")
    notes = [each["what"] for each in events_of(events, "note")]
    assert any("looking for the records" in each for each in notes)
    assert len([each for each in notes if "the function raised at 2 records" in each]) == 1
    [written] = events_of(events, "written")  # what the first run has delivered is not read again
    assert (written["in"], written["rejected"]) == (written["out"] + 2, 2)


@pytest.mark.takes(10)
def test_faulty_record_is_rejected_by_a_function_that_is_called_for_each_batch(bench: MakeBench) -> None:
    """Each probe builds a frame of its own, several at the same time."""
    one = bench(partitions=2)
    good = filled(one)
    key = 'F.expr("uuid()").cast("binary").alias("key")'
    one.write("strict.py", PYTHON.replace('.alias("value"))', f'.alias("value"), {key})'))
    one.run(process={"function": "strict.py:strict", "on_error": "reject"})
    assert one.values() == good
    assert sorted(value or b"" for value, _ in one.rejected()) == BAD


@pytest.mark.takes(8)
def test_faulty_record_of_conditions_and_json_is_rejected_beside_others(bench: MakeBench) -> None:
    """A pipeline that also rejects undecodable records has all of them in one transaction, each once."""
    one = bench(partitions=2)
    one.send([b'{"n": 1}', b"nonsense", b'{"n": 0}', b'{"n": -1}', b'{"n": 4}'], 0)
    one.send([b'{"n": 0}', b'{"n": 5}'], 1)
    one.write("share.py", "def share(frame):\n    return frame.selectExpr('100 div n AS share')\n")
    source = {"format": "json", "schema": "n INT"}
    process = {"function": "share.py:share", "on_error": "reject", "validate": {"not negative": "n >= 0"}}
    one.run(source=source, process=process, sink={"format": "json"})
    assert one.values() == [b'{"share":100}', b'{"share":20}', b'{"share":25}']
    found = sorted((value or b"", headers["tailrace.reason"]) for value, headers in one.rejected())
    assert found == [
        (b"nonsense", b"not json"),
        (b'{"n": -1}', b"not negative"),
        (b'{"n": 0}', b"function raised"),
        (b'{"n": 0}', b"function raised"),
    ]


@pytest.mark.takes(6)
def test_faulty_record_of_an_arrow_function_in_spark_is_rejected(bench: MakeBench) -> None:
    """The one Python stage has no gate; the record is taken out where it is read."""
    one = bench(partitions=2)
    good = filled(one)
    one.write("arrow_strict.py", ARROW)
    one.run(process={"arrow": "arrow_strict.py:strict", "on_error": "reject"})
    assert one.values() == good
    assert sorted(value or b"" for value, _ in one.rejected()) == BAD


def test_faulty_record_of_an_arrow_function_is_named_then_rejected(line: MakeLine) -> None:
    """Keys, headers and timestamps of the others are as they were."""
    one = line()
    good = filled(one)
    (one.folder / "strict_rows.py").write_text(ARROW)
    process: dict[str, Any] = {"arrow": "strict_rows.py:strict"}
    with pytest.raises(errors.FunctionFailed, match=rf"unlucky .*; at {one.source}-0, offset 13, in batch 0"):
        one.run(process=process)
    one.run(process={**process, "on_error": "reject"})
    assert one.values() == good
    assert one.rejected() == BAD
    kept = consume(one.kafka, f"{one.name}.rejected")
    assert {dict(each.headers)["tailrace.source.offset"] for each in kept} == {b"13", b"250"}


@pytest.mark.parametrize("how", ["stop", "reject"])
def test_stop_iteration_of_a_mapped_function_loses_no_record(line: MakeLine, how: str) -> None:
    """A `next` without a default looks like the end of the output; it is the error of one record."""
    one = line()
    good = filled(one)
    (one.folder / "mapped_rows.py").write_text(MAPPED)
    process: dict[str, Any] = {"arrow": "mapped_rows.py:strict", "on_error": how}
    if how == "stop":
        with pytest.raises(errors.FunctionFailed, match=rf"give next\(\) a default .*; at {one.source}-0, offset 13, "):
            one.run(process=process)
        assert not {value for value in one.values() if value < b"000400"}  # the other partition's are delivered
        return
    one.run(process=process)
    assert (one.values(), one.rejected()) == (good, BAD)
    for each in consume(one.kafka, f"{one.name}.rejected"):
        assert b"StopIteration" in (dict(each.headers)["tailrace.detail"] or b"")


def test_lost_offsets_are_not_blamed_on_the_function(line: MakeLine) -> None:
    """Records may expire while faulty ones are looked for; they would be rejected, and their loss hidden."""
    one = line()
    engine = ThreadEngine(one.pipeline(), one.folder, "run")
    try:
        probed_beyond(one, engine)
    finally:
        engine.close()


@pytest.mark.takes(6)
def test_lost_offsets_are_not_blamed_on_the_function_in_spark(bench: MakeBench) -> None:
    """There an error comes as the text of a job that failed."""
    one = bench(partitions=2)
    one.write("same.py", "def same(batches):\n    yield from batches\n")
    pipeline = one.pipeline(process={"arrow": "same.py:same"})
    probed_beyond(one, SparkEngine(one.spark, pipeline, assemble(one.spark, pipeline, one.folder), "run"))


def probed_beyond(one: Bench | Line, engine: Engine) -> None:
    """Try a part that can be read, and a record that the topic no longer holds."""
    filled(one)
    expire(one.kafka, one.source, 20)
    ranges = (Range(one.source, 0, 0, 400),)
    plan = Plan(one.name, BatchId(0), one.sink, {}, (ranges,), 1, {ranges[0].place: 400})
    assert engine.probe(plan, (Range(one.source, 0, 20, 400),), NO_FAULTS, 100_000) is None
    with pytest.raises(errors.OffsetsOutOfRange, match=f"{one.source}-0: the plan reads 5 to 6"):
        engine.probe(plan, (Range(one.source, 0, 5, 6),), NO_FAULTS, 100_001)


def test_function_that_always_raises_stops_the_pipeline(line: MakeLine) -> None:
    """Nothing was written, and nothing rejected: it is the function that is at fault."""
    one = line()
    filled(one)
    (one.folder / "broken_rows.py").write_text(ARROW.replace("in (13, 250)", ">= 0"))
    process = {"arrow": "broken_rows.py:strict", "on_error": "reject", "max_errors": 3}
    with pytest.raises(errors.FunctionFailed, match="raised at more than 3 records"):
        one.run(process=process)
    assert (one.values(), one.rejected()) == ([], [])


@pytest.mark.takes(6)
def test_function_that_shuffles_cannot_reject_but_names_the_record(bench: MakeBench) -> None:
    """Its rejected records are committed before it has seen its rows."""
    one = bench(partitions=2)
    filled(one)
    one.write("shuffled.py", PYTHON.replace("frame.select", "frame.repartition(2, 'value').select"))
    with pytest.raises(errors.ConfigInvalid, match="shuffles"):
        one.run(process={"function": "shuffled.py:strict", "on_error": "reject"})
    with pytest.raises(errors.FunctionFailed) as caught:
        one.run(process={"function": "shuffled.py:strict"})
    assert f"{one.source}-0, offset 13" in caught.value.what
    assert "on_error" not in caught.value.then
    one.settle()
    one.write("shuffled.py", PYTHON.replace("frame.select", "frame.repartition(2, 'value').select") + "\n# mended")
    with pytest.raises(errors.CutChanged) as refused:
        one.run(process={"function": "shuffled.py:strict"})
    assert "tailrace offsets set FILE … --give-up" in refused.value.then
