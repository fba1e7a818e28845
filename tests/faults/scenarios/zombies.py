"""Zombies: drivers, executors and gateways that stall, are given up and replaced, and then resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psutil

from faults.scenario import Context, Result, Scenario
from faults.supervision import proven
from support.drivers import Load
from support.stopping import paused, tree
from support.supervised import LIMIT, Supervised
from tailrace.errors import DriverFenced

RATE = 1000
TWO_EXECUTORS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.locality.wait": "0s",
}
SOON_GIVEN_UP = {
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "2s",
}


def paused_driver(context: Context) -> Sequence[Result]:
    """Pause the driver and its executors in mid-batch, let another take over, then resume the first."""
    times = 1 if context.quick else 3
    one = Supervised(context.bootstrap, context.bootstrap, context.folder / "driver", again=False)
    fenced = 0
    with Load(one.direct, one.source, RATE) as load, one:
        old = one.start()
        for _ in range(times):
            old.more(number=3)
            old.more("planned")
            with paused(tree(psutil.Process(old.process.pid))):
                new = one.start()
                new.more(number=3)
            code = old.process.wait(LIMIT)
            context.say(f"the older driver ended with {code}")
            fenced += code == DriverFenced.exit_code
            old = new
        load.stop()
        one.drained(load)
    if fenced != times:
        raise RuntimeError(
            f"the older driver stopped with {DriverFenced.code} {fenced} times, but {times} were expected"
        )
    note = f"the older one stopped with {DriverFenced.code}"
    return [proven(one, "a driver is paused, another takes over, the first resumes", runs=times, note=note)]


def paused_gateway(context: Context) -> Sequence[Result]:
    """Pause a gateway in mid-batch; its tasks notice, and are retried."""
    return [executor_part(context, "gateway", "tailrace.gateway.server", TWO_EXECUTORS, times=4)]


def paused_executor(context: Context) -> Sequence[Result]:
    """Pause an executor with its workers and gateway until the driver has given it up; then resume it."""
    spark = TWO_EXECUTORS | SOON_GIVEN_UP
    return [executor_part(context, "executor", "CoarseGrainedExecutorBackend", spark, times=3)]


def executor_part(context: Context, what: str, word: str, spark: Mapping[str, str], times: int) -> Result:
    """Pause a process whose command line contains `word`, with its descendants, while the pipeline continues."""
    one = Supervised(context.bootstrap, context.bootstrap, context.folder / what, spark=spark)
    with Load(one.direct, one.source, RATE) as load, one:
        one.more(number=4)
        for _ in range(times):
            one.more("planned")
            victim = context.chance.choice(one.tree(word))
            with paused(tree(victim)):
                one.more(number=3)
            one.more(number=2)
        load.stop()
        one.drained(load)
    note = f"{len(one.codes) - 1} restarts"
    return proven(one, f"the {what} is paused, given up, and resumed if it is still alive", runs=times, note=note)


SCENARIOS = (
    Scenario("zombie-driver", "Zombies", "promised", paused_driver, quick=False),
    Scenario("zombie-gateway", "Zombies", "promised", paused_gateway, quick=False),
    Scenario("zombie-executor", "Zombies", "promised", paused_executor, quick=False),
)
