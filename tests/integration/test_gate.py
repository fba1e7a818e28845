"""The gate of pipelines that run on Spark: one verdict for each record, with and without a shuffle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support import early, strict
from support.expiry import expire
from support.pipelines import Bench, events_of
from tailrace import errors
from tailrace.kafka.cluster import Cluster
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]

# Fails after the shuffle while the file `broken` exists.
FUNCTION = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    def kept(frame):
        def check(number):
            if Path({folder!r}, "broken").exists():
                raise ValueError("the fault of the test")
            return number
        return frame.select(F.udf(check, LongType())("id").alias("id"))
"""


def prepared(bench: MakeBench) -> tuple[Bench, dict[str, Any]]:
    """Return a pipeline with a shuffle whose odd records are rejected while `strict` exists.

    Behind the shuffle each of the three sink partitions has records; one without would commit while another fails.
    """
    one = bench(partitions=2)
    strict.fill(one)
    one.write("kept.py", FUNCTION.format(folder=str(one.folder)))
    sections: dict[str, Any] = {
        "source": {"format": "json", "schema": strict.SCHEMA},
        "process": {"function": "kept.py:kept", "partitions": 3},
        "sink": {"format": "json"},
    }
    return one, sections


@pytest.mark.takes(12)
def test_rejected_records_before_a_shuffle_are_committed_once(bench: MakeBench) -> None:
    """The reading tasks commit them before the outputs; a replay finds them delivered."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    odd = [b'{"id": %d}' % number for number in range(1, 20, 2)]
    assert sorted(value or b"" for value, _ in one.rejected()) == sorted(odd)
    assert one.values() == []
    (replay,) = events_of(one.run(**sections), "written")
    assert (replay["skipped"], replay["sinks"]) == (2, 5)
    assert sorted(value or b"" for value, _ in one.rejected()) == sorted(odd)
    assert one.values() == sorted(b'{"id":%d}' % number for number in range(0, 20, 2))


@pytest.mark.takes(11)
def test_changed_verdict_before_a_shuffle_stops_the_batch_and_names_the_record(bench: MakeBench) -> None:
    """Nothing derived from it is committed; with the old verdict, the batch continues."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    (one.folder / "strict").unlink()
    with pytest.raises(errors.VerdictChanged, match=rf"the record {one.source}-[01] offset 1 is now accepted"):
        one.run(**sections)
    one.settle()
    assert one.values() == []
    (one.folder / "strict").touch()
    one.run(**sections)
    assert one.values() == sorted(b'{"id":%d}' % number for number in range(0, 20, 2))
    assert len(one.rejected()) == 10


@pytest.mark.takes(12)
def test_open_batch_behind_a_shuffle_whose_rejected_records_are_deleted_is_finished_with_reset(
    bench: MakeBench,
) -> None:
    """A record that is gone has no other verdict. What is left of the batch is delivered."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    expire(one.kafka, one.source, 4)
    sections["source"]["on_data_loss"] = "reset"
    (one.folder / "strict").unlink()
    with pytest.raises(errors.VerdictChanged, match=rf"the record {one.source}-[01] offset [15] is now accepted"):
        one.run(**sections)  # of the records that are left
    one.settle()
    (one.folder / "strict").touch()
    one.run(**sections)
    assert one.values() == sorted(b'{"id":%d}' % number for number in range(4, 20, 2))
    assert len(one.rejected()) == 10


@pytest.mark.takes(15)
def test_open_batch_behind_a_shuffle_of_a_recreated_topic_is_finished_with_reset(bench: MakeBench) -> None:
    """Its rejected records stay committed, and the new topic is read from its beginning."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    cluster = Cluster(one.pipeline().kafka)
    cluster.admin.delete_topics([one.source])[one.source].result(30)
    wait_until(lambda: one.source not in cluster.topics(), "the topic to be gone", 30)
    cluster.ensure(one.source, 2, 1, {})
    one.send([b'{"id": 40}', b'{"id": 41}'], 0)
    sections["source"]["on_data_loss"] = "reset"
    one.run(**sections)
    assert one.values() == [b'{"id":40}']
    assert len(one.rejected()) == 11


def test_changed_verdict_without_a_shuffle_loses_and_repeats_nothing(bench: MakeBench) -> None:
    """A delivered sink partition stays; the others decide again, and each record is accepted or rejected once."""
    one, sections = prepared(bench)
    sections["process"] = {"function": "kept.py:kept"}
    one.fail_in_part(**sections)
    (one.folder / "strict").unlink()
    one.run(**sections)
    delivered = [int((value or b"")[6:-1]) for value in one.values()]
    aside = [int((value or b"")[7:-1]) for value, _ in one.rejected()]
    assert sorted([*delivered, *aside]) == list(range(20))


