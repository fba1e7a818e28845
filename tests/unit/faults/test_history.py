"""The checker accepts the histories that a register with a fence can have, and finds those that it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faults.worlds.history import Checked, Recorder, check, checker


@pytest.fixture(scope="module")
def program() -> Path:
    """Return the checker."""
    found = checker()
    if found is None:
        pytest.skip("the checker cannot be built: there is no Go, or no way to its module")
    return found


Step = tuple[str, str, str, str]  # client, operation, value, and how it ended


READS: list[Step] = [("b", "read", "", "ok"), ("b", "read", "0", "ok")]


def history(file: Path, *steps: Step) -> Path:
    """Write operations that follow one another; an end of "" means that the client was killed."""
    lines = []
    for number, (client, op, value, end) in enumerate(steps):
        base = {"client": client, "number": number, "key": "ledger", "op": op, "value": value}
        lines.append({**base, "type": "invoke", "time": 10 * number})
        if end:
            lines.append({**base, "type": end, "time": 10 * number + 5})
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return file


def test_takeover_is_accepted_whether_or_not_the_last_write_took_effect(program: Path, tmp_path: Path) -> None:
    """A driver that was killed in a commit may have committed."""
    for seen in ("1", "0"):
        steps = [("a", "fence", "", "ok"), ("a", "write", "0", "ok"), ("a", "write", "1", "")]
        steps += [("b", "fence", "", "ok"), ("b", "read", seen, "ok"), ("b", "write", "2", "ok")]
        assert check(program, history(tmp_path / seen, *steps)) == Checked(6)


@pytest.mark.parametrize(
    "steps",
    [
        [("a", "fence", "", "ok"), ("b", "fence", "", "ok"), ("a", "write", "1", "ok")],
        [("a", "fence", "", "ok"), ("a", "write", "0", "ok"), ("b", "fence", "", "ok"), ("b", "read", "", "ok")],
        [("a", "fence", "", "ok"), ("a", "write", "0", ""), ("b", "fence", "", "ok"), *READS],
        [("a", "write", "0", "ok")],
    ],
    ids=["fenced-owner-writes", "write-is-lost", "write-of-a-fenced-owner-comes-late", "write-without-a-fence"],
)
def test_history_that_no_order_explains_is_found(program: Path, tmp_path: Path, steps: list[Step]) -> None:
    """Each is what a broken fence, or a plan that was not committed, would leave."""
    assert check(program, history(tmp_path / "history", *steps)).broken == ("ledger",)


def test_recorder_leaves_what_was_asked_and_what_came_of_it(program: Path, tmp_path: Path) -> None:
    """An operation that failed may have taken effect; a line that a kill has cut off does not count."""
    file = tmp_path / "history"
    to = Recorder(file)

    def fail() -> None:
        raise TimeoutError

    to.record("a", "ledger", "fence", lambda: None, "")
    with pytest.raises(TimeoutError):
        to.record("a", "ledger", "write", fail, "0")
    assert to.record("a", "ledger", "read", lambda: 0, "") == 0
    with file.open("a") as lines:
        lines.write('{"client": "a", "num')
    kinds = [json.loads(line)["type"] for line in file.read_text().splitlines()[:-1]]
    assert kinds == ["invoke", "ok", "invoke", "info", "invoke", "ok"]
    assert check(program, file) == Checked(3)


def test_world_whose_drivers_recorded_nothing_has_an_empty_history(program: Path, tmp_path: Path) -> None:
    """Drivers with Spark do not record."""
    assert check(program, tmp_path / "none") == Checked()
