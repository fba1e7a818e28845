"""Every order of steps of two attempts, or two drivers: each batch comes out once and complete, or waits.

The search visits every world up to a bound; Hypothesis goes further at random. Both run Tailrace's own functions
against the model in `support.protocol`. Both must also be able to fail: without any one of the rules they find the
fault that the rule prevents.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from support.exploration import check, explore
from support.protocol import Bounds, Broken, Protocol, Rules, World
from tailrace.progress import states
from tailrace.progress.marker import Decision

# One attempt more for each (430 and 363 thousand worlds) finds nothing else, and takes half a minute.
TWO_ATTEMPTS = Bounds(batches=2, attempts=3, resent=1, slots=2)
TWO_DRIVERS = Bounds(batches=2, attempts=2, resent=1, slots=2, drivers=2, shared=False)
# A fault shows early, so a search for one may be smaller.
SMALL = replace(TWO_ATTEMPTS, attempts=2)


BROKEN_RULES = {
    "fencing": (Rules(fences=False), SMALL, "committed twice"),
    "reading the marker": (Rules(decide=lambda marker, batch, digest, who: Decision.WRITE), SMALL, "committed twice"),
    "the marker in the transaction": (Rules(seals=False), SMALL, "torn"),
    "no belief in a doubtful commit": (Rules(believes_doubt=True), SMALL, "torn"),
    "no second use of an epoch after a doubt": (
        Rules(unfit=lambda state, heard: states.unfit(state, "")),
        SMALL,
        "torn",
    ),
    "reading the marker unless one wrote the previous batch": (
        Rules(remembers=lambda last, batch: True),
        SMALL,
        "fenced cannot begin",  # the table does not allow it
    ),
}


@pytest.mark.parametrize("bounds", [TWO_ATTEMPTS, TWO_DRIVERS], ids=["two attempts", "two drivers"])
def test_each_batch_comes_out_once_in_every_order_of_steps(bounds: Bounds) -> None:
    """There are no two commits and no half batch, and no batch is reported done before it is."""
    found = explore(Protocol(bounds))
    assert found.fault == "", "\n".join(found.trace)
    assert found.worlds > 30_000
    assert found.finished > 0  # otherwise nothing would have been shown


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_removing_a_rule_reveals_the_fault_that_it_prevents(rule: str) -> None:
    """The search reports the shortest way to it: it can fail, and each rule is needed."""
    rules, bounds, fault = BROKEN_RULES[rule]
    found = explore(Protocol(bounds, rules))
    assert fault in found.fault
    assert found.trace


def test_a_late_end_of_a_transaction_ends_the_next_one_of_its_epoch() -> None:
    """In KAFKA-17754, the way to the torn batch goes through a request that was sent twice."""
    rules, bounds, _ = BROKEN_RULES["no second use of an epoch after a doubt"]
    trace = explore(Protocol(bounds, rules)).trace
    assert any("asks to commit again" in step for step in trace)
    assert trace[-1].startswith("network: delivers")


def test_the_choice_of_gateway_affects_only_speed() -> None:
    """The warm producer of another executor was fenced, so using it costs an attempt and no record."""
    found = explore(Protocol(replace(TWO_ATTEMPTS, resent=0), Rules(overtaken=lambda made_in, run, owner, here: "")))
    assert found.fault == "", "\n".join(found.trace)


class Machine(RuleBasedStateMachine):
    """Longer lives than the search can afford: more batches, attempts and lost answers; drivers share gateways."""

    kept = Rules()
    bounds = Bounds(batches=6, attempts=16, resent=4, slots=2, drivers=2)

    @initialize()
    def begin(self) -> None:
        """Start with the world in which nothing has happened."""
        self.protocol = Protocol(self.bounds, self.kept)
        self.world: World = self.protocol.start()
        self.open = list(self.protocol.moves(self.world))

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Take any possible next step; those that end an attempt or lose a request are rarer."""
        if not self.open:
            return  # everything is done
        rough = data.draw(st.integers(0, 3), "rough") == 0
        chosen = [move for move in self.open if rough or not move[0].startswith(ROUGH)] or self.open
        name, self.world = chosen[data.draw(st.integers(0, len(chosen) - 1), "which")]
        note(name)
        self.open = list(self.protocol.moves(self.world))

    @invariant()
    def exact(self) -> None:
        """Check that nothing was committed twice, and no batch in part."""
        if hasattr(self, "world"):
            check(self.world)


ROUGH = ("the attempt dies", "network: loses", "kafka: the transaction takes too long", "is in doubt", "gives up")


def test_a_long_random_life_is_exact() -> None:
    """There are forty lives of up to 150 steps."""
    run_state_machine_as_test(Machine, settings=_settings(40))


def test_a_long_random_life_without_fencing_is_not_exact() -> None:
    """This shows that the machine can fail."""

    class Unfenced(Machine):
        kept = Rules(fences=False)

    with pytest.raises(Broken, match="committed twice"):
        run_state_machine_as_test(Unfenced, settings=_settings(40))


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=150,
        derandomize=True,  # a test that fails once must fail again
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # the search finds the shortest way to a fault
    )
