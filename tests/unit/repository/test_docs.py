"""The documentation matches the code: blocks load, commands exist, links resolve."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tailrace.cli.main import COMMANDS, load
from tailrace.config.file import load as load_pipeline
from tailrace.errors import all_errors

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "pipeline" / "src" / "tailrace"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
VARIABLE = re.compile(r"\$\{(\w+)\}")
# Paths in the repository that a page may name as code.
PLACE = re.compile(r"(?:pipeline|operators|docs|tests|requirements|\.ci)/[\w./*-]+")
HIDDEN = {"__init__", "__main__"}
MOST_LAYERS = 14


class Block(NamedTuple):
    """A fenced block, and the page that it is on."""

    page: Path
    language: str
    text: str


def blocks(*languages: str) -> list[Block]:
    """Return every block in one of these languages."""
    found = [Block(page, *each.groups()) for page in PAGES for each in FENCE.finditer(page.read_text(encoding="utf-8"))]
    return [block for block in found if block.language in languages]


def name(value: object) -> str:
    """Return the name that pytest shows for a page or a block."""
    page = value.page if isinstance(value, Block) else value
    return str(page.relative_to(ROOT)) if isinstance(page, Path) else str(value)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """Return the anchor of a heading, as common renderers form it."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def test_blocks_of_every_kind_are_found() -> None:
    """A pattern that finds nothing would make the tests below pass."""
    assert {block.language for block in blocks("yaml", "python", "sh")} == {"yaml", "python", "sh"}
    assert len(PAGES) > 20


def test_every_fence_names_its_language() -> None:
    """Otherwise a block could escape these tests."""
    unnamed = [name(page) for page in PAGES if re.search(r"^```$", prose(page), re.MULTILINE)]
    assert unnamed == []


@pytest.mark.parametrize("block", [each for each in blocks("yaml") if "pipeline:" in each.text], ids=name)
def test_a_pipeline_in_the_documentation_loads(block: Block, tmp_path: Path) -> None:
    """Its keys exist, and its values do not contradict each other."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(block.text, encoding="utf-8")
    environment = dict.fromkeys(VARIABLE.findall(block.text), "value")
    assert load_pipeline(file, environment).pipeline.pipeline


@pytest.mark.parametrize("block", blocks("python"), ids=name)
def test_python_in_the_documentation_compiles(block: Block) -> None:
    """A reader who copies it gets no syntax error."""
    compile(block.text, name(block), "exec")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page: Path) -> None:
    """The file exists, and so does the heading in it."""
    wrong = []
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(target)
        elif anchor and anchor not in {slug(each) for each in HEADING.findall(file.read_text(encoding="utf-8"))}:
            # The generated pages link to sections by their path without dots.
            wrong.append(target)
    assert wrong == []


def test_named_files_exist() -> None:
    """A moved file is named by its new path."""
    wrong = defaultdict(list)
    for page in PAGES:
        for code in CODE.findall(prose(page)):
            if PLACE.fullmatch(code) and not list(ROOT.glob(code.rstrip("/"))):
                wrong[name(page)].append(code)
    assert wrong == {}


def test_map_in_the_architecture_matches_the_tree() -> None:
    """Each room has its row, each row names the modules of its room, and every module outside a room is named."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_/]+)/` \| .+? \| (.+?) \|$", text, re.MULTILINE)
    listed = {room: set(CODE.findall(modules)) for room, modules in rows}
    there = {
        str(folder.parent.relative_to(PACKAGE)): {path.stem for path in folder.parent.glob("*.py")} - HIDDEN
        for folder in PACKAGE.rglob("__init__.py")
    }
    outside = there.pop(".")
    assert listed == there
    assert [module for module in outside if f"`{module}.py`" not in text] == []


