"""Kill -9 each kind of process at random moments, for Tailrace and for Spark's own sink."""

from __future__ import annotations

from functools import partial

from faults.driven import Driven, Kind, Shape, driven
from faults.proof import Strike, by_fault
from faults.scenario import Context, Expect, Result, Scenario


def kills(context: Context, native: bool = False) -> list[Result]:
    """Kill each kind in turn, in the middle of a batch, for a fixed number of rounds."""
    kinds = [Kind.DRIVER, Kind.JVM, Kind.TREE] if native else list(Kind)
    rounds = 8 if native else 3
    # The native sink repeats what it had written of a batch, so its batches are as large as ours.
    shape = Shape(100_000, rounds * len(kinds) * 3 + 12)
    strikes: list[Strike] = []
    with driven(context, shape, native=native) as one:
        one.start()
        one.follow(lambda: one.batches.written >= 1, "the second batch")
        for number in range(rounds * len(kinds)):
            kind = kinds[number % len(kinds)]
            batch = one.kill_in_batch(kind)
            context.say(f"{number + 1}: killed the {kind} in batch {batch}")
            strikes.append(Strike(f"{kind} killed -9 at a random moment", batch))
            one.follow(lambda batch=batch: one.batches.written >= batch or one.drained(), "the end of the struck batch")  # type: ignore[misc]
        one.drain()
        one.stop()
        return proved(one, strikes)


def proved(one: Driven, strikes: list[Strike]) -> list[Result]:
    """Return the results of a pipeline that was struck."""
    one.context.say(f"{one.starts} starts, {len(strikes)} kills")
    proof = one.prove()
    one.context.say(str(proof))
    expect = Expect.ANYTHING if one.native else Expect.EXACT
    return by_fault(proof, one.cuts(), strikes, native=one.native, expect=expect)


SCENARIOS = (
    Scenario("kills", "Kills at random", "promised", kills, quick=False),
    Scenario("native-kills", "Kills at random", "promised", partial(kills, native=True), quick=False),
)
