"""Passwords planted in the configuration appear nowhere: not in messages, pages, files or process arguments."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from cryptography.hazmat.primitives import serialization

from support.drivers import command, events, kill_tree
from support.pipelines import QUIET
from support.registry import schema_registry
from tailrace.config import Pipeline
from tailrace.kafka.rights import needed, to_create
from tailrace.testing import Record, Topics, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

WORDS = [f"planted-{name}-9f3b" for name in ("sasl", "key", "registry", "store", "worker")]
# Characters that need quoting precede the searched word, so that no way of quoting hides it.
SASL, KEY, REGISTRY, STORE, WORKER = (f'q"\\ {word}' for word in WORDS)
NEEDLES = [word.encode() for word in WORDS]
USER_INFO = f"reader:{REGISTRY}"
NEEDLES.append(base64.b64encode(USER_INFO.encode()))

FUNCTION = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    FOLDER = Path({folder!r})

    def shown(frame):
        session = frame.sparkSession
        (FOLDER / "page").write_text(session.sparkContext.uiWebUrl or "")

        def check(value):
            if (FOLDER / "broken").exists():
                raise ValueError("the function is broken")
            return value

        made = frame.select(F.udf(check, LongType())("id").alias("id"))
        plans = [made._jdf.queryExecution().toString(), made._jdf.queryExecution().logical().toJSON()]
        (FOLDER / "plans").write_text("".join(plans))
        return made
"""


def found_in(text: bytes) -> list[bytes]:
    """Return the planted words that the text contains."""
    return [needle for needle in NEEDLES if needle in text]


def test_planted_word_is_found() -> None:
    """Otherwise the search below would prove nothing."""
    quoted = json.dumps({"password": SASL}).encode()
    assert found_in(b"x" + SASL.encode() + b"y")
    assert found_in(quoted)
    assert found_in(base64.b64encode(USER_INFO.encode()))
    assert not found_in(b"planted")


