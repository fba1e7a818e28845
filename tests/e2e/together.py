"""Runs the test modules, those that share nothing at the same time: they mostly wait for Kubernetes.

A module has its own namespace and its own release, and its tests build on each other. test_nodes takes nodes away, so
it runs alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROUNDS = (("test_nodes.py",), ("test_operator.py", "test_release.py"))
_FIRST = frozenset({"-x", "--exitfirst"})


def together(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run all modules; return the first exit code that is not 0. With `--exitfirst`, one that fails ends the others."""
    failed, first = 0, not _FIRST.isdisjoint(arguments)
    for names in ROUNDS:
        code = _round(names, arguments, environment, first=first)
        failed = failed or code
        if failed and first:
            break
    return failed


def _round(names: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], *, first: bool) -> int:
    running = [_Module(name, arguments, environment) for name in names]
    codes: list[int] = []
    ended = threading.Condition()

    def follow(module: _Module) -> None:
        code = 1
        try:
            code = module.follow()
        finally:
            with ended:
                codes.append(code)
                ended.notify()

    for module in running:
        threading.Thread(target=follow, args=[module], name=module.name).start()
    with ended:
        while len(codes) < len(running):
            ended.wait()
            if any(codes) and first:
                for module in running:
                    module.end()
    return next(filter(None, codes), 0)


class _Module:
    """One module in a pytest of its own, whose lines are printed with the module's name before them."""

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name.removeprefix("test_").removesuffix(".py")
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", str(HERE / name), "-s", *arguments],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def follow(self) -> int:
        """Print what it prints until it ends; return its exit code."""
        with self._process as process:
            for line in process.stdout or ():
                sys.stdout.write(f"{self.name}: {line}")
                sys.stdout.flush()
        return process.returncode

    def end(self) -> None:
        """End it as a person would, so that it removes what it has made."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
