"""Secrets on their way to Spark, options that reach outside, and keys in the form that Java reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from tailrace import errors
from tailrace.config import Kafka, Pipeline
from tailrace.errors import ConfigInvalid
from tailrace.kafka.java_client import spark_options
from tailrace.startup.secret_settings import _escaped, handed_over, secrets

OUTWARD = [
    "bearer.auth.issuer.endpoint.url",
    "client.interceptor",
    "config.providers",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "group.id",
    "https.ca.location",
    "interceptor.classes",
    "metric.reporters",
    "plugin.library.paths",
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.kerberos.keytab",
    "sasl.kerberos.kinit.cmd",
    "sasl.login.class",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.token.endpoint.url",
    "security.providers",
    "ssl.engine.factory.class",
    "ssl.engine.location",
    "ssl.keystore.location",
    "ssl.providers",
    "ssl.truststore.location",
    "stats_cb",
    "transactional.id",
]
PLACES: list[tuple[str, ...]] = [
    ("kafka", "options"),
    ("source", "options"),
    ("sink", "options"),
    ("offsets", "options"),
    ("source", "registry", "options"),
    ("sink", "registry", "options"),
]


def pipeline(**changes: Any) -> Pipeline:
    """Return a complete pipeline with some of its sections changed."""
    full = {"pipeline": "copy", "source": {"topics": ["orders"]}, "sink": {"topic": "copies"}}
    return Pipeline.model_validate(full | changes)


@pytest.mark.parametrize("place", PLACES, ids=".".join)
@pytest.mark.parametrize("name", OUTWARD)
def test_an_option_that_reads_runs_or_calls_is_refused_everywhere(place: tuple[str, ...], name: str) -> None:
    """Of files, classes, libraries and addresses, only certificates and keys are read."""
    sections: dict[str, Any] = {
        "kafka": {},
        "source": {"topics": ["a"], "format": "avro", "schema": "a.avsc", "registry": {"url": "http://r"}},
        "sink": {"topic": "b", "format": "avro", "schema": "b.avsc", "registry": {"url": "http://r"}},
        "offsets": {"store": "zookeeper", "servers": "z:2181"},
    }
    pipeline(**sections)
    inner = sections
    for part in place:
        inner = inner.setdefault(part, {})
    inner[name] = "x"
    with pytest.raises(ConfigInvalid, match=name):
        pipeline(**sections)


def test_no_token_is_fetched_for_a_registry() -> None:
    """A fixed token may be given; other sources call an address or a function."""
    static = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "x"}
    source = {"topics": ["a"], "format": "avro", "schema": "a.avsc"}
    pipeline(source=source | {"registry": {"url": "http://r", "options": static}})
    for other in ("OAUTHBEARER", "CUSTOM", "SASL_OAUTHBEARER_AZURE_IMDS"):
        options = {"bearer.auth.credentials.source": other}
        with pytest.raises(ConfigInvalid, match="does not fetch tokens"):
            pipeline(source=source | {"registry": {"url": "http://r", "options": options}})


def test_sparks_own_settings_for_kafka_clients_are_refused() -> None:
    """spark.kafka.clusters.* would give clients options that are on no list."""
    with pytest.raises(ConfigInvalid, match=r"use kafka\.options"):
        pipeline(spark={"spark.kafka.clusters.x.ssl.truststore.location": "/etc/passwd"})
    pipeline(spark={"spark.kafka.consumer.cache.capacity": "4096"})  # not an option of a client


def test_settings_that_hold_a_secret_are_recognised() -> None:
    """Their names show it."""
    given = {
        "spark.hadoop.fs.s3a.secret.key": "a",
        "spark.hadoop.fs.s3a.access.key": "b",
        "spark.executorEnv.DB_PASSWORD": "c",
        "spark.ssl.keyPassword": "d",
        "spark.redaction.regex": "e",
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
    }
    assert sorted(secrets(given).values()) == ["a", "b", "c", "d"]


def test_secrets_are_in_a_private_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other user can read it, it is deleted afterwards, and the user's own arguments are kept."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name x pyspark-shell")
    with handed_over({"spark.executorEnv.DB_PASSWORD": "hunter 2"}):
        given = os.environ["PYSPARK_SUBMIT_ARGS"]
        file = Path(given.split("--properties-file ")[1].split()[0])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "hunter" not in given
        assert given.endswith(" --name x pyspark-shell")
        assert "hunter\\u00202" in file.read_text()
    assert not file.exists()
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--name x pyspark-shell"


def test_no_file_is_written_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts as usual."""
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    with handed_over({}):
        assert "PYSPARK_SUBMIT_ARGS" not in os.environ


@given(st.text())
def test_any_secret_survives_the_file(text: str) -> None:
    """Quotes, backslashes, line ends and every script are written as letters, digits and numbers."""
    written = _escaped(text.encode("utf-8", "replace").decode())
    assert written.isascii()
    assert not set(written) & set(" =:#!\n\r\t\"'")
    back = written.encode().decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")
    assert back == text.encode("utf-8", "replace").decode()


PASSWORD = "hunter2"
FORMS = {
    "PKCS 8": (serialization.PrivateFormat.PKCS8, False),
    "PKCS 1 or SEC 1": (serialization.PrivateFormat.TraditionalOpenSSL, False),
    "encrypted by OpenSSL": (serialization.PrivateFormat.PKCS8, True),
    "encrypted in the old way": (serialization.PrivateFormat.TraditionalOpenSSL, True),
}


@pytest.mark.parametrize("kind", ["ec", "rsa"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_key_reaches_java_in_a_readable_form(tmp_path: Path, form: str, kind: str) -> None:
    """It arrives in PKCS 8, decrypted; the password is not passed on."""
    private = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa.generate_private_key(65537, 2048)
    style, locked = FORMS[form]
    lock = serialization.BestAvailableEncryption(PASSWORD.encode()) if locked else serialization.NoEncryption()
    (tmp_path / "a.key").write_bytes(private.private_bytes(serialization.Encoding.PEM, style, lock))
    (tmp_path / "a.crt").write_text("CERTIFICATE")
    options = {"ssl.certificate.location": str(tmp_path / "a.crt"), "ssl.key.location": str(tmp_path / "a.key")}
    if locked:
        options["ssl.key.password"] = PASSWORD
    made = spark_options(Kafka(options=options))
    assert made["kafka.ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert made["kafka.ssl.keystore.certificate.chain"] == "CERTIFICATE"
    assert made["kafka.ssl.keystore.type"] == "PEM"
    assert PASSWORD not in str(made)


@pytest.mark.parametrize("password", ["wrong-one", None])
def test_a_key_with_a_wrong_password_is_reported(tmp_path: Path, password: str | None) -> None:
    """The message contains neither the password nor the key."""
    lock = serialization.BestAvailableEncryption(PASSWORD.encode())
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock).decode()
    options = {"ssl.key.pem": text, "ssl.certificate.pem": "x"} | ({"ssl.key.password": password} if password else {})
    with pytest.raises(errors.KeyUnreadable) as caught:
        spark_options(Kafka(options=options))
    assert str(password) not in str(caught.value) or password is None
    assert text.splitlines()[1] not in str(caught.value)


def test_a_missing_key_is_reported(tmp_path: Path) -> None:
    """The message has its path."""
    options = {"ssl.certificate.location": str(tmp_path / "none.crt"), "ssl.key.location": "x"}
    with pytest.raises(errors.KeyUnreadable, match=r"none\.crt"):
        spark_options(Kafka(options=options))
