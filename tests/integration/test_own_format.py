"""Formats from outside the package: classes that the configuration names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.pipelines import Bench
from support.threads import Line
from tailrace.errors import ConfigInvalid, QueryFailed, SinkColumnsInvalid

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
MakeBench = Callable[..., Bench]
OWN = Path(__file__).parents[1] / "support" / "own"
READER, WRITER = "own_csv:CsvSource", "own_csv:CsvSink"
SCHEMA = "id long, text string"
KNOWN = """
from own_csv import CsvSource

class KnownSource(CsvSource):
    def decoder(self):
        read = super().decoder()

        def decode(value):
            row = read(value)
            next(each for each in ("one", "three") if each == row["text"])
            return row

        return decode
"""
HALF = """
from own_csv import CsvSource

class HalfSource(CsvSource):
    def decoder(self):
        read = super().decoder()
        return lambda value: {**read(value), "id": read(value)["id"] / 2}
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the user's package on the Python path."""
    monkeypatch.syspath_prepend(OWN)


def test_pipeline_reads_and_writes_an_own_format_and_rejects_what_it_refuses(line: MakeLine) -> None:
    """The class is all that it takes: nothing is registered."""
    one = line(1)
    one.send([b"1,one", b"two,2", b'3,"a,b"', b"4,x;y"], partition=0)
    one.run(
        source={"topics": [one.source], "format": READER, "schema": SCHEMA}, sink={"topic": one.sink, "format": WRITER}
    )
    assert one.values() == [b"1,one", b'3,"a,b"']


def test_stop_iteration_of_an_own_format_is_its_error(
    line: MakeLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for the end of the input, it would lose the batch; any other exception stops the pipeline too."""
    (tmp_path / "own_known.py").write_text(KNOWN)
    monkeypatch.syspath_prepend(tmp_path)
    one = line(1)
    one.send([b"1,one", b"2,two", b"3,three"], partition=0)
    source = {"topics": [one.source], "format": "own_known:KnownSource", "schema": SCHEMA}
    with pytest.raises(QueryFailed, match="the format's decoder raised StopIteration"):
        one.run(source=source, sink={"topic": one.sink, "format": WRITER})
    assert one.values() == []


def test_fraction_of_an_own_format_for_a_whole_number_rejects_its_record(
    line: MakeLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow would cut it silently."""
    (tmp_path / "own_half.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    one = line(1)
    one.send([b"2,two", b"3,three"], partition=0)
    source = {"topics": [one.source], "format": "own_half:HalfSource", "schema": SCHEMA}
    one.run(source=source, sink={"topic": one.sink, "format": WRITER})
    assert (one.values(), one.rejected()) == ([b"1,two"], [b"3,three"])


def test_own_format_reads_and_writes_within_sparks_jobs(bench: MakeBench, spark: SparkSession) -> None:
    """Validation is SQL, so the stages run as a frame: the same classes work there."""
    spark.sparkContext.addPyFile(str(OWN / "own_csv.py"))  # the workers have another path
    one = bench()
    one.send([b"1,one", b"two,2", b"3,three", b"-1,no"])
    one.run(
        source={"topics": [one.source], "format": READER, "schema": SCHEMA},
        sink={"topic": one.sink, "format": WRITER},
        process={"validate": {"positive": "id > 0"}},
    )
    assert one.values() == [b"1,one", b"3,three"]


def test_columns_that_an_own_format_cannot_write_are_refused_before_the_start(line: MakeLine) -> None:
    """The format's own words are in the message."""
    one = line(1)
    with pytest.raises(SinkColumnsInvalid, match="CSV has no form for value"):
        one.run(sink={"topic": one.sink, "format": WRITER})


@pytest.mark.parametrize("name", ["no_such_package:Format", "own_csv:NoSuchFormat", WRITER])
def test_format_that_cannot_be_loaded_is_named(line: MakeLine, name: str) -> None:
    """Nothing is read before it is known; a sink's format is no source's."""
    one = line(1)
    with pytest.raises(ConfigInvalid, match=f"source.format '{name}' cannot be loaded"):
        one.run(source={"topics": [one.source], "format": name})