def test_rejected_record_after_a_function_stops_reading_is_not_lost(bench: MakeBench) -> None:
    """The function takes only its first rows; Spark reads the others, so that each record gets its verdict."""
    one = bench()
    early.write(one, "id")
    one.send([*(b'{"id": %d}' % number for number in range(60_000)), b"broken"])
    one.run(
        source={"format": "json", "schema": "id long"},
        process={"function": early.FUNCTION},
        sink={"format": "json"},
    )
    assert [value for value, _ in one.rejected()] == [b"broken"]
    assert 0 < len(one.values()) < 60_000


def test_rejected_record_after_a_function_before_a_shuffle_stops_reading_is_not_lost(bench: MakeBench) -> None:
    """The outputs are committed by then, so the batch is read again as far as the gate."""
    one = bench(partitions=2)
    early.write(one, "id", "text", then='.repartition(2, "id")')
    text = b"x" * 1000
    one.send([*(b'{"id": %d, "text": "%s"}' % (number, text) for number in range(60_000)), b"broken"], 0)
    one.send([b'{"id": -1, "text": ""}', b"torn"], 1)
    one.run(
        source={"format": "json", "schema": "id long, text string"},
        process={"function": early.FUNCTION},
        sink={"format": "json"},
    )
    assert sorted(value or b"" for value, _ in one.rejected()) == [b"broken", b"torn"]
    assert 0 < len(one.values()) < 60_000


LATE = "CASE WHEN id = 24500 THEN raise_error('late') ELSE id % 1000 <> 1 END"


@pytest.mark.takes(20)
@pytest.mark.parametrize("kind", ["a shuffle", "state"])
def test_gate_commits_nothing_of_an_input_that_was_cut_off(bench: MakeBench, kind: str) -> None:
    """Two of three Arrow batches reach it; their verdicts are no marker for the range, whose replay would differ."""
    one = bench()
    one.write("same.py", "def same(frame):\n    return frame.dropDuplicates(['id']).select('id')\n")
    process: dict[str, Any] = {"function": "same.py:same"} if kind == "state" else {"partitions": 2}
    sections: dict[str, Any] = {
        "source": {"format": "json", "schema": "id long"},
        "sink": {"format": "json"},
        **({"checkpoint": str(one.folder / "state")} if kind == "state" else {}),
    }
    one.send([b'{"id": %d}' % number for number in range(25_000)])
    with pytest.raises(errors.TailraceError, match="late"):
        one.run(**sections, process={**process, "validate": {"good": LATE}})
    one.settle()
    assert one.rejected() == []
    one.run(**sections, process={**process, "validate": {"good": "id % 1000 <> 1"}})
    assert len(one.values()) == 25_000 - 25
    assert len(one.rejected()) == 25


WIDE = """
    from pyspark.sql import functions as F

    def wide(frame):
        rows = frame.select("id", *(frame["id"].alias(f"c{number}") for number in range(9)))
        none = frame.sparkSession.range(9).where("id % 10 = 9")
        joined = rows.join(none.hint("broadcast"), "id")
        return joined.select(F.greatest(*joined.columns).alias("most"))
"""
FIELDS = "spark.sql.codegen.maxFields"  # 100 by default


@pytest.mark.takes(15)
def test_join_of_many_columns_with_an_empty_table_ends_with_the_setting_that_lets_it_run(
    bench: MakeBench, spark: SparkSession
) -> None:
    """Without generated code, Spark reads no row for it, and the rejected records among them would be lost."""
    one = bench(partitions=2)
    one.write("wide.py", WIDE)
    sections: dict[str, Any] = {
        "source": {"format": "json", "schema": "id LONG"},
        "process": {"function": "wide.py:wide"},
        "sink": {"format": "json"},
    }
    one.send([b'{"id": 1}', b"no JSON"])
    spark.conf.set(FIELDS, "5")
    try:
        with pytest.raises(errors.InputUnread) as caught:
            one.run(**sections)
    finally:
        spark.conf.unset(FIELDS)
    assert f"set {FIELDS}" in caught.value.then
    assert (one.values(), one.rejected()) == ([], [])
    one.run(**sections)
    assert (one.values(), [value for value, _ in one.rejected()]) == ([], [b"no JSON"])
