"""`python -m tailrace.jars [SET …]`: run by `make setup`, so that the first pipeline does not wait for a download."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tailrace import jars
from tailrace.errors import TailraceError


def main(asked: Sequence[str] = ()) -> int:
    """Fetch the missing jars of the sets, and print one line per set with its location."""
    unknown = sorted(set(asked) - set(jars.NAMES))
    if unknown:
        sys.stderr.write(f"{unknown[0]!r} is not a set of jars; the sets are {', '.join(jars.NAMES)}\n")
        return 2
    for name in [each for each in jars.NAMES if each in (asked or jars.USUAL)]:
        wanted = len(jars.missing(name))
        if wanted:
            sys.stderr.write(f"jars of {name}: fetching {wanted} into {jars.folder()}\n")
            sys.stderr.flush()
        try:
            paths = jars.ensure(name)
        except TailraceError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
        size = sum(path.stat().st_size for path in paths)
        sys.stdout.write(f"jars of {name}: {len(paths)} in {jars.folder()}, {size / 1e6:.0f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
