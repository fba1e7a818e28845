"""Generator of the Grafana dashboards, charts/tailrace/dashboards/*.json.

A dashboard's JSON is long and says little, so it is declared here: for each panel a title, a unit, its queries and
their legends. A test compares the files with a fresh generation.
"""

from __future__ import annotations

import json
from pathlib import Path

from grafana import (
    BYTES,
    COUNT,
    PER_SECOND,
    RANGE,
    RECORDS,
    SECONDS,
    SHARE,
    WIDTH,
    Ask,
    Dashboard,
    Panel,
    Row,
    mean,
    most,
    of,
    one,
    over,
    quantile,
    rate,
    rendered,
    since,
    spread,
    total,
)
from tailrace.telemetry import metrics

FOLDER = Path(__file__).parent / "tailrace" / "dashboards"

OVERVIEW = Dashboard(
    "overview",
    "Tailrace / overview",
    "Which pipeline needs me?",
    (
        Row(
            "Now",
            (
                Panel("Leading drivers", COUNT, one(f"sum({of(metrics.DRIVER_PHASE, phase='leading')})", "drivers"),
                      "One per running pipeline.", "stat", 4),
                Panel("Stalled", COUNT, one(f"sum({of(metrics.STALLED)})", "stalled"),
                      "There is lag, and no batch is finished: docs/runbooks/stalled.md.", "stat", 4),
                Panel("Lag", RECORDS, one(f"sum({of(metrics.LAG)})", "records"),
                      "Readable records not yet read.", "stat", 4),
                Panel("Oldest unread record", SECONDS, one(f"max({of(metrics.LAG_SECONDS)})", "age"),
                      "0 when everything is drained.", "stat", 4),
                Panel("Rejected", SHARE,
                      one(f"sum(rate({of(metrics.REJECTED_RECORDS)}{RANGE})) / "
                          f"sum(rate({of(metrics.CONSUMED_RECORDS)}{RANGE}))", "share"),
                      "Share of the consumed records.", "stat", 4),
                Panel("Oldest open transaction", SECONDS, one(f"max({of(metrics.OLDEST_OPEN)})", "age"),
                      "read_committed readers wait behind it.", "stat", 4),
            ),
        ),
        Row(
            "By pipeline",
            (
                Panel("Pipelines", RECORDS,
                      (Ask(total(metrics.LAG), "lag"), Ask(most(metrics.LAG_SECONDS), "age of the oldest, s"),
                       Ask(rate(metrics.CONSUMED_RECORDS), "consumed per second"),
                       Ask(rate(metrics.PRODUCED_RECORDS), "produced per second"),
                       Ask(since(metrics.BATCH_FINISHED), "last batch, s ago"),
                       Ask(since(metrics.DRIVER_STARTED), "driver started, s ago"),
                       Ask(total(metrics.STALLED), "stalled")),
                      "One line per pipeline.", "table", WIDTH),
                Panel("Consumed", PER_SECOND, one(rate(metrics.CONSUMED_RECORDS)), "Records per second."),
                Panel("Lag", RECORDS, one(total(metrics.LAG)), "Records."),
                Panel("Oldest unread record", SECONDS, one(most(metrics.LAG_SECONDS)), "Its age."),
                Panel("Rejected", PER_SECOND, one(rate(metrics.REJECTED_RECORDS)), "Records per second."),
                Panel("Time of a batch, p99", SECONDS, one(quantile(0.99, metrics.BATCH_SECONDS)),
                      "From Spark's planning to its end."),
                Panel("Producers made", PER_SECOND, one(rate(metrics.CREATED)),
                      "0 while everything is warm: docs/runbooks/producers-churning.md."),
                Panel("Memory", BYTES, one(total(metrics.RSS)), "Of all the pipeline's processes.", width=12),
                Panel("Time spent on the JVMs' garbage", SHARE,
                      one(over("max", metrics.JVM_PAUSE, ("pipeline",),
                                over("sum", metrics.JVM_PAUSE, ("pipeline", "instance", "process"),
                                      f"rate({of(metrics.JVM_PAUSE, 'sum')}{RANGE})"))),
                      "Of the process with the largest share.", width=12),
            ),
        ),
    ),
)  # fmt: skip

