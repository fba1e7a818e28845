"""A stateful pipeline with its checkpoint on a real MinIO: it resumes from exactly what it wrote, or stops."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from support.minio import BUCKET, KEY, SECRET, Fault, Minio, Proxy, minio, proxy, reach
from support.pipelines import QUIET
from tailrace import errors
from tailrace.cli.main import app
from tailrace.config import Pipeline, Sink, Source, file
from tailrace.demo.example import example, load
from tailrace.demo.feed import create_topics, feed, kafka_at
from tailrace.demo.proof import compare, source_of
from tailrace.driver.shutdown import Stop
from tailrace.kafka.reader import read
from tailrace.spark_stream.storage import prepare
from tailrace.startup import run
from tailrace.startup.watcher import RunWatcher
from tailrace.status.events import BatchPlanned, Emit, Event, ignored
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1500),
    pytest.mark.takes(90),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """Start one MinIO for all tests."""
    with minio(tmp_path_factory.mktemp("minio")) as running:
        yield running


@pytest.fixture
def faulty(store: Minio) -> Iterator[Proxy]:
    """Start a proxy to MinIO that injects the faults a test chooses."""
    with proxy(store.endpoint) as between:
        yield between


@pytest.fixture(autouse=True)
def plain(spark: SparkSession) -> Iterator[None]:
    """Leave the shared session as other tests expect it: for checkpoints on a disk."""
    yield
    prepare(spark, Pipeline(pipeline="tests", source=Source(topics=["in"]), sink=Sink(topic="out"), spark=QUIET))


class Words:
    """The stateful example, with its own topics, ledger and prefix."""

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.bootstrap, self.name, self.folder = bootstrap, name, folder
        self.example = example("windowed-counts")
        self.generator = load(self.example.generator)
        self.messages = self.generator.messages(0)
        self.source, self.sink = f"{name}-words", f"{name}-counts"
        # One partition, so that no event is late: Spark may read one partition faster than another.
        create_topics(bootstrap, [self.source, self.sink], 1)

    def send(self, count: int) -> None:
        """Write the next words."""
        feed(itertools.islice(self.messages, count), self.bootstrap, self.source, count=count)

    def environment(self, endpoint: str) -> dict[str, str]:
        """Return the environment that completes the pipeline's file."""
        return {
            **os.environ,
            **reach(endpoint),
            "TAILRACE_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "TAILRACE_PIPELINE": self.name,
            "TAILRACE_SOURCE__TOPICS": f"[{self.source}]",
            "TAILRACE_SINK__TOPIC": self.sink,
            "TAILRACE_CHECKPOINT": f"s3a://{BUCKET}/{self.name}",
            "TAILRACE_BATCH__MAX_RECORDS": "400",
        }

    def command(self) -> list[str]:
        """Return the command that runs the pipeline over the existing records."""
        return [
            sys.executable,
            "-m",
            "tailrace.cli.main",
            "run",
            str(self.example.pipeline),
            "--batch",
            "--output",
            "json",
        ]

    def run(
        self,
        spark: SparkSession,
        endpoint: str,
        stop: Stop | None = None,
        *,
        function: str = "",
        emit: Emit = ignored,
    ) -> None:
        """Run over the existing records, in this process; with a `stop`, until it is requested."""
        # Hadoop caches one client per bucket.
        keys = {"fs_s3a_access_key": KEY, "fs_s3a_secret_key": SECRET, "fs_s3a_impl_disable_cache": "true"}
        keys |= {"fs_s3a_attempts_maximum": "1", "fs_s3a_retry_limit": "1"}  # faults stay until the run has ended
        more = {f"TAILRACE_SPARK__spark_hadoop_{name}": value for name, value in keys.items()}
        if function:
            more |= {"TAILRACE_PROCESS__FUNCTION": function}
        with patch.dict(os.environ, self.environment(endpoint) | more):
            loaded = file.load(self.example.pipeline)
        run.run(loaded.pipeline, loaded.folder, batch=stop is None, stop=stop, spark=spark, emit=emit)

    def prove(self) -> None:
        """Check the output against the example's own rules."""
        kafka = kafka_at(self.bootstrap)
        went_in = list(read(kafka, self.source))
        expected = self.example.expected(went_in)
        assert expected.outputs
        outputs = Counter(self.example.identity(record) for record in read(kafka, self.sink))
        refused = Counter(source_of(record) for record in read(kafka, f"{self.name}.rejected"))
        verdict = compare(len(went_in), expected, outputs, refused)
        assert verdict.holds, f"{verdict.line()}: {verdict.wrong}"