class Arguments:
    """Collects the command lines of all processes under a driver while the context is active."""

    def __init__(self, pid: int) -> None:
        self._driver = psutil.Process(pid)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen: set[tuple[str, ...]] = set()

    def __enter__(self) -> Arguments:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)

    def _look(self) -> None:
        while not self._end.wait(0.02):
            with contextlib.suppress(psutil.Error):
                for each in [self._driver, *self._driver.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        self.seen.add(tuple(each.cmdline()))


def files(folder: Path) -> Iterator[Path]:
    """Yield every file below, except sockets and files that vanish."""
    for each in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if each.is_file():
                yield each


def leaks(folder: Path) -> list[str]:
    """Return the files below that contain a planted word."""
    found = []
    for each in files(folder):
        with contextlib.suppress(OSError):
            if words := found_in(each.read_bytes()):
                found.append(f"{each.relative_to(folder)}: {words}")
    return found


@pytest.fixture
def pipeline(tailrace_secured_kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[tuple[Path, Pipeline, Topics]]:
    """Yield a configuration that takes every kind of secret, only from variables, and its topics."""
    security, name = tailrace_secured_kafka.security, f"s-{uuid.uuid4().hex[:8]}"
    topics = Topics(security.administrator.bootstrap_servers, security.administrator.options)
    door, inside = security.user(name, SASL), tmp_path / "inside"
    for each in ("inside", "tmp", "events"):
        (tmp_path / each).mkdir()
    chain, key = (Path(security.certificate(name).options[f"ssl.{each}.location"]) for each in ("certificate", "key"))
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(KEY.encode())
    secret = inside / "client.key"
    secret.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    (inside / "out.avsc").write_text(
        json.dumps({"type": "record", "name": "Out", "fields": [{"name": "id", "type": "long"}]})
    )
    (inside / "shown.py").write_text("\n".join(line[4:] for line in FUNCTION.format(folder=str(tmp_path)).splitlines()))
    options = {**door.options, "sasl.password": "${PLANTED_SASL}"}
    options |= {"ssl.certificate.location": str(chain), "ssl.key.location": str(secret)}
    with schema_registry() as registry:
        data: dict[str, Any] = {
            "pipeline": name,
            "kafka": {"bootstrap.servers": door.bootstrap_servers, "options": options},
            "source": {"topics": [topics("in")], "format": "json", "schema": "id long"},
            "process": {"function": "shown.py:shown"},
            "sink": {"topic": topics("out"), "format": "avro", "schema": "out.avsc"},
            "ledger": {"topic": f"{name}.ledger", "partitions": 4},
            "spark": QUIET
            | {
                "spark.ui.enabled": "true",
                "spark.ui.port": "0",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": (tmp_path / "events").as_uri(),
                "spark.eventLog.compress": "false",
                "spark.local.dir": str(tmp_path / "tmp"),
                "spark.hadoop.fs.s3a.secret.key": "${PLANTED_STORE}",
                "spark.executorEnv.PLANTED_WORKER_PASSWORD": "${PLANTED_WORKER}",
            },
        }
        data["sink"]["registry"] = {
            "url": registry.url,
            "options": {"basic.auth.user.info": "reader:${PLANTED_REGISTRY}"},
        }
        (inside / "pipeline.yaml").write_text(yaml.safe_dump(data))
        checked = Pipeline.model_validate(data)
        security.allow(f"User:{name}", [*needed(checked), *to_create(checked)])
        yield inside / "pipeline.yaml", checked, topics


def variables(folder: Path, **more: str) -> dict[str, str]:
    """Return a driver's environment: secrets in variables, and all temporary files in one folder."""
    planted = {"PLANTED_SASL": SASL, "PLANTED_REGISTRY": REGISTRY, "PLANTED_STORE": STORE, "PLANTED_WORKER": WORKER}
    own = {"TAILRACE_KAFKA__OPTIONS__SSL_KEY_PASSWORD": KEY, "TAILRACE_LOG": "debug", "TMPDIR": str(folder / "tmp")}
    return os.environ | planted | own | more


@pytest.mark.takes(45)
def test_planted_secrets_appear_nowhere(tmp_path: Path, pipeline: tuple[Path, Pipeline, Topics]) -> None:
    """This covers a refused start, a run that delivers, and a function that raises, with all logs at debug."""
    file, checked, topics = pipeline

    def feed(*values: bytes) -> None:
        records = [Record(each) for each in values]
        produce(topics.bootstrap_servers, checked.source.topics[0], records, options=topics.options)

    feed(b'{"id": 1}', b"{broken")

    refused = subprocess.run(
        command(file, "--batch"), env=variables(tmp_path, PLANTED_SASL=SASL[::-1]), capture_output=True, timeout=120
    )
    assert b"TR-208" in refused.stderr
    assert not found_in(refused.stdout + refused.stderr)
    assert SASL[::-1].encode() not in refused.stdout + refused.stderr

    with driver(file, tmp_path, "run") as (process, arguments, log):
        wait_until(lambda: idle(process, log), "the pipeline to have drained", 280)
        assert leaks(tmp_path / "tmp") == []  # while all files exist
        page = (tmp_path / "page").read_text()
        [application] = json.loads(fetched(f"{page}/api/v1/applications"))
        settings = f"api/v1/applications/{application['id']}/environment"
        places = ("SQL/", "StreamingQuery/", "jobs/", settings)
        assert {place: found_in(fetched(f"{page}/{place}")) for place in places} == {each: [] for each in places}
        assert b"PLANTED_WORKER_PASSWORD" in fetched(f"{page}/{settings}")  # the name is shown, its value is not
        assert shown_by(log) == []
        (tmp_path / "broken").touch()
        feed(b'{"id": 2}')
        assert process.wait(280) == 5
    assert [each["error"] for each in events(log) if "error" in each] == ["TR-401"]

    seen = {" ".join(each) for each in arguments.seen}
    assert any("java" in each for each in seen)
    assert any("tailrace.gateway.server" in each for each in seen)
    assert [each for each in seen if found_in(each.encode())] == []
    assert leaks(tmp_path) == []  # logs, events, plans
    assert list(files(tmp_path / "events"))
    assert len((tmp_path / "run.err").read_bytes()) > 100_000  # debug
    assert (tmp_path / "plans").stat().st_size > 1000
    kept = consume(topics.bootstrap_servers, checked.ledger.topic, options=topics.options, isolation="read_uncommitted")
    assert kept
    assert not found_in(b"".join((each.value or b"") + (each.key or b"") for each in kept))


def idle(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Return whether the pipeline has reported to be idle; fail if the driver has ended."""
    assert process.poll() is None, log.with_suffix(".err").read_text(errors="replace")[-3000:]
    return any(each["event"] == "idle" for each in events(log))


def shown_by(log: Path) -> list[str]:
    """Return the pages of the driver's port, and of its gateways' metrics, that contain a planted word."""
    (own,) = (each["url"] for each in events(log) if each["event"] == "serving")
    pages = [f"{own}{name}" for name in ("", "metrics", "status", "targets", "healthz", "readyz")]
    targets = json.loads(fetched(f"{own}targets"))
    gateways = [place for each in targets if each["labels"]["component"] == "gateway" for place in each["targets"]]
    assert gateways
    pages += [f"http://{each}/metrics" for each in gateways]
    return [page for page in pages if found_in(fetched(page))]


def fetched(url: str) -> bytes:
    """Fetch a page of the driver, of Spark or of a gateway."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
        return content


@contextlib.contextmanager
def driver(file: Path, folder: Path, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Arguments, Path]]:
    """Run a driver with its output in files, and watch the command lines of its processes."""
    log = folder / f"{name}.log"
    with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            command(file, "--output", "json"), stdout=out, stderr=err, env=variables(folder), start_new_session=True
        )
    try:
        with Arguments(process.pid) as arguments:
            yield process, arguments, log
    finally:
        kill_tree(process)
        process.wait(30)
