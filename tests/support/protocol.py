"""The protocol of a sink partition against a small model of Kafka, step by step, so that every order can be tried.

Tailrace's part is the real code: the transition table (`after`), `decide`, and what a kept producer may skip (`unfit`,
`overtaken`, `remembers`). Kafka's part is what the protocol relies on: one transactional id with its epoch, its open
transaction, requests to end it that are late, lost or sent twice (as a client without KIP-890 sends them), and markers
that are written some time after the outcome is decided. `Rules` can remove one rule at a time: then the exploration
must find the fault that the rule prevents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.errors import MarkerConflict
from tailrace.progress import states
from tailrace.progress.marker import Decision, Marker, decide
from tailrace.progress.plan import BatchId
from tailrace.progress.states import Event, State
from tailrace.progress.stream_plan import Slice, StreamPlan

RECORDS = 2  # per sink partition and batch: enough for half a transaction

Record = tuple[int, int]  # batch, number


class Broken(Exception):
    """Raised when something happened that must never happen."""


class Transaction(NamedTuple):
    """A transaction that is open, or decided and not yet written down."""

    records: tuple[Record, ...] = ()
    marker: Marker | None = None
    ending: bool = False  # decided: nothing can be added, and the outcome is fixed
    commits: bool = False


class End(NamedTuple):
    """A request to commit, in flight."""

    epoch: int
    slot: int
    batch: int


class Broker(NamedTuple):
    """One transactional id, and what a read_committed consumer sees."""

    epoch: int = 0
    open: Transaction | None = None
    ended: bool = False  # the last transaction of this epoch was committed
    flight: tuple[End, ...] = ()
    visible: tuple[Record, ...] = ()
    stored: Marker | None = None

    @property
    def decided(self) -> tuple[Record, ...]:
        """Return the records whose fate is settled: they are visible, or will be."""
        return self.visible + (self.open.records if self.open is not None and self.open.commits else ())

    @property
    def written(self) -> Marker | None:
        """Return the marker that goes with them."""
        return self.open.marker if self.open is not None and self.open.commits else self.stored


class Slot(NamedTuple):
    """One gateway: the producer that it keeps, and the attempt that uses it."""

    state: State = State.UNKNOWN
    epoch: int = -1
    made_in: int = -1  # the run that created it
    last: int | None = None
    heard: bool = False
    # the attempt
    busy: bool = False
    run: int = -1
    batch: int = -1
    digest: str = ""
    cleared: bool = False  # it has read the marker, or need not: it may write
    sent: int = 0
    answer: bool | None = None  # to the request to commit


class Step(NamedTuple):
    """How far a driver has come."""

    epoch: int = -1
    at: str = "out"  # out → taken → fenced → planned, and planned again; or stopped
    batch: int = -1
    digest: str = ""
    done: bool = False
    owner: str = ""


class World(NamedTuple):
    """The state of everything: equal worlds have equal futures."""

    broker: Broker = Broker()
    slots: tuple[Slot, ...] = ()
    drivers: tuple[Step, ...] = ()
    leader: int = 0  # the epoch of the drivers' transactional id
    plan: tuple[int, str] = (-1, "")  # the last one in the ledger
    attempts: int = 0
    resent: int = 0


@dataclass(frozen=True)
class Rules:
    """What makes the protocol exact: Tailrace's own functions, and what they rely on."""

    after: Callable[[State, Event], State] = states.after
    decide: Callable[[Marker | None, BatchId, str, str], Decision] = decide
    unfit: Callable[[State, str], str] = states.unfit
    overtaken: Callable[[str, str, str, str], str] = states.overtaken
    remembers: Callable[[BatchId | None, BatchId], bool] = states.remembers
    fences: bool = True  # a new owner of the transactional id ends what the old one has open
    fences_drivers: bool = True
    seals: bool = True  # the marker is in the transaction
    believes_doubt: bool = False  # a commit without an answer counts as done


@dataclass(frozen=True)
class Bounds:
    """How large a world may grow."""

    batches: int = 2
    attempts: int = 3
    resent: int = 1
    slots: int = 2
    drivers: int = 1
    shared: bool = True  # any driver may use any slot


Move = tuple[str, World]


