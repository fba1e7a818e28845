"""A soak under strikes: one pipeline for hours, a strike a minute, and what grows meanwhile.

`make faults SOAK=120` runs it for 120 minutes. In the end every record is compared as in any world, and each thing that
could leak has a line: its first, last and greatest value, and its slope per hour with the slope's standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from bench.figures import slope
from bench.processes import KINDS, MARK, OTHER, family, kind_of
from faults.reading import exists, watching
from faults.scenario import Context
from faults.transactions import ids
from faults.worlds.act import judged
from faults.worlds.configuration import Outside
from faults.worlds.encodings import heads_of
from faults.worlds.excuses import Stuck
from faults.worlds.lanes import brokers
from faults.worlds.pipeline import Driven
from faults.worlds.strikes import strike
from faults.worlds.world import Encoding, Input, Place, Strike, Work, World
from support import archive
from tailrace.config import Kafka
from tailrace.kafka.cluster import Cluster

# Strikes after which the same pipeline continues with the same settings.
KINDS_OF_STRIKE = (
    Strike.KILL, Strike.PAUSE, Strike.RIVAL, Strike.RESTART, Strike.BROKER, Strike.FREEZE, Strike.FULL, Strike.ROLLING,
    Strike.SPLIT, Strike.FEW, Strike.ELECTION, Strike.CUT, Strike.OUTAGE, Strike.SILENCE,
)  # fmt: skip
RATE = 1000  # records per second
WARM = 5  # the first fifth of the time is warm-up and not in the slope
_EVERY = 60.0  # seconds between two strikes
_FEED, _LOOK, _COUNT = 2.0, 5.0, 60.0  # seconds between two writes, two looks at processes, two counts in Kafka
_PARTITIONS = 4
_HTTP_LIMIT = 5.0

Samples = dict[str, list[tuple[float, float]]]  # what → hours and value


def world(seed: int, place: Place) -> World:
    """Return the pipeline that is soaked; its strikes are those that it is drawn from."""
    return World(
        seed=seed, place=place, work=Work.EXPLODE, encoding=Encoding.JSON, input=Input.PLAIN,
        counts=(0,) * _PARTITIONS, outputs=3, bad_every=97, max_records=5000, sink_partitions=None,
        source_partitions=None, strikes=KINDS_OF_STRIKE, crashes=(),
    )  # fmt: skip


class Soak:
    """One pipeline, its load, its strikes and its samples."""

    def __init__(self, one: Driven, minutes: float) -> None:
        self.one, self.strikes = one, 0
        self.samples: Samples = defaultdict(list)
        self._began = self._fed = time.monotonic()
        self._ends = self._began + minutes * 60
        self._looked = self._counted = 0.0
        self._rest = 0.0  # records that are due and not yet written

    def run(self) -> None:
        """Strike once a minute, until the time is over."""
        due = time.monotonic() + _EVERY
        while time.monotonic() < self._ends:
            self.one.step()
            self._go_on()
            if time.monotonic() > due:
                due += _EVERY
                kind = self.one.chance.choice(KINDS_OF_STRIKE)
                minute = (time.monotonic() - self._began) / 60
                say(f"minute {minute:.0f}: {kind}; {sum(self.one.counts.values()):,} records, {self.one.starts} starts")
                self._write()
                strike(self.one, kind)
                self.one.work("a batch after the strike")
                self.strikes += 1

    def _go_on(self) -> None:
        now = time.monotonic()
        if now - self._fed > _FEED:
            self._write()
        if now - self._looked > _LOOK:
            self._looked = now
            self._look()
        if now - self._counted > _COUNT:
            self._counted = now
            self._count()

    def _write(self) -> None:
        now = time.monotonic()
        self._rest += (now - self._fed) * RATE
        self._fed, each = now, int(self._rest) // _PARTITIONS
        self._rest -= each * _PARTITIONS
        if each:
            self.one.write(dict.fromkeys(range(_PARTITIONS), each))

    def _sample(self, what: str, value: float) -> None:
        self.samples[what].append(((time.monotonic() - self._began) / 3600, value))

    def _look(self) -> None:
        """Sample the memory and the open files of each process of the pipeline and the brokers."""
        memory: dict[str, float] = defaultdict(float)
        files: dict[str, float] = defaultdict(float)
        brokers = {each.pid: f"broker {each.node_id}" for each in self.one.context.kafka.brokers if each.alive}
        processes = [*family(self.one.name), *(psutil.Process(pid) for pid in brokers if psutil.pid_exists(pid))]
        for process in processes:
            with suppress(psutil.Error, OSError):
                kind = brokers.get(process.pid) or kind_of(process.cmdline(), process.pid == self.one.driver.pid)
                if kind != OTHER:
                    memory[kind] += process.memory_info().rss / 2**20
                    files[kind] += process.num_fds()
        for kind, size in memory.items():
            self._sample(f"{KINDS.get(kind, kind)}, MB", size)
            self._sample(f"{KINDS.get(kind, kind)}, open files", files[kind])

    def _count(self) -> None:
        """Sample what the pipeline leaves in Kafka, and its series."""
        bootstrap, ledger = self.one.context.bootstrap, self.one.ledger
        self._sample("transactional ids", len(ids(bootstrap, self.one.name)))
        if exists(bootstrap, ledger):
            folders = self.one.context.kafka.folder.glob(f"broker-1/data/{ledger}-*/*")
            sizes = []
            for file in folders:
                with suppress(FileNotFoundError):
                    sizes.append(file.stat().st_blocks * 512)
            self._sample("ledger on one broker, kB", sum(sizes) / 1024)
            cluster = Cluster(Kafka(bootstrap_servers=bootstrap))
            places = [(ledger, number) for number in range(cluster.topics().get(ledger, 0))]
            first, last = cluster.earliest(places), cluster.latest(places)
            self._sample("ledger, offsets", sum(last[place] - first[place] for place in places))
        if self.one.address:
            with suppress(OSError), urllib.request.urlopen(f"{self.one.address}metrics", timeout=_HTTP_LIMIT) as answer:
                lines = answer.read().decode().splitlines()
                self._sample("driver's series", sum(bool(each) and not each.startswith("#") for each in lines))


def table(samples: Samples) -> str:
    """Return a line for each thing that was sampled."""
    lines = ["| what | first | last | greatest | slope per hour |", "|---|---:|---:|---:|---:|"]
    for what, found in sorted(samples.items()):
        warm = [each for each in found if each[0] >= found[-1][0] / WARM]
        fitted, values = slope(warm), [value for _, value in warm]
        lines.append(
            f"| {what} | {values[0]:,.0f} | {values[-1]:,.0f} | {max(values):,.0f} | "
            f"{fitted.slope:+,.1f} ± {fitted.error:,.1f} |"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Soak; return 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="faults.worlds.soak", description="Run one pipeline under a strike a minute.")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides which strikes come")
    parser.add_argument("--place", type=Place, choices=[Place.SPARK, Place.CLUSTER, Place.THREADS], default=Place.SPARK)
    parser.add_argument("--json", type=Path, help="write the samples to this file")
    chosen = parser.parse_args(arguments)
    archive.use()
    soaked = world(chosen.seed, chosen.place)
    with brokers() as kafka, tempfile.TemporaryDirectory(prefix="tailrace-soak-") as folder:
        context = Context(kafka, Path(folder), chosen.seed, True, say)
        topics = (context.topic("in", _PARTITIONS), context.topic("out", soaked.outputs), context.topic("rejected", 1))
        with watching(context.bootstrap, topics[1], partial(heads_of, soaked)) as watch:
            one = Driven(soaked, context, watch, topics, None, Outside())
            one.settings = {"metrics": {"enabled": True, "port": 0, "gateways": 0}}
            os.environ[MARK] = one.name  # which every process of the pipeline inherits
            stuck, soak = "", Soak(one, chosen.minutes)
            try:
                one.write(dict.fromkeys(range(_PARTITIONS), RATE))
                one.start()
                soak.run()
                one.drain()
                one.stop()
            except Stuck as error:
                stuck = str(error)
            finally:
                one.close()
            outcome = judged(one, stuck)
    say(table(soak.samples))
    kept = "kept" if outcome.good else "BROKEN"
    say(f"{kept} seed {chosen.seed}: {soak.strikes} strikes, {one.starts} starts, {outcome}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"seed": chosen.seed, "minutes": chosen.minutes, "samples": soak.samples}))
    return int(not outcome.good)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
