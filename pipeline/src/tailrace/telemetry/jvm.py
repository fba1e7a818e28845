"""A JVM's garbage collections and heap, read from outside.

HotSpot writes its counters to a memory-mapped file, /tmp/hsperfdata_USER/PID, which jstat also reads. So the JVM needs
no agent and no open port, and an executor's gateway can watch a JVM that is not its own. A collection's length is exact
if a look finds one new collection, and the mean if it finds several; looks are frequent. docs/decisions/0017 compares
this with the JMX exporter.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = b"\xca\xfe\xc0\xc0"
_HEAD = struct.Struct("=IBBBBIIQII")  # the fifth byte names the byte order of the values: this machine's own
_ENTRY = struct.Struct("=IIIBBBBI")
_LONG = struct.Struct("=q")
_GENERATIONS = ("0", "1")  # young and old; metaspace is not heap
_KEPT_COLLECTORS = 8


@dataclass(frozen=True)
class Pauses:
    """Collections since the last look: their number and the length of each."""

    collector: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Heap:
    """The heap's use and its limit, in bytes."""

    used: int
    most: int


@dataclass
class Jvm:
    """The counters of one JVM; `look` is cheap."""

    memory: mmap.mmap
    longs: dict[str, int]  # the offset of each number
    collectors: dict[int, str]
    _counted: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, pid: int, folder: Path = Path("/tmp")) -> Jvm | None:
        """Open the counters of the JVM with this pid; return None if it has none, or none yet."""
        for found in folder.glob(f"hsperfdata_*/{pid}"):
            try:
                with found.open("rb") as file:
                    if os.fstat(file.fileno()).st_uid == os.getuid():  # files of other users are not trusted
                        return cls._of(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError, struct.error):
                continue
        return None

    @classmethod
    def _of(cls, memory: mmap.mmap) -> Jvm | None:
        order = 1 if sys.byteorder == "little" else 0
        if memory[:4] != _MAGIC or memory[4] != order or not memory[7]:  # memory[7] is 0 until the file is complete
            memory.close()
            return None
        longs, texts = _entries(memory)
        names = {
            number: texts.get(f"sun.gc.collector.{number}.name", str(number)) for number in range(_KEPT_COLLECTORS)
        }
        here = {number: name for number, name in names.items() if f"sun.gc.collector.{number}.time" in longs}
        jvm = cls(memory, longs, here)
        if "sun.os.hrt.frequency" not in longs or not here:
            memory.close()
            return None
        return jvm

    def pauses(self) -> list[Pauses]:
        """Return the collections since the last look; the first look finds all so far."""
        frequency = self._long("sun.os.hrt.frequency") or 1
        found = []
        for number, name in self.collectors.items():
            count = self._long(f"sun.gc.collector.{number}.invocations")
            ticks = self._long(f"sun.gc.collector.{number}.time")
            before, spent = self._counted.get(number, (0, 0))
            if count > before:
                found.append(Pauses(name, count - before, (ticks - spent) / frequency / (count - before)))
                self._counted[number] = count, ticks
        return found

    def heap(self) -> Heap:
        """Return the heap's use and limit."""
        used = sum(self._long(name) for name in self.longs if _is_space(name, "used"))
        each = [self._long(f"sun.gc.generation.{number}.maxCapacity") for number in _GENERATIONS]
        # With G1 either generation may have the whole heap.
        most = max(each) if any(name.startswith("G1") for name in self.collectors.values()) else sum(each)
        limit = self._long("sun.gc.policy.maxHeapSize") if "sun.gc.policy.maxHeapSize" in self.longs else 0
        return Heap(used, limit or most)

    def _long(self, name: str) -> int:
        place = self.longs.get(name)
        return int(_LONG.unpack_from(self.memory, place)[0]) if place is not None else 0

    def close(self) -> None:
        """Close the file."""
        self.memory.close()


def _is_space(name: str, what: str) -> bool:
    parts = name.split(".")
    return parts[:3] == ["sun", "gc", "generation"] and parts[3] in _GENERATIONS and parts[-1] == what


def _entries(memory: mmap.mmap) -> tuple[dict[str, int], dict[str, str]]:
    """Return the offset of each number, and the texts."""
    longs: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name, kind, length, place in _walk(memory):
        if length == 0 and kind == "J":
            longs[name] = place
        elif length and kind == "B":
            texts[name] = bytes(memory[place : place + length]).split(b"\0")[0].decode("utf-8", "replace")
    return longs, texts


def _walk(memory: mmap.mmap) -> Iterator[tuple[str, str, int, int]]:
    head = _HEAD.unpack_from(memory)
    at, count = head[8], head[9]
    for _ in range(count):
        size, name_at, length, kind, _, _, _, data_at = _ENTRY.unpack_from(memory, at)
        if not size:
            return
        end = memory.find(b"\0", at + name_at)
        yield memory[at + name_at : end].decode("ascii", "replace"), chr(kind), length, at + data_at
        at += size