PIPELINE = Dashboard(
    "pipeline",
    "Tailrace / pipeline",
    "Does data flow, how far behind is it, where does the time go?",
    (
        Row(
            "Flow",
            (
                Panel("Consumed, produced, rejected", PER_SECOND,
                      (Ask(rate(metrics.CONSUMED_RECORDS), "{{pipeline}} consumed"),
                       Ask(rate(metrics.PRODUCED_RECORDS), "{{pipeline}} produced"),
                       Ask(rate(metrics.REJECTED_RECORDS), "{{pipeline}} rejected")), "Records per second."),
                Panel("Arrival rate and capacity", PER_SECOND,
                      (Ask(total(metrics.INPUT_RATE), "{{pipeline}} arriving"),
                       Ask(total(metrics.PROCESSED_RATE), "{{pipeline}} capacity")),
                      "As Spark reports for the last batch. If more arrives than the capacity, the lag grows."),
                Panel("Bytes", "Bps",
                      (Ask(rate(metrics.CONSUMED_BYTES), "{{pipeline}} consumed"),
                       Ask(rate(metrics.DELIVERED_BYTES), "{{pipeline}} delivered")), "Keys and values."),
                Panel("Rejected, by reason", PER_SECOND,
                      one(rate(metrics.REJECTED_RECORDS, "reason"), "{{pipeline}} {{reason}}"),
                      "docs/runbooks/rejected-ratio.md"),
                Panel("Broken rules", PER_SECOND,
                      one(rate(metrics.RULE_BROKEN, "rule", "severity"), "{{pipeline}} {{rule}} ({{severity}})"),
                      "Records that broke a rule of process.validate, also those that are delivered with a warning. "
                      "docs/runbooks/rule-broken.md"),
                Panel("Broken rules, share", SHARE,
                      one(f"sum by (pipeline, rule) (rate({of(metrics.RULE_BROKEN)}{RANGE})) / "
                          f"sum by (pipeline, rule) (rate({of(metrics.RULE_CHECKED)}{RANGE}))",
                          "{{pipeline}} {{rule}}"),
                      "Of the records that the rule has checked."),
                Panel("Counters of the function, last batch", RECORDS,
                      one(total(metrics.OBSERVED, "observation", "counter"), "{{observation}} {{counter}}"),
                      "The values the function passes to df.observe."),
                Panel("Counters of the function, a second", PER_SECOND,
                      one(rate(metrics.OBSERVED_SUM, "observation", "counter"), "{{observation}} {{counter}}"),
                      "The same, over all batches."),
            ),
        ),
        Row(
            "Lag",
            (
                Panel("Lag by topic partition", RECORDS,
                      one(f"topk(20, {total(metrics.LAG, 'topic', 'partition')})", "{{topic}} {{partition}}"),
                      "The twenty largest. One that stands out is skew."),
                Panel("Oldest unread record", SECONDS, one(most(metrics.LAG_SECONDS)),
                      "Compare it with the source topics' retention."),
                Panel("Behind open transactions", RECORDS,
                      one(f"topk(20, {total(metrics.UNSTABLE, 'topic', 'partition')})", "{{topic}} {{partition}}"),
                      "Records of other producers, unreadable until their transactions end."),
                Panel("Source held by a transaction", SECONDS, one(most(metrics.UNSTABLE_SECONDS)),
                      "Minutes mean a hanging producer: docs/runbooks/upstream-transaction.md."),
                Panel("Age of the lag value", SECONDS, one(since(metrics.LAG_CHECKED), "{{pipeline}} ago"),
                      "If this grows, the brokers do not answer, and the lag shown is outdated."),
            ),
        ),
        Row(
            "Batches",
            (
                Panel("Time of a batch", SECONDS,
                      (*spread(metrics.BATCH_SECONDS), Ask(most(metrics.BATCH_TARGET), "{{pipeline}} target")),
                      "From Spark's planning to its end; a target of 0 means none."),
                Panel("Where the time of a batch goes", SECONDS,
                      one(mean(metrics.PHASE_SECONDS, "phase"), "{{pipeline}} {{phase}}"),
                      "Means. cut, ledger, deliver and after are parts of addBatch; deliver is function and sink."),
                Panel("Batches", PER_SECOND, one(rate(metrics.BATCHES)), "Per second."),
                Panel("Records in a batch", RECORDS,
                      (Ask(total(metrics.BATCH_RECORDS), "{{pipeline}} consumed"),
                       Ask(most(metrics.BATCH_LIMIT), "{{pipeline}} limit")),
                      "The limit is what the rate control has learned."),
                Panel("Sink partitions", COUNT,
                      (Ask(most(metrics.SINK_PARTITIONS), "{{pipeline}} written"),
                       Ask(rate(metrics.FRESH), "{{pipeline}} with a fresh producer, per second"),
                       Ask(rate(metrics.SKIPPED), "{{pipeline}} delivered already, per second")),
                      "Fresh producers in every batch are churn."),
                Panel("Last batch", SECONDS, one(since(metrics.BATCH_FINISHED), "{{pipeline}} ago"),
                      "Time since it finished."),
                Panel("Number of the last batch", COUNT, one(most(metrics.BATCH)), "It never goes back."),
            ),
        ),
        Row(
            "Driver and executors",
            (
                Panel("Phase", COUNT, one(total(metrics.DRIVER_PHASE, "phase"), "{{pipeline}} {{phase}}"),
                      "Drivers in each phase; exactly one leads."),
                Panel("Ready, stalled", COUNT,
                      (Ask(total(metrics.READY), "{{pipeline}} ready"),
                       Ask(total(metrics.STALLED), "{{pipeline}} stalled"),
                       Ask(total(metrics.BROKERS_AWAY), "{{pipeline}} waits for the brokers")), "Drivers."),
                Panel("Drivers started", SECONDS,
                      one(f"time() - {most(metrics.DRIVER_STARTED, 'instance')}", "{{pipeline}} {{instance}} ago"),
                      "A sawtooth is a restart loop: docs/runbooks/restart-loop.md"),
                Panel("Executors", COUNT,
                      (Ask(most(metrics.EXECUTORS_WANTED), "{{pipeline}} wanted"),
                       Ask(most(metrics.EXECUTORS_PRESENT), "{{pipeline}} present")),
                      "Fewer than wanted: pods are pending."),
                Panel("Warnings and gaps", PER_SECOND,
                      (Ask(rate(metrics.DRIVER_WARNINGS), "{{pipeline}} warnings"),
                       Ask(rate(metrics.GAPS), "{{pipeline}} gaps in the source")),
                      "A gap: records were gone before they were read. The log names them."),
                Panel("Age of the markers, as a share of their retention", SHARE,
                      one(f"(time() - {most(metrics.LEDGER_WRITTEN)}) / {most(metrics.LEDGER_RETENTION)}"),
                      "docs/runbooks/ledger-retention.md"),
                Panel("Versions", COUNT,
                      one(total(metrics.DRIVER_INFO, "run", "version"), "{{pipeline}} {{version}} {{run}}"),
                      "Two versions: an upgrade, or two deployments with one name.", width=WIDTH),
            ),
        ),
        Row(
            "State, of a stateful pipeline",
            (
                Panel("Watermark", SECONDS, one(since(metrics.WATERMARK), "{{pipeline}} behind now"),
                      "A watermark that does not advance keeps all state."),
                Panel("Rows of state", RECORDS, one(total(metrics.STATE_ROWS, "operator"), "{{pipeline}} {{operator}}"),
                      "If the rows only ever grow, they are never released."),
                Panel("Memory of the state, and rows too late", BYTES,
                      (Ask(total(metrics.STATE_BYTES, "operator"), "{{pipeline}} {{operator}} bytes"),
                       Ask(rate(metrics.STATE_DROPPED, "operator"), "{{pipeline}} {{operator}} too late, per second")),
                      "As Spark reports."),
            ),
        ),
    ),
)  # fmt: skip

