"""The site of the documentation: places, links and lists of its pages, its versions, and the check of the result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from publish import check, markdown, mermaid, places, sources, versions
from publish.stage import stage

ROOT = Path(__file__).parents[3]
FIRST = '<a href="a/">A</a>'
POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'self'; img-src 'self' data:">"""


def built(folder: Path, **pages: str) -> Path:
    """Write pages as a generator does: each as the index of its folder, `first` as that of the site."""
    for name, text in pages.items():
        file = folder / ("" if name == "first" else name.replace("__", "/")) / "index.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(POLICY + text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/how-to/bound-the-batches.md", "how-to/bound-the-batches.md"),
        ("docs/benchmarks/sink.json", "benchmarks/sink.json"),
        ("ARCHITECTURE.md", "architecture.md"),
        ("charts/tailrace/README.md", "chart.md"),
        ("docs/decisions", "decisions/index.md"),
        ("docs/generate.py", "source/docs/generate.py.md"),
        ("tests/faults", "source/tests/faults.md"),
    ],
)
def test_each_file_of_the_repository_has_a_place(path: str, place: str) -> None:
    """Pages and data of docs/ stay where they are; what is no page is shown by one."""
    assert places.place(path) == place


@pytest.mark.parametrize(
    ("path", "link", "rewritten"),
    [
        ("docs/how-to/a.md", "../guarantees.md#order", "../guarantees.md#order"),
        ("docs/how-to/a.md", "../../CHANGELOG.md", "../changelog.md"),
        ("docs/index.md", "../README.md#two-commands", "quick-start.md#two-commands"),
        ("ARCHITECTURE.md", "docs/guarantees.md", "guarantees.md"),
        ("charts/tailrace/README.md", "values.yaml", "source/charts/tailrace/values.yaml.md"),
        ("docs/write-ups.md", "../tests/unit/test_a.py", "source/tests/unit/test_a.py.md"),
        ("docs/a.md", "https://kafka.apache.org/x.md", "https://kafka.apache.org/x.md"),
        ("docs/a.md", "#order", "#order"),
    ],
)
def test_link_of_the_repository_is_rewritten_for_the_site(path: str, link: str, rewritten: str) -> None:
    """It leads to the place of the same file."""
    assert places.rewritten(f"see [it]({link}).", path) == f"see [it]({rewritten})."


def test_link_in_a_code_block_stays_as_it_is() -> None:
    """It is text to read, not a link."""
    text = "```text\n[it](../README.md)\n```"
    assert places.rewritten(text, "docs/a.md") == text
    assert places.targets(text, "docs/a.md") == set()


def test_navigation_has_the_pages_of_the_index_once_and_in_order() -> None:
    """A number is replaced by the page's title; a link that was seen before is not repeated."""
    index = "# T\n\n[Quick](../README.md)\n\n## Start\n\n- [Tutorial](tutorial.md): all\n- [Again](tutorial.md)\n"
    index += "\n## Decisions\n\n[all](decisions):\n[0001](decisions/0001-jars.md) jars,\n"
    assert places.navigation(index, {"decisions/0001-jars.md": "0001. Jars"}) == [
        {"Overview": "index.md"},
        {"Start": [{"Tutorial": "tutorial.md"}]},
        {"Decisions": [{"All decisions": "decisions/index.md"}, {"0001. Jars": "decisions/0001-jars.md"}]},
    ]


def test_contents_of_a_list_item_are_indented_by_four() -> None:
    """Python-Markdown would end the list at a table or a block that is indented by less."""
    text = "Two:\n- one\n\n  ```sh\n  tailrace\n  ```\n\n3. three\n\n   | a |\n   |---|\n\nAfter.\n\n  as it was"
    assert markdown.for_python_markdown(text) == (
        "Two:\n\n- one\n\n    ```sh\n    tailrace\n    ```\n\n3. three\n\n    | a |\n    |---|\n\nAfter.\n\n  as it was"
    )


def test_page_of_a_file_shows_it_to_the_last_fence() -> None:
    """A fence in the file does not end the block that shows it."""
    page = sources.file_page("a.md", "`````\ncode\n`````")
    assert page.endswith("``````text\n`````\ncode\n`````\n``````\n")


def test_page_of_a_folder_begins_with_its_readme() -> None:
    """Its headings move below the page's own, and its links lead to the site's places."""
    page = sources.folder_page("examples/x", {"x.py": "x = 1", "README.md": "# X\n\n[top](../../README.md)"})
    assert page.index("## X\n\n[top](../../quick-start.md)") < page.index("## x.py\n\n````python\nx = 1\n````")


def test_versions_are_listed_newest_first() -> None:
    """By number, not by text; what is no version is left out."""
    folders = ["0.9.0", "0.10.0", "assets", "0.2.0"]
    current = versions.described("# Changelog\n\n## 0.10.0, unreleased\n\n## 0.9.0, 2026-01-01\n")
    assert [each["title"] for each in json.loads(versions.menu(folders, current))] == [
        "0.10.0 (unreleased)", "0.9.0", "0.2.0",
    ]  # fmt: skip
    assert 'url=0.10.0/"' in versions.first_page(folders)