@functools.cache
def plan_of(driver: int, batch: int) -> StreamPlan:
    """Return the plan that a driver makes for a batch; another driver cuts it differently."""
    cut = Slice(f"in-0:{batch * RECORDS}-{(batch + 1) * RECORDS}" + f"+#{driver}")
    return StreamPlan("p", "q", BatchId(batch), (), (cut,), "")


class Protocol:
    """Every step that may come next in a world."""

    def __init__(self, bounds: Bounds | None = None, rules: Rules | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.rules = rules or Rules()

    def start(self) -> World:
        """Return the world in which nothing has happened."""
        return World(slots=(Slot(),) * self.bounds.slots, drivers=(Step(),) * self.bounds.drivers)

    def moves(self, world: World) -> Iterator[Move]:
        """Yield what can happen next, with the resulting world."""
        yield from self._broker(world)
        for number in range(len(world.slots)):
            for name, then in self._slot(world, number):
                yield f"{name} [{number}]", then
        for number in range(len(world.drivers)):
            for name, then in self._driver(world, number):
                yield f"{name} <{number}>", then

    # -- Kafka -------------------------------------------------------------------------------------

    def _broker(self, world: World) -> Iterator[Move]:
        broker = world.broker
        if broker.open is not None and broker.open.ending:
            yield "kafka: writes the outcome down", world._replace(broker=_settled(broker))
        if broker.open is not None and not broker.open.ending and self.rules.fences:
            yield "kafka: the transaction takes too long", world._replace(broker=_aborted(broker))
        for request in dict.fromkeys(broker.flight):
            left = list(broker.flight)
            left.remove(request)
            remaining = broker._replace(flight=tuple(left))
            yield f"network: loses {request}", world._replace(broker=remaining)
            if remaining.open is None or not remaining.open.ending:  # otherwise it is retried
                yield f"network: delivers {request}", _delivered(world, remaining, request)

    def _init(self, broker: Broker) -> tuple[Broker, int | None]:
        """Handle InitProducerId; return no epoch if the client has to ask again."""
        if not self.rules.fences:
            return broker, broker.epoch
        if broker.open is not None:
            return (broker, None) if broker.open.ending else (_aborted(broker), None)
        return broker._replace(epoch=broker.epoch + 1, ended=False), broker.epoch + 1

    # -- a gateway ----------------------------------------------------------------------------------

    def _slot(self, world: World, number: int) -> Iterator[Move]:
        slot, broker = world.slots[number], world.broker
        if not slot.busy:
            return
        step = functools.partial(_with, world, number)
        yield "the attempt dies", step(Slot())
        if slot.state is State.UNKNOWN:
            asked, epoch = self._init(broker)
            if epoch is not None:
                fresh = slot._replace(state=self.rules.after(slot.state, Event.FENCE), epoch=epoch)
                yield "fences", step(fresh, asked)
            elif asked != broker:
                yield "fences, and must wait for an abort", step(slot, asked)
        elif not slot.cleared:
            if broker.open is None or broker.open.marker is None:  # otherwise its answer is not stable yet
                yield from self._read(world, number)
        elif slot.state in {State.READY, State.FENCED}:
            yield "begins", step(slot._replace(state=self.rules.after(slot.state, Event.BEGIN), sent=0))
        elif slot.state is State.OPEN:
            yield from self._write(world, number)
        elif slot.state is State.SEALED:
            request = End(slot.epoch, number, slot.batch)
            sent = broker._replace(flight=tuple(sorted((*broker.flight, request))))
            asking = slot._replace(state=self.rules.after(slot.state, Event.COMMIT), answer=None)
            yield "asks to commit", step(asking, sent)
        elif slot.state is State.COMMITTING:
            yield from self._commit(world, number)
        held = slot.state in {State.OPEN, State.SEALED} and slot.epoch == broker.epoch
        if held and broker.open is not None and not broker.open.ending:
            yield "gives up and aborts", step(Slot(), _aborted(broker, 0))

    def _read(self, world: World, number: int) -> Iterator[Move]:
        slot, broker = world.slots[number], world.broker
        ready = slot._replace(state=self.rules.after(slot.state, Event.READ))
        try:
            decision = self.rules.decide(broker.stored, BatchId(slot.batch), slot.digest, "p")
        except MarkerConflict:
            yield "reads the marker and stops", _with(world, number, Slot())
            return
        if decision is Decision.WRITE:
            yield "reads the marker and writes", _with(world, number, ready._replace(cleared=True))
            return
        _require_complete(broker, slot.batch, "was skipped")
        yield "reads the marker and skips", _reported(_with(world, number, _idle(ready)), number, slot)

    def _write(self, world: World, number: int) -> Iterator[Move]:
        slot, broker = world.slots[number], world.broker
        owns = slot.epoch == broker.epoch
        if owns and broker.open is not None and broker.open.ending:
            return  # the client has to retry
        transaction = broker.open or Transaction()
        if slot.sent < RECORDS:
            sent = slot._replace(sent=slot.sent + 1)
            record = (slot.batch, slot.sent)
            wrote = broker._replace(open=transaction._replace(records=(*transaction.records, record)))
            # A fenced producer does not learn of it before the commit.
            yield f"sends record {slot.sent}", _with(world, number, sent, wrote if owns else broker)
        elif slot.heard and self.rules.unfit(State.READY, "heard"):
            self.rules.after(slot.state, Event.DOUBT)
            yield "has a doubt before its marker", _with(world, number, Slot())
        elif not owns:
            self.rules.after(slot.state, Event.DOUBT)
            yield "finds out that it was fenced", _with(world, number, Slot())
        else:
            marker = Marker.of(BatchId(slot.batch), slot.digest, 1) if self.rules.seals else transaction.marker
            sealed = slot._replace(state=self.rules.after(slot.state, Event.SEAL))
            yield "seals", _with(world, number, sealed, broker._replace(open=transaction._replace(marker=marker)))

    def _commit(self, world: World, number: int) -> Iterator[Move]:
        slot, broker = world.slots[number], world.broker
        if slot.answer is True:
            done = slot._replace(state=self.rules.after(slot.state, Event.COMMITTED), last=slot.batch)
            _require_complete(broker, slot.batch, "was reported")
            yield "learns that it has committed", _reported(_with(world, number, _idle(done)), number, slot)
            return
        self.rules.after(slot.state, Event.DOUBT)
        if self.rules.believes_doubt:
            taken = slot._replace(state=State.READY, last=slot.batch)
            yield "believes", _reported(_with(world, number, _idle(taken)), number, slot)
            return
        yield "is in doubt", _with(world, number, Slot())
        if slot.answer is None and world.resent < self.bounds.resent:
            request = End(slot.epoch, number, slot.batch)
            sent = broker._replace(flight=tuple(sorted((*broker.flight, request))))
            again = _with(world, number, slot._replace(heard=True), sent)
            yield "asks to commit again", again._replace(resent=world.resent + 1)

    # -- a driver ----------------------------------------------------------------------------------

    def _driver(self, world: World, number: int) -> Iterator[Move]:
        driver = world.drivers[number]
        if driver.at == "out":
            epoch = world.leader + 1 if self.rules.fences_drivers else world.leader
            taken = world._replace(leader=epoch)
            yield "takes the ledger", _driven(taken, number, driver._replace(at="taken", epoch=epoch))
        elif driver.at == "taken":
            asked, epoch2 = self._init(world.broker)
            then = world._replace(broker=asked)
            if epoch2 is not None:
                batch, digest = world.plan
                yield (
                    "reads the plan and fences",
                    _driven(then, number, driver._replace(at="fenced", batch=batch, digest=digest)),
                )
            elif asked != world.broker:
                yield "fences, and must wait for an abort", then
        elif driver.at == "fenced":
            yield from self._begins(world, number)
        elif driver.at == "planned":
            if driver.done:
                yield from self._plans(world, number)
            elif world.attempts < self.bounds.attempts:
                for slot in range(len(world.slots)):
                    if not world.slots[slot].busy and (self.bounds.shared or slot == number):
                        yield f"gives batch {driver.batch} to {slot}", self._given(world, number, slot)

    def _begins(self, world: World, number: int) -> Iterator[Move]:
        """Read the markers, and continue with the last plan or after it."""
        driver, broker = world.drivers[number], world.broker
        if broker.open is not None and broker.open.marker is not None:
            return  # the answer is not stable yet
        if driver.batch < 0:
            yield from self._plans(world, number)
            return
        try:
            decision = self.rules.decide(broker.stored, BatchId(driver.batch), driver.digest, "p")
        except MarkerConflict:
            yield "reads the markers and stops", _driven(world, number, driver._replace(at="stopped"))
            return
        if decision is Decision.SKIP:
            _require_complete(broker, driver.batch, "was taken for done")
        done = decision is Decision.SKIP
        yield "reads the markers", _driven(world, number, driver._replace(at="planned", done=done))

    def _plans(self, world: World, number: int) -> Iterator[Move]:
        driver = world.drivers[number]
        if driver.epoch != world.leader:
            yield "is fenced by the other driver", _driven(world, number, driver._replace(at="stopped"))
            return
        if driver.batch + 1 == self.bounds.batches:
            return
        plan = plan_of(number, driver.batch + 1)
        planned = driver._replace(at="planned", batch=int(plan.batch), digest=plan.digest, done=False)
        then = world._replace(plan=(int(plan.batch), plan.digest))
        yield f"plans batch {plan.batch}", _driven(then, number, planned)

    def _given(self, world: World, number: int, at: int) -> World:
        driver, slot = world.drivers[number], world.slots[at]
        old = self.rules.overtaken(str(slot.made_in), str(number), driver.owner, str(at))
        kept = slot if slot.made_in >= 0 and not old and not self._unfit(slot) else Slot(made_in=number)
        last = None if kept.last is None else BatchId(kept.last)
        cleared = self.rules.remembers(last, BatchId(driver.batch))
        task = kept._replace(
            busy=True, run=number, batch=driver.batch, digest=driver.digest, cleared=cleared, sent=0, answer=None
        )
        return _with(world, at, task)._replace(attempts=world.attempts + 1)

    def _unfit(self, slot: Slot) -> str:
        return self.rules.unfit(slot.state, "a request was sent twice" if slot.heard else "")


# -- small changes ---------------------------------------------------------------------------------


def _with(world: World, number: int, slot: Slot, broker: Broker | None = None) -> World:
    slots = (*world.slots[:number], slot, *world.slots[number + 1 :])
    return world._replace(slots=slots, broker=world.broker if broker is None else broker)


def _driven(world: World, number: int, driver: Step) -> World:
    return world._replace(drivers=(*world.drivers[:number], driver, *world.drivers[number + 1 :]))


def _idle(slot: Slot) -> Slot:
    """Keep the producer of an attempt that is over."""
    return slot._replace(busy=False, run=-1, batch=-1, digest="", cleared=False, sent=0, answer=None)


def _reported(world: World, number: int, slot: Slot) -> World:
    """Report the end of a task to the driver that gave it, unless that is at another batch by now."""
    driver = world.drivers[slot.run]
    if driver.at != "planned" or driver.batch != slot.batch or driver.done:
        return world
    return _driven(world, slot.run, driver._replace(done=True, owner=str(number)))


def _settled(broker: Broker) -> Broker:
    transaction = broker.open or Transaction()
    if not transaction.commits:
        return broker._replace(open=None, ended=False)
    return broker._replace(
        open=None,
        ended=True,
        visible=broker.visible + transaction.records,
        stored=transaction.marker or broker.stored,
    )


def _aborted(broker: Broker, bump: int = 1) -> Broker:
    """Decide to abort the transaction, and fence its owner unless the owner asked for it."""
    transaction = (broker.open or Transaction())._replace(ending=True, commits=False)
    return broker._replace(epoch=broker.epoch + bump, open=transaction)


def _delivered(world: World, broker: Broker, request: End) -> World:
    """Deliver EndTxn: it ends whatever transaction of its epoch is open now."""
    if request.epoch != broker.epoch:
        granted = False
    elif broker.open is not None:
        granted = True
        broker = broker._replace(open=broker.open._replace(ending=True, commits=True))
    else:
        granted = broker.ended
    slot = world.slots[request.slot]
    waits = slot.state is State.COMMITTING and slot.epoch == request.epoch and slot.batch == request.batch
    if not waits or slot.answer is not None:
        return world._replace(broker=broker)
    return _with(world, request.slot, slot._replace(answer=granted), broker)


def _require_complete(broker: Broker, batch: int, what: str) -> None:
    missing = {(batch, number) for number in range(RECORDS)} - set(broker.decided)
    if missing:
        raise Broken(f"batch {batch} {what}, but {sorted(missing)} of it are not committed")
