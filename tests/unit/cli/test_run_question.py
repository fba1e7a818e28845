"""`tailrace run` on a terminal: whether a driver that runs is to be replaced is asked, and no is the usual answer."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from tailrace.cli.run import COLUMNS, _asked, _replaces
from tailrace.cli.terminal import LiveTable
from tailrace.progress.lease import Holder, Phase


@pytest.mark.parametrize(("typed", "replaced"), [("\n", False), ("n\n", False), ("y\n", True)])
def test_question_names_the_running_driver_and_takes_no_for_silence(typed: str, replaced: bool) -> None:
    """A second start took over without a word."""
    app, answers = typer.Typer(), list[bool]()

    @app.command()
    def start() -> None:
        with LiveTable(COLUMNS) as table:
            answers.append(_asked(table)(Holder("ab12", "10.1.2.3", 5.0, Phase.LEADING)))

    said = CliRunner().invoke(app, input=typed, catch_exceptions=False).output
    assert "another driver of this pipeline is running on 10.1.2.3 since 1970-01-01" in said
    assert "(run ab12)" in said
    assert "Replace it? It will stop [y/N]: " in said
    assert answers == [replaced]


@pytest.mark.parametrize(("answer", "noted"), [(True, []), (False, ["ab12"])])
def test_driver_that_is_not_replaced_is_noted(answer: bool, noted: list[str]) -> None:
    """A bounded run that read nothing must not end like one that read everything."""
    declined: list[Holder] = []
    holder = Holder("ab12", "10.1.2.3", 5.0, Phase.LEADING)
    assert _replaces(lambda leader: answer, declined, holder) == answer
    assert [each.run for each in declined] == noted
