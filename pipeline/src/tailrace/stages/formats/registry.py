"""A client of the schema registry (Confluent's protocol): schemas by id, and the id of a schema.

The answer "no such schema" concerns one record, which is rejected. No answer at all concerns every record, so the task
fails and no verdict is given. Workers import the client only here, if a pipeline has a registry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tailrace.config import Registry as Settings
from tailrace.errors import ConfigInvalid, ExtraMissing, KafkaFailed, SchemaInvalid, TailraceError
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.avro_resolution import Schema
from tailrace.stages.formats.avro_writer import Writer, writer

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

Answer = TypeVar("Answer")

_UNKNOWN = {40401, 40402, 40403, 40408}  # the registry's own codes: no such subject, version, schema; no level
# Options that the client takes as numbers, where the configuration has text. Without a timeout it would wait forever.
NUMBERS = frozenset(
    {"timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity", "cache.latest.ttl.sec"}
)
DEFAULTS: dict[str, Any] = {"timeout": 10.0}


class SchemaUnknown(Exception):
    """Raised if the registry answers that it has no such Avro schema."""


class Registry:
    """One process's client of a registry, which caches its answers."""

    def __init__(self, settings: Settings) -> None:
        self._client = _client(settings)
        self._host = _host(settings.url)
        self._parsed: dict[int, Writer] = {}

    def writer(self, number: int) -> Writer:
        """Return the parsed schema with this id; raise SchemaUnknown if the registry has none."""
        if number not in self._parsed:
            schema = self._ask(f"schema id {number}", lambda: self._client.get_schema(number))
            if (schema.schema_type or "AVRO") != "AVRO":
                raise SchemaUnknown(f"schema id {number} is of type {schema.schema_type}, not AVRO")
            known: dict[str, Any] = {}
            try:
                self._load(schema.references or [], partial(writer, known=known))
                self._parsed[number] = writer(schema.schema_str or "", known)
            except (SchemaUnknown, TailraceError):
                raise
            except Exception as error:  # fastavro also lets KeyError and TypeError through
                raise SchemaUnknown(f"schema id {number} does not parse: {error}") from None
        return self._parsed[number]

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject that are not deleted, oldest first; empty if there is no such subject."""
        try:
            return sorted(self._ask(f"versions of {subject}", lambda: self._client.get_versions(subject)))
        except SchemaUnknown:
            return []

    def version(self, subject: str, number: int) -> Schema:
        """Return one version of a subject; raise SchemaUnknown if it is no Avro schema, or was deleted meanwhile."""
        what = f"{subject} version {number}"
        schema = self._ask(what, lambda: self._client.get_version(subject, number)).schema
        if (schema.schema_type or "AVRO") != "AVRO":
            raise SchemaUnknown(f"{what} is of type {schema.schema_type}, not AVRO")
        known: dict[str, Any] = {}
        try:
            self._load(schema.references or [], partial(Schema.add, known=known))
            return Schema.of(schema.schema_str or "", known)
        except (SchemaUnknown, TailraceError):
            raise
        except Exception as error:  # fastavro also lets KeyError and TypeError through
            raise SchemaUnknown(f"{what} does not parse: {error}") from None

    def accepts(self, subject: str, text: str) -> bool:
        """Return whether the registry would take a schema as a subject's next version; nothing is registered."""
        from confluent_kafka.schema_registry import Schema as Text

        question = partial(self._client.test_compatibility_all_versions, subject, Text(text, "AVRO"))
        try:
            return bool(self._ask(f"verdict on {subject}", question))
        except SchemaUnknown:
            return True  # the subject is new

    def level(self, subject: str) -> str:
        """Return the compatibility level of a subject: its own, or the registry's."""
        for name in (subject, None):
            try:
                found = self._ask(f"compatibility of {subject}", partial(self._client.get_config, name))
            except SchemaUnknown:
                continue
            return str(found.compatibility_level or found.compatibility or "BACKWARD")
        return "BACKWARD"

    def _load(self, references: list[Any], add: Callable[[str], object]) -> None:
        for each in references:
            what = f"{each.subject} version {each.version}"
            found = self._ask(what, lambda each=each: self._client.get_version(each.subject, each.version))  # type: ignore[misc]
            self._load(found.schema.references or [], add)
            add(found.schema.schema_str or "")

    def number(self, subject: str, text: str) -> int | None:
        """Return the id of a schema under a subject; None if it is not registered there."""
        from confluent_kafka.schema_registry import Schema

        schema = Schema(text, "AVRO")
        try:
            return int(self._ask(subject, lambda: self._client.lookup_schema(subject, schema)).schema_id or 0)
        except SchemaUnknown:
            return None

    def newest(self, subject: str) -> tuple[str, int] | None:
        """Return the newest schema of a subject, as text, and its id; None if there is no such subject."""
        numbers = self.versions(subject)
        if not numbers:
            return None
        found = self._ask(f"newest schema of {subject}", lambda: self._client.get_version(subject, numbers[-1]))
        return found.schema.schema_str or "", int(found.schema_id or 0)

    def identify(self, subject: str, text: str) -> int:
        """Return the id of a schema under a subject; register it there if it is not yet."""
        from confluent_kafka.schema_registry import Schema

        known = self.number(subject, text)
        if known is not None:
            return known
        try:
            return int(self._ask(subject, lambda: self._client.register_schema(subject, Schema(text, "AVRO"))))
        except SchemaUnknown as error:
            raise SchemaInvalid(f"the registry accepted no schema for {subject}: {error}", kept=KEPT) from None

    def _ask(self, what: str, question: Callable[[], Answer]) -> Answer:
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.error_code in _UNKNOWN:  # any proxy answers 404, also in place of a registry that is away
                raise SchemaUnknown(f"the registry has no {what}") from None
            if error.http_status_code in {409, 422}:
                raise SchemaInvalid(
                    f"the schema registry at {self._host} refused the schema of {what}: {error.error_message}",
                    kept=KEPT,
                    then="make the schema compatible with the subject's earlier ones",
                ) from None
            raise self._failed(what, f"{error.http_status_code} {error.error_message}") from None
        except Exception as error:  # whatever its HTTP client raises
            raise self._failed(what, str(error) or type(error).__name__) from None

    def _failed(self, what: str, why: str) -> KafkaFailed:
        return KafkaFailed(
            f"the schema registry at {self._host} did not return {what}: {why}",
            kept="nothing of this batch was delivered or rejected",
            then="make the registry reachable and start the pipeline again",
        )


def registry(settings: Settings) -> Registry:
    """Return this process's one client of a registry."""
    return _registry(settings.model_dump_json())


@cache
def _registry(settings: str) -> Registry:
    return Registry(Settings.model_validate_json(settings))


def _client(settings: Settings) -> SchemaRegistryClient:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:  # its dependencies come with the extra
        raise ExtraMissing.of("avro", "the schema registry's client", error) from error
    try:
        options = {name: float(text) if name in NUMBERS else text for name, text in settings.options.items()}
        return SchemaRegistryClient({"url": settings.url} | DEFAULTS | options)
    except (ValueError, TypeError) as error:
        raise ConfigInvalid(f"registry: {error}", kept=KEPT, then="fix `registry` in the configuration") from None


def _host(url: str) -> str:
    """Return the address without the user and password that a URL may contain."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
