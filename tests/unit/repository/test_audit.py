"""What an audit's answer means: vulnerabilities fail it, and no answer is not taken for a clean one."""

from __future__ import annotations

import json

import pytest

from support.audit import judge

CLEAN = {"name": "good", "version": "1.0", "vulns": []}
FLAWED = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "other", "skip_reason": "Dependency not found on PyPI and could not be audited: other (3.0)"}


def test_vulnerability_fails_the_audit_and_is_named() -> None:
    """A package that several files lock is counted once."""
    lines, vulnerable = judge(json.dumps({"dependencies": [CLEAN, FLAWED, FLAWED, UNKNOWN]}))
    assert vulnerable
    assert lines == ["bad 2.0: PYSEC-1, fixed in 2.1", "2 of 3 packages audited: 1 known vulnerabilities"]


def test_audit_without_vulnerabilities_passes() -> None:
    """It says how many packages it is about."""
    assert judge(json.dumps({"dependencies": [CLEAN]})) == (["1 of 1 packages audited: 0 known vulnerabilities"], False)


@pytest.mark.parametrize("answer", [json.dumps({"dependencies": [UNKNOWN]}), "", "Traceback\nConnectionError: nobody"])
def test_audit_that_nobody_answered_says_so(answer: str) -> None:
    """It is no failure: a mirror of a registry has no such data."""
    lines, vulnerable = judge(answer)
    assert not vulnerable
    assert lines[0].startswith("NOT audited: ")
