"""The offset store in ZooKeeper, in the format of hand-written jobs: a node for each topic, one write per batch.

kazoo is an extra (`tailrace[zookeeper]`), so this module is imported only by a pipeline that uses it. If a node was
changed by somebody else since this driver wrote it, that is reported, and only the next batch overwrites it. So a
driver that was paused and fenced meanwhile never replaces a newer position with an old one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from tailrace.config import Pipeline
from tailrace.errors import ExtraMissing, OffsetStoreUnusable
from tailrace.progress.positions import Place, Positions, from_node, to_node

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE
except ImportError as error:
    raise ExtraMissing.of("zookeeper", "offsets.store: zookeeper", error) from error

TIMEOUT_MS = 10_000
_FAILURES = (KazooException, KazooTimeoutError, OSError)


def node_of(pipeline: Pipeline, topic: str) -> str:
    """Return the node of a topic's offsets."""
    path = pipeline.offsets.path or f"/tailrace/{pipeline.pipeline}/offsets/{{topic}}"
    return path.replace("{topic}", topic)


def settings_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return the client's settings. They include the secrets, so they must not be shown."""
    options = pipeline.offsets.options
    settings: dict[str, Any] = {
        "hosts": pipeline.offsets.servers,
        "timeout": int(options.get("timeout.ms", TIMEOUT_MS)) / 1000,
    }
    owned = False
    if "digest.username" in options:
        settings["auth_data"] = [("digest", f"{options['digest.username']}:{options['digest.password']}")]
        owned = True
    if "sasl.username" in options:
        settings["sasl_options"] = {
            "mechanism": options.get("sasl.mechanism", "DIGEST-MD5"),
            "username": options["sasl.username"],
            "password": options["sasl.password"],
        }
        owned = True
    elif "sasl.mechanism" in options:
        settings["sasl_options"] = {"mechanism": options["sasl.mechanism"]}
        owned = True
    if owned:  # an authenticated client owns the nodes that it creates; others may read the offsets
        settings["default_acl"] = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
    given = {
        "ca": options.get("ssl.ca.location"),
        "certfile": options.get("ssl.certificate.location"),
        "keyfile": options.get("ssl.key.location"),
    }
    if any(given.values()):
        settings |= given | {"use_ssl": True, "verify_certs": True, "check_hostname": True}
    return settings


class ZooKeeperStore:
    """A node for each topic, which holds `partition:offset,partition:offset`."""

    with_the_plan = False

    def __init__(self, pipeline: Pipeline) -> None:
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # its messages are reported as events or errors instead
        self._pipeline = pipeline
        self._versions: dict[str, int] = {}
        try:
            self._client = KazooClient(**settings_of(pipeline))
        except Exception as error:  # kazoo may raise any type; the text may contain the credentials
            raise self._unusable(f"its client cannot be created ({type(error).__name__})") from None
        self._limit = int(pipeline.offsets.options.get("timeout.ms", TIMEOUT_MS)) / 1000
        try:
            self._client.start(timeout=self._limit)
        except Exception as error:
            self.close()
            raise self._unusable(f"does not answer or does not let us in ({type(error).__name__})") from None

    @property
    def where(self) -> str:
        """The servers and the nodes."""
        return f"zookeeper {self._pipeline.offsets.servers} {node_of(self._pipeline, '{topic}')}"

    def load(self, places: Sequence[Place]) -> Positions:
        """Return the offsets in the nodes of these topics; a node that does not exist has none."""
        found: Positions = {}
        for topic in sorted({topic for topic, _ in places}):
            node = node_of(self._pipeline, topic)
            try:
                self._answer(self._client.sync_async(node))  # else a server that lags tells what was there before
                data, stat = self._answer(self._client.get_async(node))
            except NoNodeError:
                self._versions.pop(node, None)
                continue
            except _FAILURES as error:
                raise self._unusable(f"{node} cannot be read ({type(error).__name__}: {error})") from error
            self._versions[node] = stat.version
            text = data.decode("utf-8", "replace")
            found |= {(topic, number): offset for number, offset in from_node(text, f"{self.where}: {node}").items()}
        return found

    def begin(self, places: Sequence[Place]) -> Positions:
        """Return the offsets in the nodes."""
        return self.load(places)

    def save(self, positions: Positions) -> None:
        """Write all topics in one transaction."""
        if not self._client.connected:
            raise self._unusable("is not connected")
        topics: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in positions.items():
            topics.setdefault(topic, {})[partition] = offset
        texts = {node_of(self._pipeline, topic): to_node(parts).encode() for topic, parts in topics.items()}
        if not texts:
            return
        try:
            for node in texts.keys() - self._versions.keys():
                self._create(node)
            transaction = self._client.transaction()
            for node, data in texts.items():
                transaction.set_data(node, data, self._versions[node])
            self._settle(texts, self._answer(transaction.commit_async()))
        except _FAILURES as error:
            raise self._unusable(f"cannot be written ({type(error).__name__}: {error})") from error

    def _create(self, node: str) -> None:
        """Create an empty node and its parents; leave one that exists as it is."""
        with contextlib.suppress(NodeExistsError):
            self._answer(self._client.create_async(node, b"", makepath=True))
        stat = self._answer(self._client.exists_async(node))
        if stat is None:
            raise self._unusable(f"{node} was removed while it was being created")
        self._versions[node] = stat.version

    def _settle(self, texts: dict[str, bytes], results: list[Any]) -> None:
        failed = [each for each in results if isinstance(each, Exception)]
        if not failed:
            self._versions |= {node: stat.version for node, stat in zip(texts, results, strict=True)}
            return
        self._versions.clear()  # read again at the next write
        if any(isinstance(each, BadVersionError) for each in failed):
            raise self._unusable("was changed by somebody else; the next batch writes it again")
        raise self._unusable(f"cannot be written ({', '.join(sorted({type(each).__name__ for each in failed}))})")

    def _answer(self, asked: Any) -> Any:
        return asked.get(timeout=self._limit)  # without a limit, a batch would wait as long as the servers are down

    def close(self) -> None:
        """End the session."""
        try:
            self._client.stop()
        finally:
            self._client.close()

    def _unusable(self, what: str) -> OffsetStoreUnusable:
        return OffsetStoreUnusable(
            f"{self.where}: {what}",
            kept="the ledger, which knows what was delivered",
            then="check offsets.servers, offsets.path and the rights there",
        )
