"""The section `offsets`: which keys go together, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config import Pipeline
from tailrace.config.file import load
from tailrace.errors import ConfigInvalid
from tailrace.progress.zookeeper import node_of, settings_of


def pipeline(offsets: dict[str, Any], **source: Any) -> Pipeline:
    """Return a pipeline with this section."""
    return Pipeline.model_validate(
        {"pipeline": "p", "source": source or {"topics": ["in"]}, "sink": {"topic": "out"}, "offsets": offsets}
    )


ZOOKEEPER = {"store": "zookeeper", "servers": "zk:2181"}


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({"store": "zookeeper"}, "needs `servers`"),
        ({"store": "file"}, "needs a `path`"),
        ({"path": "x"}, "goes with store zookeeper or file"),
        ({"servers": "x:1"}, "go with store zookeeper"),
        (ZOOKEEPER | {"from": "g"}, "goes with store kafka"),
        (ZOOKEEPER | {"path": "x/{topic}"}, "begins with /"),
        (ZOOKEEPER | {"path": "/x/"}, "begins with /"),
        (ZOOKEEPER | {"options": {"digest.username": "u"}}, "go together"),
        (ZOOKEEPER | {"options": {"timeout.ms": "soon"}}, "number of milliseconds"),
        (ZOOKEEPER | {"options": {"sasl.jaas": "x"}}, "unknown Kafka option"),
        ({"from": "tailrace.p"}, "the pipeline's own"),
    ],
)
def test_contradicting_keys_are_refused(offsets: dict[str, Any], why: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigInvalid, match=why):
        pipeline(offsets)


def test_node_for_several_topics_must_have_the_topic_in_its_path() -> None:
    """Otherwise one topic's offsets would overwrite the other's."""
    with pytest.raises(ConfigInvalid, match=r"must contain \{topic\}"):
        pipeline(ZOOKEEPER | {"path": "/x"}, topics=["a", "b"])
    with pytest.raises(ConfigInvalid, match=r"must contain \{topic\}"):
        pipeline(ZOOKEEPER | {"path": "/x"}, pattern="a.*")
    assert node_of(pipeline(ZOOKEEPER | {"path": "/x"}), "in") == "/x"
    assert node_of(pipeline(ZOOKEEPER | {"path": "/x/{topic}"}, topics=["a", "b"]), "b") == "/x/b"


def test_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    """As for every other section."""
    file = tmp_path / "p.yaml"
    file.write_text("pipeline: p\nsource: {topics: [in]}\nsink: {topic: out}\noffsets:\n  stor: file\n")
    with pytest.raises(ConfigInvalid, match=r"p\.yaml:5.*stor"):
        load(file)


def test_secrets_reach_the_client_and_no_text() -> None:
    """A pipeline is printed in messages; its ZooKeeper's passwords are not."""
    options = {"digest.username": "u", "digest.password": "hush-1", "sasl.username": "s", "sasl.password": "hush-2"}
    made = pipeline(ZOOKEEPER | {"options": options})
    settings = settings_of(made)
    assert settings["auth_data"] == [("digest", "u:hush-1")]
    assert settings["sasl_options"] == {"mechanism": "DIGEST-MD5", "username": "s", "password": "hush-2"}
    assert len(settings["default_acl"]) == 2
    assert "hush" not in f"{made!r} {made}"


def test_class_of_the_users_may_be_the_store() -> None:
    """It checks its own keys."""
    found = pipeline({"store": "my_package.stores:Redis", "path": "a", "options": {"anything": "1"}}).offsets
    assert found.store == "my_package.stores:Redis"


@pytest.mark.parametrize(
    ("store", "hint"), [("zokeeper", "; did you mean 'zookeeper'?"), ("redis", ""), ("a.b:", ""), (":C", "")]
)
def test_unknown_store_is_refused_with_the_known_ones(store: str, hint: str) -> None:
    """The message says what else may stand there."""
    with pytest.raises(ConfigInvalid) as caught:
        pipeline({"store": store})
    assert f"{store!r} is not kafka, zookeeper, file or package.module:Class{hint}" in str(caught.value)
