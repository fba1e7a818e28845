"""Generator of the reference: docs/metrics.md, and in docs/reference configuration, errors, cli, and two schemas.

A page written by hand drifts from the code. These come from the schema, the errors' docstrings and the commands' help,
and a test compares them with a fresh generation. `python docs/generate.py` writes them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from tailrace.cli.main import COMMANDS, app, load
from tailrace.config.file.described import fields, root
from tailrace.config.file.places import ALLOWED_OPTIONS, RESERVED, dotted
from tailrace.errors import TailraceError, all_errors
from tailrace.scaffold.schema import schema as schema_of_a_file
from tailrace.telemetry import metrics
from tailrace_operator import chart

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"
GENERATED = "*This page is generated from `{source}` by `python docs/generate.py`; change it there.*"

Schema = Mapping[str, Any]

INTRODUCTION = """\
A pipeline is configured by a YAML file, by `Pipeline(...)` in Python, or by a `Pipeline` resource on Kubernetes. All
three have the keys below. The smallest file:

```yaml
pipeline: copy
source:
  topics: [orders]
  format: raw
sink:
  topic: orders-copy
  format: raw
```

[pipeline.schema.json](pipeline.schema.json) is the file's JSON Schema, as `tailrace schema` prints it. Name it in the
first line, `# yaml-language-server: $schema=…`: editors then complete keys and mark mistakes.

An invalid configuration is refused before anything is read or written, and every problem is listed with its file and
line: an unknown key, a duplicate key, a value of the wrong type, values that contradict each other.

## The environment

A variable overrides a key of the file. Its name is `TAILRACE_` followed by the key's path in capitals, with `__`
between the levels and `_` for a dot: `TAILRACE_KAFKA__BOOTSTRAP_SERVERS`, `TAILRACE_BATCH__MAX_RECORDS`. In `options`
and `spark` the last part is the option's name: `TAILRACE_KAFKA__OPTIONS__SASL_PASSWORD` sets `sasl.password`, and
`TAILRACE_SPARK__spark_sql_shuffle_partitions` sets a Spark setting; a name with lower-case letters keeps its capitals.
Lists are written as in YAML: `TAILRACE_SOURCE__TOPICS='[orders, payments]'`. A variable that begins with `TAILRACE_`
and names no key is refused, except {reserved}, which other parts of Tailrace read.

Inside a value of the file, `${{NAME}}` is replaced by the variable NAME, which must be set; write `$${{NAME}}` for the
literal text. Put passwords there or in a mounted file, not in the configuration. Messages never show the value of an
option that holds a secret.
"""

ERRORS_INTRODUCTION = """\
Each error has a code. Its message says what happened, what was kept safe and what to do next; `tailrace explain CODE`
prints the text below. A command's exit code is that of the error's group.
"""


COMMANDS_INTRODUCTION = """\
Each command prints the text below with `--help` or `-h`. `tailrace completion bash`, `zsh` and `fish` print what lets
the shell complete it:

```bash
source <(tailrace completion bash)
```

## Output

Data goes to stdout, progress and advice to stderr; `--quiet` leaves out progress and advice. Text has colours on a
terminal only, and none if `NO_COLOR` is set.

`--output json` writes one object on one line: the result, or the error with the keys `error` (its code), `title`,
`what`, `kept`, `next` and `exit`. `--output yaml` writes a document with the same keys and values. `tailrace run` and
`tailrace rejected show` write one for each event or record. Keys are stable: later versions add some, and the
changelog says if one goes. `--output table` is another name for `text`.

`TAILRACE_JARS` names the folder for jars.