@pytest.fixture
def words(tailrace_kafka: EmbeddedKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Words:
    """Return a stateful pipeline of the test's own."""
    name = f"words-{abs(hash(request.node.name)) % 10**8}"
    return Words(tailrace_kafka.bootstrap_servers, name, tmp_path)


def once(method: str, ending: str, fault: Fault) -> Any:
    """Return a judge that injects this fault into every attempt on one object."""
    return lambda asked, path: fault if asked == method and path.partition("?")[0].endswith(ending) else None


def test_state_on_minio_survives_restarts(words: Words, store: Minio, spark: SparkSession) -> None:
    """Windows that span two runs count all their events, and no object is renamed."""
    for count in (1100, 1500):
        words.send(count)
        words.run(spark, store.endpoint)
    words.prove()
    objects = store.objects(words.name)
    assert f"{words.name}/metadata" in objects
    assert any(name.endswith(".changelog") for name in objects)
    assert not [name for name in objects if ".tmp" in name]


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"state/0/1/2.changelog": Fault.REFUSE, "commits/1": Fault.CUT}, marks=pytest.mark.slow),
        pytest.param(
            {
                "metadata": Fault.REFUSE,
                "state/0/_metadata/metadata": Fault.FORBID,
                "state/0/0/1.changelog": Fault.CUT,
                "offsets/1": Fault.FORBID,
            },
            marks=pytest.mark.long,
        ),
    ],
    ids=["state-and-commit", "others"],
)
def test_failed_write_ends_the_run_and_the_next_continues(
    words: Words, faulty: Proxy, store: Minio, spark: SparkSession, faults: dict[str, Fault]
) -> None:
    """A PUT that the store refuses stops the pipeline with TR-405; each run continues after the one before."""
    words.send(1500)
    for missing, fault in faults.items():
        struck = len(faulty.faults)
        faulty.judge = once("PUT", f"/{words.name}/{missing}", fault)
        with pytest.raises(errors.CheckpointFailed) as raised:
            words.run(spark, faulty.endpoint)
        assert len(faulty.faults) > struck, missing
        assert SECRET not in str(raised.value)
    faulty.judge = lambda method, path: None
    events: list[Event] = []
    words.run(spark, faulty.endpoint, emit=events.append)
    words.prove()
    assert {f"{words.name}/{each}" for each in faults} <= set(store.objects(words.name))
    if "commits/1" in faults:  # the batch is not repeated, as its records may be gone by now
        assert [each.batch for each in events if isinstance(each, BatchPlanned)][:1] == [2]


@pytest.mark.slow
def test_first_batch_is_not_planned_before_the_store_has_where_it_begins(
    words: Words, faulty: Proxy, store: Minio, spark: SparkSession
) -> None:
    """Without that object, a replay of the batch would begin at the latest offset."""
    words.send(1500)
    beginning = f"{words.name}/sources/0/0"
    faulty.judge = once("PUT", f"/{beginning}", Fault.REFUSE)
    with pytest.raises(errors.CheckpointFailed, match="sources/0/0"):
        words.run(spark, faulty.endpoint)
    assert faulty.faults
    assert f"{words.name}/offsets/0" in store.objects(words.name)
    faulty.judge = lambda method, path: None
    words.run(spark, faulty.endpoint)
    assert beginning in store.objects(words.name)
    words.prove()


@pytest.mark.slow
def test_first_batch_begins_where_it_was_planned_when_the_store_has_lost_that(
    words: Words, faulty: Proxy, store: Minio, spark: SparkSession
) -> None:
    """A start writes it again, and ends if the store refuses that."""
    words.send(1500)
    faulty.judge = once("PUT", f"/{words.name}/state/0/0/1.changelog", Fault.REFUSE)
    with pytest.raises(errors.CheckpointFailed, match="after batch 0"):
        words.run(spark, faulty.endpoint)
    beginning = f"{words.name}/sources/0/0"
    shutil.rmtree(store.data / BUCKET / words.name / "sources")
    assert beginning not in store.objects(words.name)
    faulty.judge = once("PUT", f"/{beginning}", Fault.REFUSE)
    with pytest.raises(errors.CheckpointFailed, match="sources/0/0"):
        words.run(spark, faulty.endpoint)
    faulty.judge = lambda method, path: None
    words.run(spark, faulty.endpoint)
    words.prove()