def test_site_without_a_fault_has_no_problem(tmp_path: Path) -> None:
    """Links with and without anchors, and up the folders, resolve."""
    site = built(
        tmp_path, first=FIRST, a='<h1 id="top"><a href="../#x">x</a><a href="b/#top">b</a></h1>', a__b='<p id="top">'
    )
    (site / "index.html").write_text(f'{POLICY}<p id="x">{FIRST}', encoding="utf-8")
    assert check.check(site) == ([], "3 pages, 3 links: 0 problems")


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (
            '<script src="https://cdn.example/x.js"></script>',
            "a/index.html loads https://cdn.example/x.js from another",
        ),
        ('<link rel="stylesheet" href="//fonts.example/css">', "a/index.html loads //fonts.example/css from another"),
        ('<img srcset="https://i.example/a.png 2x">', "a/index.html loads https://i.example/a.png from another"),
        ("<p style=\"background: url('https://i.example/b')\">", "a/index.html loads https://i.example/b from another"),
        ('<a href="../b/">b</a>', "a/index.html links to ../b/, and there is no b/index.html"),
        ('<a href="../#gone">b</a>', "a/index.html links to ../#gone, and index.html has no anchor gone"),
        ('<img src="a.png">', "a/index.html links to a.png, and there is no a/a.png"),
    ],
)
def test_fault_of_a_page_is_a_problem(tmp_path: Path, page: str, problem: str) -> None:
    """It is named with the page that has it."""
    [found] = check.check(built(tmp_path, first=FIRST, a=page))[0]
    assert found.startswith(problem)


def test_style_sheet_that_loads_from_another_host_is_a_problem(tmp_path: Path) -> None:
    """Fonts are usually asked for there."""
    (built(tmp_path, first="") / "x.css").write_text("@import 'https://fonts.example/css';", encoding="utf-8")
    assert check.check(tmp_path)[0] == ["x.css loads https://fonts.example/css from another host"]


def test_page_without_a_policy_is_a_problem(tmp_path: Path) -> None:
    """Its scripts could load from any host."""
    (built(tmp_path, first="") / "index.html").write_text("<p>", encoding="utf-8")
    assert check.check(tmp_path)[0] == ["index.html has no Content-Security-Policy"]


def test_link_to_another_host_is_no_problem(tmp_path: Path) -> None:
    """A reader follows it; the browser does not load it."""
    assert check.check(built(tmp_path, first='<a href="https://kafka.apache.org/">Kafka</a>'))[0] == []


def test_page_beyond_two_clicks_is_a_problem(tmp_path: Path) -> None:
    """One that is linked only from a page two clicks away is too far, and one without links is, too."""
    site = built(tmp_path, first=FIRST, a='<a href="../b/">', b='<a href="../c/">', c="", d="")
    assert check.check(site)[0] == [f"{page}/index.html is more than 2 clicks from the first page" for page in "cd"]


def test_mermaid_with_another_checksum_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the folder is taken only if its contents are the listed ones."""
    (tmp_path / "mermaid.min.js").write_bytes(b"another")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="npm"):
        mermaid.fetched(tmp_path)


def test_site_without_mermaid_does_not_ask_for_it(tmp_path: Path) -> None:
    """Without npm the diagrams are text, and no page loads a script that is missing."""
    configuration = json.loads(stage(ROOT, tmp_path / "staged", None).read_text(encoding="utf-8"))
    assert configuration["extra"] == {"diagrams": False}
    assert not list(tmp_path.rglob("mermaid*.js"))


def test_every_page_is_staged(tmp_path: Path) -> None:
    """The folder has each page of the repository, and each page that shows what they link to."""
    script = tmp_path / "mermaid.min.js"
    script.write_text("", encoding="utf-8")
    configuration = stage(ROOT, tmp_path / "staged", script)
    staged = configuration.parent / "pages"
    pages = {path: (ROOT / path).read_text(encoding="utf-8") for path in places.PAGES}
    pages |= {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in (ROOT / "docs").rglob("*.md")}
    wanted = {places.place(target) for path, text in pages.items() for target in [path, *places.targets(text, path)]}
    assert [place for place in sorted(wanted) if not (staged / place).exists()] == []


def test_no_page_nests_lists() -> None:
    """On the site, an inner list would become part of its outer one."""
    nested = re.compile(r"^ {2,3}(?:[-*+]|\d+\.) ")
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / path for path in places.PAGES)]
    lines = [(page, each) for page in pages for each in places.outside_fences(page.read_text(encoding="utf-8"))]
    assert [f"{page.name}: {line}" for page, (line, prose) in lines if prose and nested.match(line)] == []
