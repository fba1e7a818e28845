"""Errors in the configuration, the function or a schema, found before a record is read."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class ConfigError(TailraceError):
    """The configuration, the function or a schema is wrong; nothing was read or written."""

    exit_code = 2


class ConfigInvalid(ConfigError):
    """The pipeline's configuration does not fit its schema.

    The message gives the file and line, the value found and the values allowed; for an unknown key it
    suggests the nearest one that exists. Nothing was read from or written to Kafka.
    """

    code = "TR-101"
    title = "configuration invalid"


class FunctionMissing(ConfigError):
    """The pipeline's function could not be loaded.

    Write `process.function` as `file.py:name` (relative to the configuration file) or
    `package.module:name`. The file must exist, be importable, and define a callable of that name that takes
    one DataFrame and returns one.

    A Spark session keeps the files that its workers import. If one was edited since, and the workers would import
    a Python function from the earlier text, use another session: `spark.stop()`, then start one.
    Python imports a package once per process. If it was edited since, start a new process; in a notebook, restart
    the kernel.
    """

    code = "TR-102"
    title = "function missing"


class FunctionInvalid(ConfigError):
    """The pipeline's function raised when it was called to build the pipeline, or returned something unusable.

    The function is called once on the driver, before the first record is read, with a DataFrame that has the
    right schema: the fields of `source.schema` (with the format `raw`, one column `value`), and a struct `kafka` with
    key, topic, partition, offset, timestamp and headers of the record.

    It must return a DataFrame whose columns the sink's format can write: `topic`, `key`, `headers`, `partition` and
    `timestamp` set the record's own, and all others form the value (with the format `raw`, one column `value`).
    """

    code = "TR-103"
    title = "function invalid"


class SchemaInvalid(ConfigError):
    """A schema could not be read or does not parse.

    JSON takes a Spark DDL string (`id long, text string`), a `.json` file of a Spark schema or a pydantic
    model (`file.py:Model`); Avro takes an `.avsc` file.
    """

    code = "TR-104"
    title = "schema invalid"


class OptionRefused(ConfigError):
    """A Kafka option may not be set here, or an option on the command line has a value that cannot be used.

    On the command line, the message names the option and the value, and the next command has an example.

    Of Kafka's options, Tailrace passes on those for throughput and for the connection. It refuses the options that
    would break exactly-once delivery (for example `acks` other than `all`, `enable.idempotence=false`,
    `transactional.id`) and those that it sets itself. `tailrace explain kafka.options` lists those that it passes on
    there; `source.options` and `sink.options` have their own.

    The drop-in `exactly_once` is refused with this code if it is called twice for a batch, or in two active queries,
    under one name: the `id`, or else the id of the query.
    """

    code = "TR-105"
    title = "option refused"


class SinkColumnsInvalid(ConfigError):
    """The sink cannot write the columns that reach it.

    Every record needs a topic: set `sink.topic` in the configuration (the option `topic`), or return a column
    `topic` of type string. `key` and `value` are strings or binary, `headers` is
    array<struct<key string, value binary>>, `partition` is an int, `timestamp` a timestamp.
    """

    code = "TR-106"
    title = "sink columns invalid"


class KeyUnreadable(ConfigError):
    """A certificate or a private key cannot be read.

    `ssl.certificate.location` and `ssl.key.location` must name PEM files that this process may read;
    `ssl.key.password` is the key's own password, if it has one. Keys may be in PKCS 1, SEC 1 or PKCS 8. The message
    never shows the key.
    """

    code = "TR-107"
    title = "key unreadable"
