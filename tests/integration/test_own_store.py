"""A store of the input offsets from outside the package: a class that the configuration names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from support.pipelines import numbered
from support.threads import Line
from tailrace.config import Pipeline
from tailrace.errors import ConfigInvalid, OffsetStoreUnusable
from tailrace.progress.positions import Place, Positions

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]
OWN = f"{__name__}:OwnStore"


class OwnStore:
    """One JSON file of lists, next to the pipeline's file."""

    with_the_plan = False

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self._file = folder / "own.json"

    @property
    def where(self) -> str:
        """The file's name."""
        return self._file.name

    def load(self, places: Sequence[Place]) -> Positions:
        """Return what the file has of these partitions."""
        if (self._file.parent / "broken").exists():
            raise OffsetStoreUnusable("the test's own store is broken")
        found = json.loads(self._file.read_text()) if self._file.exists() else []
        return {(topic, number): offset for topic, number, offset in found if (topic, number) in set(places)}

    def begin(self, places: Sequence[Place]) -> Positions:
        """Begin where the file says."""
        return self.load(places)

    def save(self, positions: Positions) -> None:
        """Write the file."""
        if (self._file.parent / "broken").exists():
            raise OffsetStoreUnusable("the test's own store is broken")
        self._file.write_text(json.dumps([[*place, offset] for place, offset in sorted(positions.items())]))

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this module be imported by its name, as a user's package is."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_pipeline_begins_where_an_own_store_says_and_keeps_it_up_to_date(line: MakeLine) -> None:
    """The class is all that it takes: nothing is registered."""
    one = line(1)
    one.send(numbered(0, 10), partition=0)
    (one.folder / "own.json").write_text(json.dumps([[one.source, 0, 4]]))
    one.run(offsets={"store": OWN})
    assert one.values() == numbered(4, 10)
    assert json.loads((one.folder / "own.json").read_text()) == [[one.source, 0, 10]]


def test_own_store_that_fails_is_reported_and_the_pipeline_continues(line: MakeLine) -> None:
    """The ledger knows what was delivered."""
    one = line(1)
    one.send(numbered(0, 5), partition=0)
    one.run(offsets={"store": OWN})
    (one.folder / "broken").touch()
    one.send(numbered(5, 10), partition=0)
    events = one.run(offsets={"store": OWN})
    assert any("own store is broken" in each["what"] for each in events if each["event"] == "offsets")
    assert one.values() == numbered(0, 10)


@pytest.mark.parametrize("store", ["no_such_package:Store", f"{__name__}:NoSuchStore"])
def test_store_that_cannot_be_loaded_is_named(line: MakeLine, store: str) -> None:
    """Nothing is read before it is known."""
    one = line(1)
    one.send(numbered(0, 5), partition=0)
    with pytest.raises(ConfigInvalid, match=f"offsets.store '{store}' cannot be loaded"):
        one.run(offsets={"store": store})
    assert one.values() == []
