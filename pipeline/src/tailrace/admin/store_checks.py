"""The doctor's check of an object store that holds a checkpoint, with the client that Spark will use.

It starts a Java process with Hadoop's S3A but without Spark, so that the answer is reliable and quick.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace import jars
from tailrace.admin.checks import Check, fail, ok, warn
from tailrace.config import Pipeline
from tailrace.errors import TailraceError
from tailrace.spark_stream.storage import HADOOP, hidden, settings

NAME = "checkpoint"
_LOGGING = Path(__file__).resolve().parents[1] / "startup" / "log4j2.properties"
_RIGHTS = (
    "the credentials need s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject on the prefix"
)


def store(pipeline: Pipeline) -> Iterator[Check]:
    """Check that the checkpoint's place can be listed, written, and deleted from."""
    from py4j.protocol import Py4JJavaError

    doing, hint = "starting Java", "python -m tailrace.jars s3"
    try:
        gateway = _gateway(pipeline)
        try:
            jvm = gateway.jvm
            hadoop = jvm.org.apache.hadoop.conf.Configuration()
            for name, value in (settings(pipeline) | pipeline.spark).items():
                if name.startswith(HADOOP):
                    hadoop.set(name.removeprefix(HADOOP), value)
            base = jvm.org.apache.hadoop.fs.Path(pipeline.checkpoint.rstrip("/"))
            doing, hint = "opening", "check fs.s3a.endpoint, the network and the credentials"
            files = base.getFileSystem(hadoop)
            doing, hint = "listing", f"create the bucket, or check its name; {_RIGHTS}"
            _listed(files, base.getParent())
            probe = jvm.org.apache.hadoop.fs.Path(base, f"doctor-{uuid.uuid4().hex[:8]}")
            doing, hint = "writing to", _RIGHTS
            _put(files, probe)
            try:
                conditional = _refuses_twice(files, probe)
            finally:
                doing = "deleting from"
                files.delete(probe, False)
        except Py4JJavaError as error:  # read its text while Java still runs
            said = next(iter(str(error.java_exception.toString()).splitlines()), "")
            yield fail(NAME, f"{doing} {pipeline.checkpoint}: {said[:300]}", hint)
            return
        finally:
            _end(gateway)
    except TailraceError as error:
        yield fail(NAME, error.what, error.then)
        return
    found = f"{pipeline.checkpoint} can be listed, written, and deleted from"
    if conditional:
        yield ok(NAME, f"{found}; it honours If-None-Match")
    else:
        yield warn(NAME, f"{found}; it overwrites in spite of If-None-Match", "use a store with conditional writes")


def _listed(files: Any, folder: Any) -> None:
    """Raise if the store refuses to list; the prefix may not exist yet, and a part of it neither."""
    from py4j.protocol import Py4JJavaError

    try:
        files.listStatusIterator(folder).hasNext()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() != "java.io.FileNotFoundException":
            raise


def _put(files: Any, path: Any) -> None:
    """Write an object on condition that it does not exist."""
    stream = files.createFile(path).overwrite(False).opt("fs.s3a.create.performance", "true").build()
    stream.write(b"tailrace doctor")
    stream.close()


def _refuses_twice(files: Any, path: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _put(files, path)
    except Py4JJavaError:
        return True
    return False


def _gateway(pipeline: Pipeline) -> Any:
    jars.java()
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf(loadDefaults=False)
    chosen = settings(pipeline) | pipeline.spark
    for name, value in chosen.items():
        if name not in hidden(chosen):
            conf.set(name, value)
    conf.set("spark.jars", ",".join(map(str, jars.ensure("s3"))))
    conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    return launch_gateway(conf)  # type: ignore[no-untyped-call]


def _end(gateway: Any) -> None:
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # Spark's gateway ends with its standard input
    process.wait(20)