def test_order_of_the_rooms_in_the_architecture_matches_the_linter() -> None:
    """The line on the page and import-linter's list name the same layers, from the top down."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^    (cli → .+(?:\n {8}.+)*)$", text, re.MULTILINE)
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [layer.replace("tailrace.", "") for layer in linter["contracts"][0]["layers"]]
    assert re.split(r"\s*→\s*", " ".join(block.split())) == layers
    assert len(layers) <= MOST_LAYERS


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield every call of `tailrace` in a shell block, and every one in prose with more than one word."""
    for block in blocks("sh"):
        for line in block.text.splitlines():
            if line.startswith("tailrace "):
                yield name(block), line
    for page in PAGES:
        for code in CODE.findall(prose(page)):
            if code.startswith("tailrace ") and "…" not in code:
                yield name(page), code


def option_names(command: Any) -> set[str]:
    """Return the options of a command, with --help."""
    return {"--help", *(option for each in command.params for option in each.opts if option.startswith("-"))}


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_commands_and_options_exist(page: str, line: str) -> None:
    """A command that a page tells the reader to type works."""
    _, *words = shlex.split(line)
    assert words[0] in COMMANDS, f"{page}: {line}"
    command: Any = load(words[0])
    for word in words[1:]:
        inner = getattr(command, "commands", {})
        if not inner or word.startswith("-"):  # a group may run by itself, with options
            break
        assert word in inner, f"{page}: {line}"
        command = inner[word]
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= option_names(command), f"{page}: {line}"


def test_error_codes_exist() -> None:
    """`tailrace explain` knows each of them."""
    known = {kind.code for kind in all_errors()}
    used = {code for page in PAGES for code in re.findall(r"TR-\d+", page.read_text(encoding="utf-8"))}
    assert used
    assert used <= known


def test_make_targets_exist() -> None:
    """Each `make` target that a page names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = re.compile(r"(?:^ {4}|`)make (?:[A-Z]+=\S+ )?([a-z][a-z0-9-]*)", re.MULTILINE)
    used = {target for page in PAGES for target in called.findall(page.read_text(encoding="utf-8"))}
    assert {"run", "test", "check"} <= used
    assert [target for target in sorted(used) if f"\n{target}:" not in makefile] == []


def test_the_page_of_commands_is_up_to_date() -> None:
    """After a change of a command's help, run `python docs/generate.py`."""
    spec = spec_from_file_location("tailrace_docs_generate_cli", ROOT / "docs" / "generate.py")
    if spec is None or spec.loader is None:
        pytest.fail("docs/generate.py cannot be loaded")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == module.cli(), "run: python docs/generate.py, to regenerate cli.md"


def test_named_tests_exist() -> None:
    """A page that says where something is shown names a test of today; an ellipsis ends a shortened name."""
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    named = {code for page in PAGES for code in CODE.findall(prose(page)) if re.fullmatch(r"test_\w+…?", code)}
    named -= {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert len(named) > 20
    full = {each for each in named if not each.endswith("…")}
    short = {each for each in named - full if not any(name.startswith(each.rstrip("…")) for name in there)}
    assert sorted(full - there | short) == []


def test_figures_of_the_cost_page_are_measured() -> None:
    """Each is on a page that a benchmark wrote; after another measurement, change docs/cost.md too."""
    figure = re.compile(r"\d[\d,.]*\d")
    measured = {
        each for name in ("sink", "churn") for each in figure.findall((ROOT / f"docs/benchmarks/{name}.md").read_text())
    }
    cost = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    cells = [cell for line in cost.splitlines() if line.startswith("| ") for cell in line.split("|")[2:]]
    prose = re.findall(r"(\d[\d,]*\.?\d+)(?=,| and [\d.]+ ms| ms| µs| records/s)", cost)
    used = {each for cell in cells for each in figure.findall(cell)} | {each for each in prose if set(each) & set(",.")}
    assert {"126.9", "4.35", "305,249", "3896", "2.00"} <= used
    assert sorted(used - measured) == []


def test_every_page_is_in_the_index() -> None:
    """A page without links to it is not read."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(prose(index))}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index}
    assert [name(page) for page in sorted(pages - linked)] == []
