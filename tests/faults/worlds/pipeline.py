"""A world's pipeline: its input, and its drivers, which are followed and restarted as a supervisor would."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from faults.reading import Watching
from faults.scenario import Context
from faults.scenarios.clock import Clock
from faults.worlds.backfills import Backfill, Span
from faults.worlds.configuration import Outside, configuration, dropin, others
from faults.worlds.encodings import IN_SCHEMA, OUT_SCHEMA
from faults.worlds.excuses import Stuck, excuses, quiet_after, way_on_without
from faults.worlds.launching import MOST_STARTS, import_path, launched, program, told
from faults.worlds.oracle import Gap, open_read
from faults.worlds.records import FUNCTIONS, LEAVING_OUT, feed, wanted
from faults.worlds.replays import Replays
from faults.worlds.world import BROKER_STRIKES, GUARDED, NETWORK_STRIKES, Input, Place, Strike, Work, World
from support.kafkaproxy import ProxiedKafka
from support.minio import BUCKET, reach
from tailrace.demo.batches import Batches
from tailrace.demo.driver import Driver
from tailrace.errors import CutChanged, InvariantBroken, TailraceError

# Seconds without a batch, a start or the end of a start. The second is Spark's, which may be three JVMs: beside five
# other worlds, a start took 220 seconds, and a batch more than 120.
LIMIT, SLOW = 120.0, 300.0
_TELL = 4.0  # seconds for a stuck driver to say where its threads are
_PROXIED = NETWORK_STRIKES | {Strike.SLOW, Strike.UNLISTED}


class Driven:
    """One pipeline and its drivers; the strikes use what it offers."""

    def __init__(
        self, world: World, context: Context, watch: Watching, topics: tuple[str, str, str],
        package: Path | None, outside: Outside,
    ) -> None:  # fmt: skip
        self.world, self.context, self.watch, self.outside = world, context, watch, outside
        self.source, self.sink, self.rejected = topics
        self.name = f"w-{uuid.uuid4().hex[:8]}"
        self.ledger = f"{self.name}.ledger"
        self.counts: dict[int, int] = dict.fromkeys(range(len(world.counts)), 0)
        self.starts = self._begun = self._deployed = 0  # drivers, those of them that came to lead, and deploys
        self.chance = random.Random(world.seed + 1)
        self.folder = context.folder / self.name
        self.folder.mkdir(parents=True)
        self._marks, self.history = self.folder / "crashes", self.folder / "history.jsonl"
        self.settings: dict[str, Any] = {}
        self._refused: dict[str, Any] | None = None  # the settings before those, which an open batch may refuse
        self.path = import_path(package)
        self.names = [self.name]  # all that the pipeline has had
        self.backfill: Backfill | None = None
        self.replays: Replays | None = None
        self.address = ""  # of the driver's status page and metrics, if it serves them
        self._batches = Batches()
        self._drivers: list[Driver] = []
        self._awaited: tuple[type[TailraceError], ...] = ()  # refusals that a strike waits for
        self.expected = self._up = False  # whether the last driver's end is our doing; whether it was heard of
        self._heard = time.monotonic()
        self.gaps: list[Gap] = []  # what was deleted from the input before it was read
        self.base: dict[int, int] = {}  # of each source partition: the number of its record at offset 0
        self._clock = Clock(self.folder) if Strike.CLOCK in world.strikes else None
        self.change_code()
        for schema, name in ((IN_SCHEMA, "in.avsc"), (OUT_SCHEMA, "out.avsc")):
            (self.folder / name).write_text(json.dumps(schema))

    @property
    def _servers(self) -> str:
        """The brokers' addresses; through the proxy if the network or a broker's answers need it, or a right."""
        if GUARDED.intersection(self.world.strikes):
            return self.proxied.guarded_servers
        if _PROXIED.isdisjoint(self.world.strikes):
            return self.context.bootstrap
        return self.proxied.proxied_servers

    @property
    def proxied(self) -> ProxiedKafka:
        """The brokers, with the proxy before them."""
        kafka = self.context.kafka
        if not isinstance(kafka, ProxiedKafka):
            raise InvariantBroken("the network of a Kafka without a proxy cannot fail")
        return kafka

    @property
    def clock(self) -> Clock:
        """The clock that the pipeline's processes read."""
        if self._clock is None:
            raise InvariantBroken("this world's pipeline reads the machine's clock")
        return self._clock

    # -- the pipeline -------------------------------------------------------------------------------

    def change_code(self, to: int | None = None) -> int:
        """Write the function's file, as another text that does the same, or as the one before; return which it was."""
        before, self._deployed = self._deployed, self._deployed + 1 if to is None else to
        (self.folder / "work.py").write_text(f"{FUNCTIONS}\nDEPLOYED = {self._deployed}\n")
        return before

    def file(self) -> Path:
        """Write the configuration."""
        if self.world.place is Place.DROPIN:
            given = dropin(self.world, self._servers, self.name, self.source, self.sink, self.ledger)
            file = self.folder / "job.json"
            file.write_text(json.dumps(given))
            return file
        url = self.outside.schemas.url if self.outside.schemas is not None else ""
        state = "state" if self.outside.store is None else f"s3a://{BUCKET}/{self.name}"
        data = configuration(self.world, self._servers, self.name, self.source, self.sink, url, state)
        # A batch with state has a sink partition for each range that is read, and for each part of the state.
        partitions = 256 if self.world.work is Work.DISTINCT else 16
        data |= {"rejected": self.rejected, "ledger": {"topic": self.ledger, "partitions": partitions}}
        for section, values in self.settings.items():
            data[section] = data.get(section, {}) | values
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    def start(self) -> Driver:
        """Start a driver."""
        file = self.file()
        environment = told(self.world, self._marks, self.path, self.history)
        if self._clock is not None:
            environment |= self._clock.environment
        if self.outside.store is not None:
            environment |= reach(self.outside.store.endpoint)
        self._drivers.append(launched(program(self.world.place, file), environment, self.folder, self.world.place))
        self.expected, self._up, self._struck = False, False, self._happened
        self._batches.ended()
        self.starts += 1
        return self._drivers[-1]

    def rename(self, name: str) -> None:
        """Let the next driver run a pipeline of this name, on the same ledger and topics."""
        self.name = name
        if name not in self.names:
            self.names.append(name)

    def start_backfill(self, span: Span | None) -> None:
        """Start the world's backfill, if it has one, of a range that is in the source."""
        if self.world.backfill is not None and span is not None and span.records:
            self.backfill = Backfill(self, span, self.world.backfill, self.path)

    @property
    def _beside(self) -> list[Backfill | Replays]:
        """What runs next to the pipeline."""
        return [each for each in (self.backfill, self.replays) if each is not None]

    @property
    def driver(self) -> Driver:
        """The last driver."""
        return self._drivers[-1]

    @property
    def _happened(self) -> int:
        return len(list(self._marks.glob("*.crash")))

    def step(self, wait: float = 0.1) -> None:
        """Take the next event, or start a driver in place of one that was struck."""
        code = self.driver.code
        heard = self.driver.next(wait)
        if heard is not None:
            self._heard, self._up = time.monotonic(), True
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as kept:  # it tells why one is stuck
                kept.write(json.dumps({"heard": heard.at, "start": self.starts, **heard.event}) + "\n")
            self._batches.apply(heard.event)
            kind, self.address = heard.event.get("event"), str(heard.event.get("url", self.address))
            self._begun += kind == "started"
        elif code is not None and not self.refused:
            self._check_end(code)
            self.start()
        for each in self._beside:
            each.step()

    def _check_end(self, code: int) -> None:
        """Raise Stuck if the driver had no reason to end: no strike, no crash point, and no broker that was away."""
        if self._happened > self._struck and self.world.unlike:
            self._refused, self.settings = self.settings, others(self.settings, self.world, self.chance)
        if self.expected or self._happened > self._struck:
            return
        error = self.driver.failure()
        if self._refused is not None and isinstance(error, CutChanged):  # the old settings must finish the batch
            self.settings, self._refused = self._refused, None
            return
        struck = BROKER_STRIKES.intersection(self.world.strikes)
        if struck and self.world.place is Place.DROPIN and self.starts < MOST_STARTS:
            return  # Spark's source ends a query in many ways when a broker is away
        if self.gaps and way_on_without(error) and self.starts < MOST_STARTS:
            self.settings.setdefault("source", {})["on_data_loss"] = "reset"
            return
        if self.starts >= MOST_STARTS or not isinstance(error, excuses(self.world)):
            raise Stuck(f"the driver ended by itself with {code}: {error}".replace("\n", " "))

    def follow(self, until: Any, what: str, patience: float = LIMIT) -> None:
        """Take events until the condition holds; nothing may happen for so many seconds."""
        since, before = time.monotonic(), (0, 0, -1, 0, 0)
        while not until():
            self.step()
            again = sum(each.progress for each in self._beside)
            now = (self.starts, self._begun, self._batches.written, self.watch.kept.count, again)
            if now != before:
                before, since = now, time.monotonic()
            limit = max(patience, LIMIT if self.world.place is Place.THREADS else SLOW)
            if time.monotonic() - since > limit:
                raise Stuck(f"waited {limit:g} s in vain for {what}")

    def accepted(self, *refusals: type[TailraceError], patience: float = LIMIT) -> bool:
        """Follow until a batch is delivered, or there is nothing to do; return False if the start is refused so."""
        written = self._batches.written
        with self.awaiting(*refusals):
            self.follow(
                lambda: self._batches.written > written or self._batches.idle or self.refused,
                "the start to be accepted, or refused",
                patience,
            )
            return not self.refused

    @contextmanager
    def awaiting(self, *refusals: type[TailraceError]) -> Iterator[None]:
        """Let a driver end with one of these for a while, instead of starting another one."""
        before, self._awaited = self._awaited, refusals
        try:
            yield
        finally:
            self._awaited = before

    @property
    def refused(self) -> bool:
        """Whether the last driver has ended with an error that is awaited."""
        return bool(self._awaited) and self.driver.code is not None and isinstance(self.driver.failure(), self._awaited)

    # -- input --------------------------------------------------------------------------------------

    def feed(self, share: float) -> None:
        """Write input until this share of the world's is there."""
        more = {
            number: int(count * share) - self.counts.get(number, 0)
            for number, count in enumerate(self.world.counts)
            if int(count * share) > self.counts.get(number, 0)
        }
        self.write(more)

    def write(self, more: dict[int, int]) -> None:
        """Write so many records more to each of these partitions."""
        self._batches.idle = False
        feed(self.world, self.context.bootstrap, self.source, more, self.counts)
        self.counts |= {number: self.counts.get(number, 0) + count for number, count in more.items()}

    def drain(self) -> None:
        """Follow until all outputs are there, or the driver is idle for a while."""
        outputs = sum(int(wanted(self.world, number, count)[0].sum()) for number, count in self.counts.items())
        rejected = any(wanted(self.world, number, count)[1].any() for number, count in self.counts.items())
        # How many outputs there will be is not known if some may be missing, or repeated.
        unsure = self.world.input is Input.COMPACTED or self.world.work is Work.LIMIT or open_read(self.world)
        counted = not unsure and not self.world.knobs.at_least_once
        # The last batches may have no outputs: their records are left out, or they hold only ends of transactions.
        idles = rejected or self.world.work in LEAVING_OUT or self.world.place is Place.DROPIN
        idles = idles or self.world.input in {Input.COMMITTED, Input.ABORTED}

        def over() -> bool:
            there = counted and self.watch.kept.count >= outputs and (self._batches.idle or not idles)
            quiet = self._batches.idle and time.monotonic() - self._heard > quiet_after(self.world)
            return (there or quiet) and all(each.over for each in self._beside)

        self.follow(over, " and ".join([f"{outputs} outputs", *map(str, self._beside)]))

    def work(self, what: str) -> None:
        """Follow until one more batch is delivered, or there is nothing to do."""
        written = self._batches.written
        self.follow(lambda: self._batches.written > written or self._batches.idle, what)

    def rest(self, what: str) -> None:
        """Follow until there is nothing to do."""
        self.follow(lambda: self._batches.idle, what)

    def begin(self, what: str) -> None:
        """Follow until a batch is in progress, or there is nothing to do."""
        self.follow(lambda: self._batches.open is not None or self._batches.idle, what)

    # -- for the strikes ------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the last driver; the strike starts another one, or the next step does."""
        self.expected = True
        self.driver.kill()

    def finish(self, settings: dict[str, Any], what: str) -> None:
        """Let a driver with other settings deliver the open batch that refuses those of now, and stop."""
        now, self.settings = self.settings, settings
        self.start()
        self.work(what)
        self.stop()
        self.settings = now

    def wait(self, seconds: float) -> None:
        """Take events for some seconds."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.refused:
            self.step()

    def tree(self) -> list[psutil.Process]:
        """Return the processes of the last driver."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.driver.pid)
            return [root, *root.children(recursive=True)]
        return []

    # -- the end ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send SIGTERM; the driver must exit with 0, unless a planned crash comes just then."""
        for _ in range(10):
            # Before it listens for signals, one would kill it.
            self.follow(lambda: self._up, "the driver to say something")
            self.driver.ask_to_stop()
            code = self.driver.wait(LIMIT)
            while (heard := self.driver.next(0.0)) is not None:
                self._batches.apply(heard.event)
            if code == 0:
                self._batches.ended()
                return
            if code is None:
                raise Stuck("the driver did not stop")
            self._check_end(code)
            self.start()
            self.follow(lambda: self._batches.idle or self.driver.code is not None, "the restarted driver to be idle")
        raise Stuck("ten drivers did not stop")

    def close(self, stuck: bool = False) -> None:
        """Leave no process behind, and no network that is slow; the log of a stuck one says what its threads do."""
        self.proxied.proxy.heal()
        for other in self._beside:
            other.close()
        for each in self._drivers:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                os.kill(each.pid, signal.SIGCONT)
                if stuck and each.code is None:
                    os.kill(each.pid, signal.SIGABRT)
            each.end(_TELL if stuck else 0.0)
