"""A truncated input is distinguished from a complete one."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import IO, cast

import pyarrow as pa
import pytest
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from tailrace.driver.input_end import InputEnd, watch
from tailrace.errors import InputCutOff

SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch the inputs of this process for one test, as a worker does."""
    monkeypatch.setattr(ArrowStreamSerializer, "load_stream", ArrowStreamSerializer.load_stream)
    watch()


def sent(*, ended: bool, word: bytes) -> Iterator[pa.RecordBatch]:
    """Yield what a worker reads when Spark sends two batches, perhaps their end, and closes the socket."""
    ours, theirs = socket.socketpair()

    def spark() -> None:
        with theirs, theirs.makefile("wb") as out:
            gateway = pa.ipc.new_stream(out, SCHEMA)
            for _ in range(2):
                gateway.write_batch(pa.record_batch([pa.array(range(10))], schema=SCHEMA))
            if ended:
                gateway.close()
            out.write(word)

    thread = threading.Thread(target=spark)
    thread.start()
    with ours, ours.makefile("rwb", 65536) as stream:
        yield from ArrowStreamSerializer().load_stream(cast(IO[bytes], stream))
        thread.join(10)


def test_a_complete_input_passes() -> None:
    """Spark ended the stream, and sent its end marker."""
    batches = list(InputEnd().complete(sent(ended=True, word=struct.pack(">i", -4))))
    assert sum(each.num_rows for each in batches) == 20


@pytest.mark.parametrize(("ended", "word"), [(False, b""), (True, b""), (True, struct.pack(">i", -2))])
def test_an_input_truncated_between_two_batches_is_refused(ended: bool, word: bytes) -> None:
    """PySpark alone would take it for complete, because the socket was closed in an orderly way."""
    with pytest.raises(InputCutOff, match="was truncated"):
        list(InputEnd().complete(sent(ended=ended, word=word)))


def test_an_input_that_was_not_watched_is_refused() -> None:
    """If PySpark ever reads its input in another way, nothing is committed on trust."""
    found: list[BaseException] = []

    def read() -> None:
        try:
            list(InputEnd().complete(iter([])))
        except InputCutOff as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(10)
    assert len(found) == 1


def test_worker_that_unpickles_it_watches_its_inputs() -> None:
    """In the process that pickles it, PySpark stays as it is."""
    code = """
        import pickle
        from pyspark.sql.pandas.serializers import ArrowStreamSerializer as Serializer
        from tailrace.driver.input_end import InputEnd
        before = Serializer.load_stream
        text = pickle.dumps(InputEnd())
        assert Serializer.load_stream is before
        pickle.loads(text)
        watched = Serializer.load_stream
        assert watched is not before
        pickle.loads(text)
        assert Serializer.load_stream is watched
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
