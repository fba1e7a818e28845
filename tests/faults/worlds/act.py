"""A world, run: feed, start, strike, restart, drain, stop; then everything is read and judged."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from faults.proof import plans, wrong_markers
from faults.reading import Watching, differences, read_into, watching
from faults.scenario import Context
from faults.scenarios.brokers import in_sync
from faults.transactions import beyond, open_after
from faults.worlds.configuration import configuration
from faults.worlds.contents import Contents, found_wrong
from faults.worlds.encodings import IN_SCHEMA, OUT_SCHEMA, heads_of
from faults.worlds.oracle import Outcome, judge
from faults.worlds.records import FUNCTIONS, feed, wanted
from faults.worlds.world import BROKER_STRIKES, Encoding, Place, Strike, World
from support.registry import SchemaRegistry, schema_registry
from tailrace import crash_points
from tailrace.demo.batches import Batches
from tailrace.demo.driver import Driver
from tailrace.errors import BrokerUnreachable, DriverFenced, InvariantBroken, KafkaFailed, TailraceError
from tailrace.progress.stream_plan import AnyPlan

LIMIT = 120.0  # seconds without a batch or a start
QUIET = 4.0  # seconds for which a driver is idle before it is believed
_AWAY = 3.0  # seconds for which a broker is gone
_MOST_STARTS = 20


class Stuck(Exception):
    """Raised if something was waited for in vain, or a driver ended for no reason."""


class Act:
    """One pipeline and its drivers."""

    def __init__(
        self, world: World, context: Context, watch: Watching, topics: tuple[str, str, str],
        package: Path | None, registry: SchemaRegistry | None,
    ) -> None:  # fmt: skip
        self.world, self._context, self._watch = world, context, watch
        self.source, self.sink, self.rejected = topics
        self.name = f"w-{uuid.uuid4().hex[:8]}"
        self.ledger = f"{self.name}.ledger"
        self.counts: dict[int, int] = dict.fromkeys(range(len(world.counts)), 0)
        self.starts = 0
        self._chance = random.Random(world.seed + 1)
        self._folder = context.folder / self.name
        self._folder.mkdir(parents=True)
        self._marks = self._folder / "crashes"
        self._settings: dict[str, Any] = {}
        self._path = os.pathsep.join(map(str, filter(None, (package, Path(__file__).parents[2]))))
        self._batches = Batches()
        self._drivers: list[Driver] = []
        self._expected = False  # whether the driver's end is our doing
        self._seen = 0
        self._heard = time.monotonic()
        self._schemas = registry
        (self._folder / "work.py").write_text(FUNCTIONS)
        for schema, name in ((IN_SCHEMA, "in.avsc"), (OUT_SCHEMA, "out.avsc")):
            (self._folder / name).write_text(json.dumps(schema))

    # -- the pipeline -------------------------------------------------------------------------------

    def _file(self) -> Path:
        url = self._schemas.url if self._schemas is not None else ""
        data = configuration(self.world, self._context.bootstrap, self.name, self.source, self.sink, url)
        data |= {"rejected": self.rejected, "ledger": {"topic": self.ledger, "partitions": 16}}
        for section, values in self._settings.items():
            data[section] |= values
        file = self._folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    def start(self) -> Driver:
        """Start a driver."""
        command = {
            Place.THREADS: ("faults.worlds.thread_driver", str(self._file())),
            Place.SPARK: ("tailrace.cli.main", "run", str(self._file()), "--output", "json"),
        }[self.world.place]
        planned = [
            crash_points.Crash(crash_points.Point(each.at), each.batch, times=each.times) for each in self.world.crashes
        ]
        environment = crash_points.crashes(self._marks, *planned) if planned else {}
        environment |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": self._path}
        self._drivers.append(Driver(["-m", *command], environment, self._folder))
        self._expected, self._struck = False, self._happened
        self._batches.ended()
        self.starts += 1
        return self._drivers[-1]

    @property
    def _driver(self) -> Driver:
        return self._drivers[-1]

    @property
    def _happened(self) -> int:
        return len(list(self._marks.glob("*.crash")))

    def step(self, wait: float = 0.1) -> None:
        """Take the next event, or start a driver in place of one that was struck."""
        code = self._driver.code
        heard = self._driver.next(wait)
        if heard is not None:
            self._heard = time.monotonic()
            self._batches.apply(heard.event)
        elif code is not None:
            self._check_end(code)
            self.start()

    def _check_end(self, code: int) -> None:
        """Raise Stuck if the driver had no reason to end: no strike, no crash point, and no broker that was away."""
        if self._expected or self._happened > self._struck:
            return
        error = self._driver.failure()
        reasons: tuple[type[TailraceError], ...] = ()
        if any(each in BROKER_STRIKES for each in self.world.strikes):
            reasons += BrokerUnreachable, KafkaFailed
        if Strike.REGISTRY in self.world.strikes:
            reasons += (KafkaFailed,)
        if self.starts >= _MOST_STARTS or not isinstance(error, reasons):
            raise Stuck(f"the driver ended by itself with {code}: {error}".replace("\n", " "))

    def follow(self, until: Any, what: str) -> None:
        """Take events until the condition holds."""
        ends, before = time.monotonic() + LIMIT, (0, -1, 0)
        while not until():
            self.step()
            now = (self.starts, self._batches.written, self._watch.kept.count)
            if now != before:
                before, ends = now, time.monotonic() + LIMIT
            if time.monotonic() > ends:
                raise Stuck(f"waited {LIMIT:g} s in vain for {what}")

    # -- input --------------------------------------------------------------------------------------

    def feed(self, share: float) -> None:
        """Write input until this share of the world's is there."""
        more = {
            number: int(count * share) - self.counts.get(number, 0)
            for number, count in enumerate(self.world.counts)
            if int(count * share) > self.counts.get(number, 0)
        }
        self._feed(more)

    def _feed(self, more: dict[int, int]) -> None:
        self._batches.idle = False
        feed(self.world, self._context.bootstrap, self.source, more, self.counts)
        for number, count in more.items():
            self.counts[number] = self.counts.get(number, 0) + count

    def drain(self) -> None:
        """Follow until all outputs are there, or the driver is idle for a while."""
        outputs = sum(int(wanted(self.world, count)[0].sum()) for count in self.counts.values())
        rejected = any(wanted(self.world, count)[1].any() for count in self.counts.values())

        def over() -> bool:
            there = self._watch.kept.count >= outputs and (self._batches.idle or not rejected)
            return there or (self._batches.idle and time.monotonic() - self._heard > QUIET)

        self.follow(over, f"{outputs} outputs")

    # -- strikes ------------------------------------------------------------------------------------

    def strike(self, kind: Strike) -> None:
        """Do it, while the pipeline has work."""
        written = self._batches.written
        self.follow(lambda: self._batches.written > written or self._batches.idle, "a batch before the strike")
        getattr(self, f"_{kind.value}")()

    def _kill(self) -> None:
        self._expected = True
        self._driver.kill()

    def _pause(self) -> None:
        first, tree = self._driver, self._tree()
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        try:
            self.start()
            written = self._batches.written
            self.follow(lambda: self._batches.written > written or self._batches.idle, "a batch of the second driver")
        finally:
            for each in tree:
                with suppress(psutil.NoSuchProcess):
                    each.resume()
        self._fenced(first)

    def _rival(self) -> None:
        first = self._driver
        if first.code is None:
            self.start()
            self._fenced(first)

    def _fenced(self, first: Driver) -> None:
        """The older driver must end because it is fenced; a crash point or a signal may end it before."""
        ends = time.monotonic() + LIMIT
        while first.code is None:
            self.step()
            if time.monotonic() > ends:
                raise Stuck("the older driver did not end")
        code = first.code
        if code not in (DriverFenced.exit_code, -signal.SIGKILL):
            raise Stuck(f"the older driver ended with {code}: {first.failure()}".replace("\n", " "))

    def _restart(self) -> None:
        self.stop()
        self.start()

    def _resize(self) -> None:
        self.stop()
        self._settings = {
            "sink": {"partitions": self._chance.choice((1, 2, 5, 11))},
            "batch": {"max_records": int(self.world.max_records * self._chance.choice((0.4, 1, 3)))},
        }
        self.start()

    def _broker(self) -> None:
        broker = self._chance.choice(self._context.kafka.brokers)
        broker.kill()
        self._for(_AWAY)
        broker.start()

    def _freeze(self) -> None:
        broker = self._chance.choice(self._context.kafka.brokers)
        broker.pause()
        try:
            self._for(_AWAY)
        finally:
            broker.resume()

    def _election(self) -> None:
        broker = self._chance.choice(self._context.kafka.brokers)
        broker.stop()
        broker.start()
        in_sync(self._context)
        # The restart moved its leaders away; the election brings them back, including the coordinators.
        admin = AdminClient({"bootstrap.servers": self._context.bootstrap})
        topics = admin.list_topics(timeout=20).topics
        places = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
        admin.elect_leaders(ElectionType.PREFERRED, places).result(timeout=60)

    def _grow(self) -> None:
        count = len(self.counts) + 2
        admin = AdminClient({"bootstrap.servers": self._context.bootstrap})
        admin.create_partitions([NewPartitions(self.source, count)])[self.source].result(30)
        self._for(1.0)
        self._feed(dict.fromkeys(range(count - 2, count), self.world.max_records))

    def _registry(self) -> None:
        if self._schemas is None:
            raise InvariantBroken("only a world with a registry can lose it")
        self._schemas.broken = True
        try:
            self._kill()
            self._for(_AWAY)
        finally:
            self._schemas.broken = False

    def _for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.step()

    def _tree(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._driver.pid)
            return [root, *root.children(recursive=True)]
        return []

    # -- the end ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send SIGTERM; the driver must exit with 0, unless a planned crash comes just then."""
        for _ in range(10):
            self._driver.ask_to_stop()
            code = self._driver.wait(LIMIT)
            while (heard := self._driver.next(0.0)) is not None:
                self._batches.apply(heard.event)
            if code == 0:
                self._batches.ended()
                return
            if code is None:
                raise Stuck("the driver did not stop")
            self._check_end(code)
            self.start()
            self.follow(lambda: self._batches.idle or self._driver.code is not None, "the restarted driver to be idle")
        raise Stuck("ten drivers did not stop")

    def close(self) -> None:
        """Leave no process behind."""
        for each in self._drivers:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                os.kill(each.pid, signal.SIGCONT)
            each.end(0.0)

    def judged(self, stuck: str) -> Outcome:
        """Read everything, and compare."""
        bootstrap = self._context.bootstrap
        lingering = open_after(bootstrap, self.name)
        output = read_into(Contents(self.world, self.source, rejected=False), bootstrap, self.sink)
        rejected = read_into(Contents(self.world, self.source, rejected=True), bootstrap, self.rejected)
        wrong, examples = found_wrong([output, rejected])
        planned: dict[int, AnyPlan] = {}
        with suppress(KeyError):  # no ledger was created
            planned = plans(bootstrap, self.ledger, self.name)
        last = max(planned, default=-1)
        ever = max((plan.sinks for plan in planned.values()), default=0)
        unsteady = 0 if stuck else differences(self._watch.finish(), output.seen)
        markers = (
            [] if stuck or last < 0 else wrong_markers(bootstrap, self.name, self.ledger, last, planned[last].sinks)
        )
        outcome = judge(self.world, self.counts, output.seen, rejected.seen)
        return replace(
            outcome,
            wrong=wrong,
            unsteady=unsteady,
            lingering=len(lingering),
            ids=len(beyond(bootstrap, self.name, ever)),
            markers=len(markers),
            stuck=stuck,
            examples=(*outcome.examples, *examples, *markers[:2]),
        )


def act(world: World, context: Context, package: Path | None = None) -> tuple[Outcome, int]:
    """Run a world; return what was found, and how many drivers were started.

    The drivers import `tailrace` from this folder, if one is given.
    """
    topics = (
        context.topic("in", len(world.counts)),
        context.topic("out", world.outputs),
        context.topic("rejected", 1),
    )
    with ExitStack() as stack:
        registry = stack.enter_context(schema_registry()) if world.encoding is Encoding.REGISTRY else None
        if registry is not None:
            registry.add(IN_SCHEMA, f"{topics[0]}-value")
        watch = stack.enter_context(watching(context.bootstrap, topics[1], partial(heads_of, world)))
        one = Act(world, context, watch, topics, package, registry)
        stuck = ""
        try:
            parts = len(world.strikes) + 1
            one.feed(1 / parts)
            one.start()
            for number, strike in enumerate(world.strikes, start=2):
                one.strike(strike)
                one.feed(number / parts)
            one.drain()
            one.stop()
        except Stuck as error:
            stuck = str(error)[:1000]
        finally:
            one.close()
        return one.judged(stuck), one.starts
