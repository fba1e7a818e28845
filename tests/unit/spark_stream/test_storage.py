"""Where state may be kept, and how Spark is configured for it."""

from __future__ import annotations

import pytest

from tailrace.config import Pipeline
from tailrace.errors import ConfigInvalid
from tailrace.spark_stream.storage import SCRATCH, hidden, on_s3, settings

ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


def pipeline(checkpoint: str, **spark: str) -> Pipeline:
    """Return a pipeline with this checkpoint."""
    text = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out"}, "checkpoint": checkpoint}
    return Pipeline.model_validate(text | {"spark": {name.replace("_", "."): value for name, value in spark.items()}})


@pytest.mark.parametrize("place", ["ledger", "state/", "/var/state", "file:///var/state", "s3a://bucket/a/prefix-1"])
def test_a_valid_checkpoint_is_accepted(place: str) -> None:
    """The ledger, folders and prefixes of a bucket are valid as they are."""
    assert pipeline(place).checkpoint == place


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://bucket/prefix", "s3a://bucket/prefix"),
        ("S3A://bucket/prefix", "s3a://bucket/prefix"),
        ("hdfs://name/path", "not hdfs:"),
        ("s3a://bucket", "the prefix is this pipeline's own"),
        ("s3a://bucket/", "the prefix is this pipeline's own"),
        ("s3a:/bucket/prefix", "s3a://bucket/prefix"),
        ("s3a://Bucket/prefix", "lower-case"),
        ("s3a://KEY:SECRET@bucket/prefix", "without credentials"),
        ("s3a://bucket/pre?fix", "s3a://bucket/prefix"),
        ("s3a://bucket/../other", "s3a://bucket/prefix"),
    ],
)
def test_an_invalid_checkpoint_is_refused(place: str, words: str) -> None:
    """Other schemes, a bucket without a prefix, and credentials in the address are refused, with a valid form."""
    with pytest.raises(ConfigInvalid, match="checkpoint") as refused:
        pipeline(place)
    assert words in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_state_on_a_disk_needs_no_object_store() -> None:
    """A folder gets RocksDB and changelogs, and neither S3A nor its checkpoint manager; the ledger gets nothing."""
    assert settings(pipeline("ledger")) == SCRATCH
    chosen = settings(pipeline("file:/var/state"))
    assert any("RocksDB" in value for value in chosen.values())
    assert not any("s3a" in name or "Abortable" in value for name, value in chosen.items())
    assert not on_s3(pipeline("file:/var/state"))


def test_a_custom_endpoint_has_its_buckets_in_the_path() -> None:
    """Without a custom endpoint, bucket names are host names."""
    own = settings(pipeline("s3a://bucket/p", **{ENDPOINT: "http://minio:9000"}))
    assert own["spark.hadoop.fs.s3a.path.style.access"] == "true"
    for amazons in (
        pipeline("s3a://bucket/p"),
        pipeline("s3a://bucket/p", **{ENDPOINT: "https://s3.eu-central-1.amazonaws.com"}),
    ):
        assert "spark.hadoop.fs.s3a.path.style.access" not in settings(amazons)


def test_keys_of_an_object_store_are_kept_out_of_arguments() -> None:
    """Every setting for Hadoop that names a key, a secret or a token is held back; the others are not."""
    given = {
        "spark.hadoop.fs.s3a.access.key": "a",
        "spark.hadoop.fs.s3a.secret.key": "b",
        "spark.hadoop.fs.s3a.session.token": "c",
        "spark.hadoop.fs.s3a.bucket.mine.secret.key": "d",
        "spark.hadoop.fs.s3a.encryption.key": "e",
        "spark.hadoop.fs.s3a.endpoint": "http://minio:9000",
        "spark.master": "local[2]",
    }
    assert set(given) - set(hidden(given)) == {"spark.hadoop.fs.s3a.endpoint", "spark.master"}