@pytest.mark.parametrize("function", ["marked", "plain"])
def test_function_without_state_runs_with_a_checkpoint_on_minio(
    words: Words, store: Minio, spark: SparkSession, function: str
) -> None:
    """A watermark alone has no state, and neither has a projection: each run delivers its records once."""
    code = words.folder / "plain.py"
    code.write_text(
        "def marked(words, **arguments):\n    return plain(words.withWatermark('at', '1 minute'))\n\n\n"
        "def plain(words, **arguments):\n    return words.select('word')\n"
    )
    for count in (100, 150):
        words.send(count)
        words.run(spark, store.endpoint, function=f"{code}:{function}")
    topics = words.sink, f"{words.name}.rejected"
    assert sum(len(list(read(kafka_at(words.bootstrap), topic))) for topic in topics) == 250


def test_stop_leaves_the_pipeline_to_a_standby_when_spark_has_noted_the_last_batch(
    words: Words, faulty: Proxy, store: Minio, spark: SparkSession
) -> None:
    """A standby that did not see the note would delete the state that the next batch needs."""
    words.send(100)
    stop, held = Stop(), threading.Event()
    noted = f"{words.name}/commits/0"

    def slow(method: str, path: str) -> None:
        if method == "PUT" and path.partition("?")[0].endswith(noted):
            stop("the test")
            held.wait(2.0)

    seen: list[bool] = []
    faulty.judge = slow
    with patch.object(RunWatcher, "left", lambda watcher: seen.append(noted in store.objects())):
        words.run(spark, faulty.endpoint, stop)
    assert seen == [True]


@pytest.mark.slow
def test_configured_keys_are_in_no_process_arguments(words: Words, store: Minio) -> None:
    """Keys under `spark:` reach the store, and no process shows them in its arguments."""
    words.send(100)
    environment = words.environment(store.endpoint)
    for name, key in (("AWS_ACCESS_KEY_ID", "access_key"), ("AWS_SECRET_ACCESS_KEY", "secret_key")):
        environment[f"TAILRACE_SPARK__spark_hadoop_fs_s3a_{key}"] = environment.pop(name)
    with (words.folder / "run.log").open("wb") as log:
        process = subprocess.Popen(words.command(), env=environment, stdout=log, stderr=log)
    arguments: list[str] = []
    try:
        while process.poll() is None:
            with suppress(psutil.Error):
                family = psutil.Process(process.pid).children(recursive=True)
                arguments += [" ".join(each.cmdline()) for each in family]
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
    finally:
        process.kill()
        process.wait(20)
    said = (words.folder / "run.log").read_text()
    assert process.returncode == 0, said[-3000:]
    assert any(store.endpoint in each for each in arguments)
    assert not any(SECRET in each for each in arguments)
    assert SECRET not in said


def doctor(words: Words, environment: dict[str, str]) -> dict[str, str]:
    """Return the doctor's finding on the checkpoint."""
    line = ["doctor", str(words.example.pipeline), "--output", "json"]
    with patch.dict(os.environ, environment, clear=True):
        done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert SECRET not in done.output
    (found,) = [each for each in json.loads(done.stdout)["checks"] if each["name"] == "checkpoint"]
    return dict(found)


@pytest.mark.slow
def test_doctor_checks_the_store(words: Words, store: Minio) -> None:
    """It reports a working store and leaves nothing in it; it names a wrong key or bucket."""
    before = store.objects()
    right = doctor(words, words.environment(store.endpoint))
    assert (right["state"], "honours If-None-Match" in right["found"]) == ("ok", True), right
    assert store.objects() == before
    deep = doctor(words, words.environment(store.endpoint) | {"TAILRACE_CHECKPOINT": f"s3a://{BUCKET}/new/p"})
    assert deep["state"] == "ok", deep
    wrong = doctor(words, words.environment(store.endpoint) | {"AWS_SECRET_ACCESS_KEY": "another"})
    assert wrong["state"] == "fail"
    nowhere = doctor(words, words.environment(store.endpoint) | {"TAILRACE_CHECKPOINT": "s3a://no-such-bucket/p"})
    assert nowhere["state"] == "fail"
    assert "create the bucket" in nowhere["hint"]


@pytest.mark.long
@pytest.mark.timeout(700)  # a demo with a kill, five times slower on a busy machine
def test_demo_with_state_on_minio_proves_its_counts(store: Minio, tmp_path: Path) -> None:
    """After a kill -9 of the driver in mid-batch, every count of every window is right and appears once."""
    command = [sys.executable, "-m", "tailrace.cli.main", "demo", "--example", "windowed-counts", "--for", "15s"]
    command += ["--rate", "500", "--kills", "1", "--checkpoint", f"s3a://{BUCKET}/demo", "--output", "json"]
    environment = {**os.environ, **store.environment, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert (result["lost"], result["duplicated"], result["unexpected"], result["kills"]) == (0, 0, 0, 1)
    assert result["out"] > 0
    assert store.objects(result["checkpoint"].removeprefix(f"s3a://{BUCKET}/"))
