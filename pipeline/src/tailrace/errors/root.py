"""The base class of the errors: the parts of a message, and pickling from a worker to the driver."""

from __future__ import annotations

from typing import ClassVar


class TailraceError(Exception):
    """The base class of all Tailrace errors."""

    code: ClassVar[str] = ""
    title: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1
    usual: ClassVar[str] = ""  # the next command, unless the raiser gives a more specific one

    def __init__(self, what: str, *, kept: str = "", then: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.kept = kept
        self.then = then or self.usual

    def __str__(self) -> str:
        lines = [f"{self.code} {self.title}: {self.what}"]
        if self.kept:
            lines.append(f"  kept safe: {self.kept}")
        if self.then:
            lines.append(f"  next: {self.then}")
        lines.append(f"  more: tailrace explain {self.code}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Python workers to the driver, which unpickles them there.
        return (_rebuild, (type(self), self.what, self.kept, self.then))

    def as_dict(self) -> dict[str, object]:
        """Return the error as JSON output shows it."""
        return {
            "error": self.code,
            "title": self.title,
            "what": self.what,
            "kept": self.kept,
            "next": self.then,
            "exit": self.exit_code,
        }


def _rebuild(kind: type[TailraceError], what: str, kept: str, then: str) -> TailraceError:
    return kind(what, kept=kept, then=then)