GATEWAYS = Dashboard(
    "gateways",
    "Tailrace / gateways and producers",
    "Are producers warm, how are transactions and brokers?",
    (
        Row(
            "Producers",
            (
                Panel("Open", COUNT,
                      (Ask(total(metrics.OPEN, "kind"), "{{pipeline}} {{kind}} open"),
                       Ask(total(metrics.USED, "kind"), "{{pipeline}} {{kind}} in use")),
                      "As many as sink partitions, and constant."),
                Panel("Made and closed", PER_SECOND,
                      (Ask(rate(metrics.CREATED, "kind"), "{{pipeline}} {{kind}} made"),
                       Ask(rate(metrics.CLOSED, "kind"), "{{pipeline}} {{kind}} closed")),
                      "0 while everything is warm: docs/runbooks/producers-churning.md"),
                Panel("Retired, by reason", PER_SECOND,
                      one(rate(metrics.RETIRED, "kind", "reason"), "{{pipeline}} {{kind}} {{reason}}"),
                      "Why producers are not reused."),
                Panel("Tasks", COUNT, one(total(metrics.TASKS, "instance"), "{{pipeline}} {{instance}}"),
                      "Streaming to each gateway now."),
                Panel("Time of a task in the gateway", SECONDS, spread(metrics.TASK_SECONDS),
                      "From its first message to the answer."),
                Panel("Gateways started", SECONDS,
                      one(f"time() - {most(metrics.GATEWAY_STARTED, 'instance')}", "{{pipeline}} {{instance}} ago"),
                      "A gateway lives as long as its executor."),
                Panel("Versions", COUNT,
                      one(total(metrics.GATEWAY_INFO, "gateway", "version"), "{{pipeline}} {{version}} {{gateway}}"),
                      "The log and /status also show the gateways' names.", width=WIDTH),
            ),
        ),
        Row(
            "Transactions",
            (
                Panel("How they end", PER_SECOND,
                      tuple(Ask(rate(each), f"{{{{pipeline}}}} {name}") for each, name in (
                          (metrics.BEGUN, "begun"), (metrics.COMMITTED, "committed"), (metrics.ABORTED, "aborted"),
                          (metrics.DOUBTFUL, "in doubt"), (metrics.ALREADY, "delivered already"))),
                      "In doubt: the marker decides at the next attempt."),
                Panel("Time of a transaction", SECONDS, spread(metrics.TRANSACTION_SECONDS), "From begin to commit."),
                Panel("Time of a commit", SECONDS, spread(metrics.COMMIT_SECONDS), "The commit alone, by the brokers."),
                Panel("Oldest open", SECONDS, one(most(metrics.OLDEST_OPEN, "group"), "{{pipeline}} {{group}}"),
                      "By group of sink partitions: docs/runbooks/open-transaction.md"),
                Panel("Age of the oldest open", SECONDS, spread(metrics.OPEN_SECONDS),
                      "Sampled twice a second, to show what happens between two scrapes, too."),
                Panel("Open", COUNT, one(total(metrics.TRANSACTIONS_OPEN, "group"), "{{pipeline}} {{group}}"), "Now."),
                Panel("Records", PER_SECOND,
                      (Ask(rate(metrics.GATEWAY_RECORDS, "group"), "{{pipeline}} {{group}}"),
                       Ask(rate(metrics.GATEWAY_REJECTED, "group", "reason"),
                           "{{pipeline}} {{group}} rejected: {{reason}}")),
                      "Committed, by group of sink partitions.", width=12),
                Panel("Bytes", "Bps", one(rate(metrics.GATEWAY_BYTES, "group"), "{{pipeline}} {{group}}"),
                      "Committed, by group of sink partitions.", width=12),
            ),
        ),
        Row(
            "Inside the producers (librdkafka's statistics)",
            (
                Panel("Queue", RECORDS, one(total(metrics.QUEUED), "{{pipeline}} records"),
                      "Records waiting to be sent. A full queue makes Spark wait."),
                Panel("Queue in bytes", BYTES, one(total(metrics.QUEUED_BYTES)), "At the last statistics."),
                Panel("Batches on the wire", BYTES,
                      (Ask(most(metrics.BATCH_BYTES, "quantile"), "{{pipeline}} {{quantile}} bytes"),
                       Ask(most(metrics.BATCH_SIZE, "quantile"), "{{pipeline}} {{quantile}} records")),
                      "Small ones cost the brokers more."),
                Panel("Idempotence", COUNT, one(total(metrics.IDEMPOTENCE, "state"), "{{pipeline}} {{state}}"),
                      "Producers by state."),
                Panel("Transactions", COUNT, one(total(metrics.TRANSACTION_STATE, "state"), "{{pipeline}} {{state}}"),
                      "Producers by state."),
                Panel("Epochs", PER_SECOND, one(rate(metrics.EPOCHS)), "Producer ids and epochs acquired per second."),
            ),
        ),
        Row(
            "Brokers, as the producers see them",
            (
                Panel("Latency", SECONDS,
                      one(most(metrics.LATENCY, "broker", "quantile"), "{{pipeline}} {{broker}} {{quantile}}"),
                      "From a request to its answer."),
                Panel("Requests", PER_SECOND, one(rate(metrics.REQUESTS, "broker"), "{{pipeline}} {{broker}}"), ""),
                Panel("Sent", "Bps", one(rate(metrics.REQUEST_BYTES, "broker"), "{{pipeline}} {{broker}}"), ""),
                Panel("What goes wrong", PER_SECOND,
                      tuple(Ask(rate(each, "broker"), f"{{{{pipeline}}}} {{{{broker}}}} {name}") for each, name in (
                          (metrics.RETRIES, "sent again"), (metrics.TIMEOUTS, "timed out"),
                          (metrics.REQUEST_ERRORS, "not sent"))), "Requests per second."),
                Panel("Connections", PER_SECOND,
                      (Ask(rate(metrics.CONNECTS, "broker"), "{{pipeline}} {{broker}} made"),
                       Ask(rate(metrics.DISCONNECTS, "broker"), "{{pipeline}} {{broker}} ended")), "0 while warm."),
                Panel("In flight", COUNT, one(total(metrics.IN_FLIGHT, "broker"), "{{pipeline}} {{broker}}"),
                      "Requests waiting for their answer."),
                Panel("Throttled", SECONDS,
                      one(most(metrics.THROTTLE, "broker", "quantile"), "{{pipeline}} {{broker}} {{quantile}}"),
                      "How long the brokers asked to wait: quotas.", width=WIDTH),
            ),
        ),
    ),
    metrics.GATEWAY_INFO,
)  # fmt: skip

