"""The values shown in the documentation render as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, ROOT, render, revision

PAGES = (CHART / "README.md", ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md")
VALUES = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[dict[str, Any]]:
    """Return the YAML blocks of a page, in order."""
    return [yaml.safe_load(each) for each in VALUES.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_first_block_of_a_page_is_complete(page: Path) -> None:
    """Next to what dev.yaml has, it makes a pipeline, its topics and its file."""
    made = render(values=blocks(page)[0])
    topics = {each["spec"]["topicName"] for each in made if each["kind"] == "KafkaTopic"}
    assert topics >= {"orders", "large-orders", "orders.rejected", "tailrace.ledger"}
    assert "def large(orders)" in revision(made, "t-orders")["data"]["large.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_of_a_page_renders(page: Path) -> None:
    """Each is added to the first block."""
    shown = blocks(page)
    for block in shown:
        kafka = shown[0]["kafka"] | block.get("kafka", {})
        render(values={**shown[0], **block, "kafka": kafka})
