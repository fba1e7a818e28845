"""The exactly-once sink against Spark's own at-least-once sink: throughput, CPU for each record, latency.

Run it with `make bench`, or `python tests/bench/sink.py [throughput|latency]…`. Both sinks get the same records, from
the same embedded Kafka, in the same session of Spark on two slots, in turns; each on its defaults. CPU is that of
Spark's JVM and all below it (Python workers and the writer), without the broker and without the process that drives
both. Latency is from a record's being sent to its being seen by a plain consumer: read_committed for Tailrace,
read_uncommitted, which is what its output needs, for Spark's.
"""

from __future__ import annotations

import os
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psutil
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from tailrace import app
from tailrace.config import Pipeline
from tailrace.demo.feed import count_of
from tailrace.embedded import EmbeddedKafka
from tailrace.source import NO_WAIT
from tailrace.testing import Topics, wait_until

SINKS = ("native", "tailrace")
RECORDS = int(os.environ.get("BENCH_RECORDS", "3000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))
SIZE, PER_BATCH = 162, 500_000
RATE = 1000
SPARK = {"spark.master": "local[2,4]", "spark.ui.enabled": "false", "spark.driver.memory": "3g"}


@dataclass
class Bench:
    """One session of Spark and one broker, for both sinks."""

    bootstrap: str
    spark: SparkSession
    folder: Path
    heard: list[tuple[int, float]] = field(default_factory=list)  # each batch's rows and seconds

    def say(self, line: str) -> None:
        """To the terminal."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def pipeline(self, source: str, sink: str, **batch: float) -> Pipeline:
        """Bytes in, the same bytes out."""
        return Pipeline.model_validate(
            {
                "pipeline": f"bench-{uuid4().hex[:8]}",
                "kafka": {"bootstrap.servers": self.bootstrap},
                "source": {"topics": [source]},
                # As the other sink: the value alone, without key, headers and timestamp.
                "process": {"function": "plain.py:plain"},
                "sink": {"topic": sink, "format": "raw"},
                "batch": batch,
                "spark": SPARK,
            }
        )

    def native(self, source: str, sink: str, limit: int | None) -> object:
        """The same with Spark's own sink."""
        read = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        read = read.option("subscribe", source).option("startingOffsets", "earliest")
        read = read.options(**NO_WAIT)  # as Tailrace reads: the sinks are compared
        if limit is not None:
            read = read.option("maxOffsetsPerTrigger", limit)
        write = read.load().select("value").writeStream.format("kafka")
        write = write.option("kafka.bootstrap.servers", self.bootstrap).option("topic", sink)
        return write.option("checkpointLocation", str(self.folder / uuid4().hex))

    def cpu(self) -> float:
        """Seconds of CPU that Spark and all below it have used, of those that live."""
        root = next(each for each in psutil.Process().children() if "java" in each.name() and _is_spark(each))
        total = 0.0
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system
        return total

    # -- throughput --------------------------------------------------------------------------------

    def drain(self, sink: str, source: str) -> tuple[float, float]:
        """Move everything that is in the source; seconds in all its batches, as Spark has them, and seconds of CPU."""
        target = Topics(self.bootstrap)("out", 8)
        self.heard.clear()
        before = self.cpu()
        if sink == "native":
            query = self.native(source, target, PER_BATCH).trigger(availableNow=True).start()  # type: ignore[attr-defined]
            query.awaitTermination()
        else:
            pipeline = self.pipeline(source, target, max_records=PER_BATCH, target=0)  # the same batches as native
            app.run(pipeline, self.folder, batch=True, spark=self.spark)
        spent = self.cpu() - before
        wait_until(lambda: sum(rows for rows, _ in self.heard) >= RECORDS, "the progress of all batches", 60)
        return sum(seconds for _, seconds in self.heard), spent

    def throughput(self) -> None:
        """Interleaved rounds over the same records."""
        source = Topics(self.bootstrap)("in", 8)
        fill(self.bootstrap, source, RECORDS)
        self.say(
            f"{RECORDS} records of {SIZE} bytes, 8 partitions, {PER_BATCH} a batch, {ROUNDS} rounds after a warm-up"
        )
        ratios, cpus = [], []
        for number in range(ROUNDS + 1):
            found = {sink: self.drain(sink, source) for sink in (SINKS if number % 2 else SINKS[::-1])}
            if number == 0:
                continue
            for sink, (took, cpu) in found.items():
                each = cpu / RECORDS * 1e6
                self.say(f"round {number}  {sink:<9} {RECORDS / took:>9,.0f} records/s  {each:5.2f} µs of CPU each")
            ratios.append(found["native"][0] / found["tailrace"][0])
            cpus.append(found["tailrace"][1] / found["native"][1])
        self.say(f"throughput against native: {_each(ratios)}; CPU against native: {_each(cpus)}")

    # -- latency -----------------------------------------------------------------------------------

    def latency(self) -> None:
        """Interleaved rounds at a steady rate, after one that warms both."""
        self.say(f"{RATE} records a second for {SECONDS:.0f} s, 4 partitions, {ROUNDS} rounds after a warm-up")
        p50, p99 = [], []
        for number in range(-1, ROUNDS):
            found = {sink: self.steady(sink) for sink in (SINKS if number % 2 else SINKS[::-1])}
            if number < 0:
                continue
            for sink, each in found.items():
                self.say(
                    f"round {number + 1}  {sink:<9} {len(each)} records  p50 {each[len(each) // 2]:.0f} ms"
                    f"  p99 {each[len(each) * 99 // 100]:.0f} ms"
                )
            middle = {sink: each[len(each) // 2] for sink, each in found.items()}
            high = {sink: each[len(each) * 99 // 100] for sink, each in found.items()}
            p50.append(middle["tailrace"] / middle["native"])
            p99.append(high["tailrace"] / high["native"])
        self.say(f"p50 against native: {_each(p50)}; p99 against native: {_each(p99)}")

    def steady(self, sink: str) -> list[float]:
        """The latencies of one round, sorted, without its first third."""
        source, target = Topics(self.bootstrap)("in", 4), Topics(self.bootstrap)("out", 4)
        with self.streaming(sink, source, target), watching(self.bootstrap, target, sink) as seen:
            send_steadily(self.bootstrap, source, SECONDS)
            wait_until(lambda: len(seen) >= RATE * SECONDS, f"all records through the {sink} sink", 60)
        return sorted(seen[len(seen) // 3 :])

    @contextmanager
    def streaming(self, sink: str, source: str, target: str) -> Iterator[None]:
        """Inside, the stream runs."""
        if sink == "native":
            query = self.native(source, target, None).start()  # type: ignore[attr-defined]
            try:
                yield
            finally:
                query.stop()
            return
        stop, started = app.Stop(), threading.Event()
        failed: list[BaseException] = []

        def drive() -> None:
            try:
                app.run(
                    self.pipeline(source, target),
                    self.folder,
                    emit=lambda event: started.set(),
                    stop=stop,
                    spark=self.spark,
                )
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=drive)
        thread.start()
        started.wait(60)
        try:
            yield
        finally:
            stop("the round is over")
            thread.join(120)
        if failed:
            raise failed[0]


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Put so many records into the topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    value = os.urandom(SIZE // 2).hex().encode()
    for number in range(count):
        record = b"%09d" % number + value[9:]
        while True:
            try:
                producer.produce(topic, value=record, partition=number % 8)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)
    wait_until(lambda: count_of(bootstrap, topic) == count, "all records to be there", 60)


def send_steadily(bootstrap: str, topic: str, seconds: float) -> None:
    """So many records a second, each with the time at which it was sent."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    began = time.monotonic()
    for number in range(int(RATE * seconds)):
        while time.monotonic() < began + number / RATE:
            producer.poll(0)
            time.sleep(0.0005)
        producer.produce(topic, value=struct.pack("!d", time.time()) + b"x" * (SIZE - 8), partition=number % 4)
    producer.flush(60)


@contextmanager
def watching(bootstrap: str, topic: str, sink: str) -> Iterator[list[float]]:
    """Inside, a consumer notes the milliseconds that each record took."""
    seen: list[float] = []
    end = threading.Event()
    level = "read_committed" if sink == "tailrace" else "read_uncommitted"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.subscribe([topic])

    def watch() -> None:
        while not end.is_set():
            for message in consumer.consume(1000, 0.05):
                value = message.value()
                if value is not None:
                    seen.append((time.time() - struct.unpack("!d", value[:8])[0]) * 1000)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join(30)
        consumer.close()


class _Listener(StreamingQueryListener):
    """Notes what Spark says of each batch."""

    def __init__(self, heard: list[tuple[int, float]]) -> None:
        self._heard = heard

    def onQueryStarted(self, event: object) -> None:  # noqa: N802 - PySpark's name
        """Nothing to note."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch, or a look at a source that had nothing."""
        progress = event.progress
        if progress.numInputRows:
            self._heard.append((progress.numInputRows, progress.durationMs["triggerExecution"] / 1000))

    def onQueryIdle(self, event: object) -> None:  # noqa: N802
        """Nothing to note."""

    def onQueryTerminated(self, event: object) -> None:  # noqa: N802
        """Nothing to note."""


def _is_spark(process: psutil.Process) -> bool:
    return any("org.apache.spark" in part for part in process.cmdline())


def _each(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)})"


def main(wanted: list[str]) -> None:
    """Run what is named, or all."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        settings = Pipeline.model_validate(
            {"pipeline": "bench", "source": {"topics": ["in"]}, "sink": {"topic": "out"}, "spark": SPARK}
        )
        spark = app.session(settings)
        (Path(folder) / "plain.py").write_text('def plain(frame):\n    return frame.select("value")\n')
        bench = Bench(kafka.bootstrap_servers, spark, Path(folder))
        spark.streams.addListener(_Listener(bench.heard))
        parts: dict[str, Callable[[], None]] = {"throughput": bench.throughput, "latency": bench.latency}
        try:
            for name in wanted or list(parts):
                parts[name]()
        finally:
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