## Exit codes
"""
EXITS_OF_ALL = {
    0: "The command did what it was asked to do.",
    1: "The answer is no: a check of the doctor failed, or the confirmation was refused.",
    2: "The command line is wrong; nothing was done.",
    130: "Ctrl-C (SIGINT) ended the command.",
    141: "What read the command's output ended first (SIGPIPE).",
}
HELP_WIDTH = 100


def configuration() -> str:
    """Generate configuration.md."""
    parts = [
        "# The configuration",
        GENERATED.format(source="tailrace.config"),
        INTRODUCTION.format(reserved=listed(f"`{name}`" for name in sorted(RESERVED))).rstrip(),
    ]
    parts += _sections(*root(), "")
    parts += ["## Kafka options", "Tailrace passes on the options below and refuses any other."]
    for place, allowed in ALLOWED_OPTIONS.items():
        parts += [f"### {dotted(place)}", "\n".join(f"- `{name}`" for name in sorted(allowed))]
    return "\n\n".join(parts) + "\n"


def errors() -> str:
    """Generate errors.md."""
    parts = [
        "# The errors",
        GENERATED.format(source="tailrace.errors"),
        ERRORS_INTRODUCTION.rstrip(),
    ]
    group: type[TailraceError] | None = None
    for kind in all_errors():
        above = _group(kind)
        if above is not group:
            group = above
            parts += [f"## Exit code {above.exit_code}", inspect.getdoc(above) or ""]
        own = f" (exit code {kind.exit_code})" if kind.exit_code != above.exit_code else ""
        parts += [f"### {kind.code} {kind.title}{own}", inspect.getdoc(kind) or ""]
    return "\n\n".join(parts) + "\n"


def _group(kind: type[TailraceError]) -> type[TailraceError]:
    """Return the group of an error: its ancestor without a code of its own."""
    return next(each for each in kind.__mro__ if issubclass(each, TailraceError) and not each.code)


def cli() -> str:
    """Generate cli.md."""
    parts = ["# The commands", GENERATED.format(source="tailrace.cli"), COMMANDS_INTRODUCTION.rstrip(), exits()]
    for name in COMMANDS:
        parts += [f"## tailrace {name}", _help(name)]
        for words in _subcommands([name], load(name)):
            parts += [f"### tailrace {' '.join(words)}", _help(*words)]
    return "\n\n".join(parts) + "\n"


def exits() -> str:
    """Return the table of exit codes: what ends any command, and the errors with their own."""
    meanings: dict[int, list[str]] = {number: [meaning] for number, meaning in EXITS_OF_ALL.items()}
    codes: dict[int, list[str]] = {}
    for kind in all_errors():
        group = _group(kind)
        meaning = f"{kind.title.capitalize()}." if kind.exit_code != group.exit_code else inspect.getdoc(group) or ""
        if meaning not in (known := meanings.setdefault(kind.exit_code, [])):
            known.append(meaning)
        codes.setdefault(kind.exit_code, []).append(kind.code)
    rows = [
        f"| {number} | {' '.join(meanings[number])} | {', '.join(codes.get(number, ()))} |"
        for number in sorted(meanings)
    ]
    return "\n".join(["| code | meaning | errors |", "|---|---|---|", *rows])


METRICS_INTRODUCTION = """\
The driver serves its metrics at `http://HOST:9760/metrics`, and the gateway of each executor at port 9770 (section
[`metrics`](reference/configuration.md#metrics) of the configuration; if a port is taken, the next free one is used).
[Watch a pipeline](how-to/watch-a-pipeline.md) shows how Prometheus finds them.

The number of series is bounded by the configuration, never by records, batches or runs: labels whose values come from
outside have at most {reasons} values ({pipelines} pipelines per gateway), and further ones are counted as `{other}`. A
counter restarts with its process.

The driver counts a batch once Spark has reported on it: the records consumed, produced and rejected appear at once. If
a start delivers a batch that an earlier driver left open, it counts in `tailrace_batches_total` and
`tailrace_delivered_bytes_total`, but in none of the three: the earlier driver had read those records.
"""


def metric_pages() -> str:
    """Generate metrics.md."""
    parts = [
        "# The metrics",
        GENERATED.format(source="tailrace.telemetry.metrics"),
        METRICS_INTRODUCTION.format(reasons=metrics.REASONS, pipelines=metrics.PIPELINES, other=metrics.OTHER).rstrip(),
        "## Labels",
        "\n".join(
            [
                "| label | meaning |",
                "|---|---|",
                *(f"| `{name}` | {_cell(text)} |" for name, text in metrics.LABELS.items()),
            ]
        ),
    ]
    for title, declared in (
        ("The driver", metrics.DRIVER),
        ("An executor's gateway", metrics.EXECUTOR),
        ("Both", metrics.BOTH),
    ):
        rows = [
            f"| `{each.name}` | {each.kind} | {', '.join(f'`{name}`' for name in each.labels)} | {_cell(each.help)} |"
            for each in declared
        ]
        parts += [f"## {title}", "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def pipeline_schema() -> str:
    """Generate pipeline.schema.json, as `tailrace schema` prints it."""
    return json.dumps(schema_of_a_file(), indent=2) + "\n"


def values_schema() -> str:
    """Generate values.schema.json, for a file of one's own that changes some of the chart's values."""
    written = yaml.safe_load((HERE.parent / "charts" / "values.schema.yaml").read_text(encoding="utf-8"))
    return json.dumps(chart.values(written, {}, "reference/values.schema.json"), indent=1, ensure_ascii=False) + "\n"


def _help(*words: str) -> str:
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="tailrace", terminal_width=HELP_WIDTH)
    return f"```text\n{shown.output.strip()}\n```"


def _subcommands(words: list[str], command: Any) -> Iterator[list[str]]:
    """Yield the words of each command below a command."""
    for name, inner in getattr(command, "commands", {}).items():
        if not getattr(inner, "commands", {}):
            yield [*words, name]
        yield from _subcommands([*words, name], inner)


def listed(words: Iterable[str]) -> str:
    """Join words as in prose: a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _sections(schema: Schema, definitions: Mapping[str, Schema], place: str) -> list[str]:
    """Return the table of one section, followed by those of its subsections."""
    rows: list[str] = []
    inner: list[str] = []
    for each in fields(schema, definitions, place):
        kind = each.type
        if each.section is not None:
            inside = each.path if each.type == "section" else f"{each.path}.NAME"
            kind = each.type.replace("section", f"[section](#{inside.replace('.', '').lower()})")
            inner += _sections(each.section, definitions, inside)
        rows.append(f"| `{each.name}` | {kind} | {each.default} | {_cell(each.meaning)} |")
    title = f"## {place}" if place else "## At the top"
    table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
    return [title, schema.get("description", ""), "\n".join(table), *inner]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(exist_ok=True)
    (REFERENCE / "configuration.md").write_text(configuration(), encoding="utf-8")
    (REFERENCE / "pipeline.schema.json").write_text(pipeline_schema(), encoding="utf-8")
    (REFERENCE / "values.schema.json").write_text(values_schema(), encoding="utf-8")
    (REFERENCE / "errors.md").write_text(errors(), encoding="utf-8")
    (REFERENCE / "cli.md").write_text(cli(), encoding="utf-8")
    (HERE / "metrics.md").write_text(metric_pages(), encoding="utf-8")


if __name__ == "__main__":
    main()
