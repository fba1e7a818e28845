"""Every error has a clear message and a useful docstring, and survives pickling from worker to driver."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from tailrace import errors
from tailrace.errors import TailraceError, all_errors

ERRORS = all_errors()
EXIT_CODES = {"1": 2, "2": 3, "3": 4, "4": 5, "5": 6, "6": 1}


def test_every_class_with_a_title_has_a_code_of_its_own() -> None:
    """Codes are unique, and each error that can be raised is listed."""
    classes = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, TailraceError) and (kind.title or not kind.__subclasses__())
    ]
    assert {kind.__name__ for kind in classes} == {kind.__name__ for kind in ERRORS}
    assert len({kind.code for kind in ERRORS}) == len(ERRORS)
    assert len({kind.title for kind in ERRORS}) == len(ERRORS)


def test_errors_are_listed_in_the_order_of_their_codes() -> None:
    """People read the list."""
    assert [kind.code for kind in ERRORS] == sorted(kind.code for kind in ERRORS)


def test_page_that_gives_a_batch_up_says_what_a_stateful_pipeline_does() -> None:
    """`tailrace offsets set` refuses such a pipeline: its offsets are in its checkpoint."""
    pages = [" ".join((kind.__doc__ or "").split()) for kind in ERRORS]
    giving = [page for page in pages if "tailrace offsets set FILE … --give-up" in page]
    assert giving
    assert [page for page in giving if "stateful pipeline" not in page] == []


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: str(kind.code))
class TestEach:
    """What holds for each error."""

    def test_code_title_and_exit_code_fit_together(self, kind: type[TailraceError]) -> None:
        """The first digit of the code is the group, and each group has one exit code; a fenced driver has its own."""
        assert re.fullmatch(r"TR-[1-6]\d\d", kind.code)
        assert kind.title
        assert kind.exit_code == (7 if kind.code == "TR-301" else EXIT_CODES[kind.code[3]])

    def test_docstring_says_more_than_the_title(self, kind: type[TailraceError]) -> None:
        """A sentence on what happened, then a paragraph on what to do, since `explain` prints it."""
        text = kind.__dict__.get("__doc__") or ""
        first, _, explanation = inspect.cleandoc(text).partition("\n\n")
        assert first.endswith(".")
        assert "\n" not in first
        assert len(explanation) > 80
        assert explanation.endswith(".")

    def test_message_has_its_four_parts(self, kind: type[TailraceError]) -> None:
        """The parts are what happened, what was kept safe, what to do next, and where to read more."""
        text = str(kind("it broke at 5", kept="the records", then="tailrace run")).split("\n")
        assert text == [
            f"{kind.code} {kind.title}: it broke at 5",
            "  kept safe: the records",
            "  next: tailrace run",
            f"  more: tailrace explain {kind.code}",
        ]

    def test_error_survives_pickling(self, kind: type[TailraceError]) -> None:
        """Workers send their errors to the driver."""
        error = kind("what", kept="kept", then="then")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (again.what, again.kept, again.then) == ("what", "kept", "then")
        assert str(again) == str(error)

    def test_json_has_the_same_parts(self, kind: type[TailraceError]) -> None:
        """Programs get the same content as people."""
        assert kind("what", kept="kept", then="then").as_dict() == {
            "error": kind.code,
            "title": kind.title,
            "what": "what",
            "kept": "kept",
            "next": "then",
            "exit": kind.exit_code,
        }


def test_absent_parts_add_no_line() -> None:
    """An error without advice shows none."""
    assert str(errors.QueryFailed("gone")).split("\n") == [
        "TR-402 query failed: gone",
        "  more: tailrace explain TR-402",
    ]
