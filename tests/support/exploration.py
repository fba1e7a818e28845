"""Exhaustive search of the protocol model: every world that it can reach, and what must hold in each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from support.protocol import RECORDS, Broken, Protocol, World
from tailrace.errors import InvariantBroken


def check(world: World) -> None:
    """Raise Broken if a record was committed twice, or a batch in part or without its marker."""
    decided = world.broker.decided
    if len(decided) != len(set(decided)):
        raise Broken(f"committed twice: {decided}")
    marker = world.broker.written
    ahead = 0 if marker is None else int(marker.next)
    if set(decided) != {(batch, number) for batch in range(ahead) for number in range(RECORDS)}:
        raise Broken(f"torn: {decided} are committed, but the marker says that batches before {ahead} are")


@dataclass(frozen=True)
class Explored:
    """The result of a search."""

    worlds: int
    finished: int  # worlds in which every batch is done
    fault: str = ""
    trace: tuple[str, ...] = ()


def explore(protocol: Protocol, limit: int = 2_000_000) -> Explored:
    """Explore every reachable world, breadth first; report the shortest way to a fault if there is one."""
    first = protocol.start()
    seen: dict[World, tuple[World, str] | None] = {first: None}
    todo, finished = deque([first]), 0
    while todo:
        world = todo.popleft()
        name = ""
        try:
            for name, then in protocol.moves(world):
                if then not in seen:
                    seen[then] = (world, name)
                    check(then)
                    todo.append(then)
        except (Broken, InvariantBroken) as error:
            way = (*_way(seen, world), name)
            return Explored(len(seen), finished, str(error), way)
        finished += any(each.done and each.batch + 1 == protocol.bounds.batches for each in world.drivers)
        if len(seen) > limit:
            raise RuntimeError(f"more than {limit} worlds: lower the bounds")
    return Explored(len(seen), finished)


def _way(seen: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    names: list[str] = []
    step = seen[world]
    while step is not None:
        names.append(step[1])
        step = seen[step[0]]
    return tuple(reversed(names))