PLACE = "{{pipeline}} {{instance}} {{process}}"
MEMORY = Dashboard(
    "memory",
    "Tailrace / GC and memory",
    "Which processes use memory, which pause for garbage collection?",
    (
        Row(
            "Processes",
            (
                Panel("Memory", BYTES, one(total(metrics.RSS, "instance", "process"), PLACE), "Resident."),
                Panel("CPU", SHARE, one(rate(metrics.CPU, "instance", "process"), PLACE), "1 is a full core."),
                Panel("Processes", COUNT, one(total(metrics.PROCESSES, "instance", "process"), PLACE),
                      "`workers` are an executor's Python workers."),
            ),
        ),
        Row(
            "JVM",
            (
                Panel("Time spent on garbage", SHARE,
                      one(rate(metrics.JVM_PAUSE, "instance", "process", part="sum"), PLACE),
                      "Share of the time; above a tenth: docs/runbooks/gc-share.md"),
                Panel("Pauses, p99", SECONDS,
                      one(quantile(0.99, metrics.JVM_PAUSE, "instance", "process", "collector"),
                          PLACE + " {{collector}}"), "Full collections are those of the old generation."),
                Panel("Collections", PER_SECOND,
                      one(rate(metrics.JVM_PAUSE, "instance", "process", "collector", part="count"),
                          PLACE + " {{collector}}"), "Per second."),
                Panel("Heap after a collection", BYTES,
                      (Ask(total(metrics.JVM_AFTER, "instance", "process"), PLACE),
                       Ask(total(metrics.JVM_HEAP_MAX, "instance", "process"), PLACE + " limit")),
                      "What survives. Rising from hour to hour: a leak.", width=12),
                Panel("Heap in use", BYTES, one(total(metrics.JVM_HEAP, "instance", "process"), PLACE),
                      "A sawtooth is healthy.", width=12),
            ),
        ),
        Row(
            "Python",
            (
                Panel("Time spent on garbage", SHARE,
                      one(rate(metrics.PYTHON_PAUSE, "instance", "process", part="sum"), PLACE),
                      "Sum over all processes of that kind."),
                Panel("Collections, p99", SECONDS,
                      one(quantile(0.99, metrics.PYTHON_PAUSE, "instance", "process", "generation"),
                          PLACE + " generation {{generation}}"), "Generation 2 scans everything."),
                Panel("Objects freed", PER_SECOND,
                      (Ask(rate(metrics.PYTHON_COLLECTED, "instance", "process"), PLACE),
                       Ask(rate(metrics.PYTHON_UNCOLLECTABLE, "instance", "process"), PLACE + " not freed")),
                      "Per second; what cannot be freed is a leak."),
            ),
        ),
        Row(
            "Watching",
            (
                Panel("Scrapes", PER_SECOND,
                      one(rate(metrics.SCRAPES, "instance"), "{{pipeline}} {{instance}}"),
                      "More than expected: more than one Prometheus scrapes.", width=WIDTH),
            ),
        ),
    ),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, PIPELINE, GATEWAYS, MEMORY)


def text(dashboard: Dashboard) -> str:
    """Return the file's text."""
    return json.dumps(rendered(dashboard), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(text(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
