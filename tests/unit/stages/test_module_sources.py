"""The files behind a user's model or function, and the digests that a replay compares."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tailrace.config import Pipeline
from tailrace.stages.assembly import Assembly
from tailrace.stages.module_sources import sources
from tailrace.stages.process import Function


def write(folder: Path, **files: str) -> Path:
    """Write files by name, with __ for a slash and INIT for __init__."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path, reference: str, *path: Path) -> list[str]:
    """Return the files behind a reference, relative to the folder or, if they are elsewhere, by name."""
    found = sources(reference, folder, [str(each) for each in path])
    return [str(each.relative_to(folder)) if each.is_relative_to(folder) else each.name for each in found]


def test_file_brings_the_files_next_to_it_that_it_imports(tmp_path: Path) -> None:
    """It brings them transitively, even in a cycle, and no others."""
    write(
        tmp_path,
        models="import json\nfrom fields import Amount\n",
        fields="def late():\n    import units\n",
        units="import models\n",
        other="",
    )
    assert names(tmp_path, "models.py:Order") == ["fields.py", "models.py", "units.py"]
    assert names(tmp_path, "other.py:Order") == ["other.py"]


def test_file_brings_a_package_next_to_it(tmp_path: Path) -> None:
    """It brings the enclosing packages too, however the package is imported."""
    write(tmp_path, models="from shop import prices\nimport shop.tax.rates\n", shop__prices="", shop__other="")
    write(tmp_path, shop____init="", shop__tax__rates="from . import table\n", shop__tax__table="")
    (tmp_path / "shop" / "__init__.py").write_text("")
    assert names(tmp_path, "models.py:Order") == [
        "models.py", "shop/__init__.py", "shop/prices.py", "shop/tax/rates.py", "shop/tax/table.py",
    ]  # fmt: skip


def test_file_in_a_folder_below_finds_its_own_neighbours(tmp_path: Path) -> None:
    """Imports start at the file, not at the pipeline."""
    write(tmp_path, jobs__models="import fields\n", jobs__fields="", fields="")
    assert names(tmp_path, "jobs/models.py:Order") == ["jobs/fields.py", "jobs/models.py"]


def test_package_that_a_finder_of_its_own_finds_brings_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --editable` adds such a finder for a package that does not lie on Python's path."""
    write(tmp_path / "elsewhere", shop__prices="from shop import tax\n", shop__tax="")
    (tmp_path / "elsewhere" / "shop" / "__init__.py").write_text("")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            place = tmp_path / "elsewhere" / "shop"
            found = importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
            return found if name == "shop" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = [each.name for each in sources("shop.prices:Order", tmp_path)]
    assert found == ["__init__.py", "prices.py", "tax.py"]


class Mapped:
    """A finder as `pip install --editable` adds it: it knows the folders of packages by their full names."""

    def __init__(self, namespaces: tuple[str, ...] = (), **folders: Path) -> None:
        self._folders = {name.replace("__", "."): folder for name, folder in folders.items()}
        self._namespaces = namespaces

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a package that is mapped; a namespace has a place that is none."""
        if name in self._namespaces:
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = ["__editable__.finder"]
            return found
        if (folder := self._folders.get(name)) is None:
            return None
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


def test_package_whose_folder_has_another_name_brings_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setuptools calls that `package_dir`."""
    write(tmp_path / "elsewhere", src__prices="from shop.tax import rate\n", src__tax="from . import units\n")
    write(tmp_path / "elsewhere", src__units="", src__INIT="")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Mapped(shop=tmp_path / "elsewhere" / "src")])
    found = [each.name for each in sources("shop.prices:Order", tmp_path)]
    assert found == ["__init__.py", "prices.py", "tax.py", "units.py"]


def test_package_of_a_namespace_that_a_finder_knows_brings_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace itself has no place, or others than that of the package."""
    write(tmp_path / "elsewhere", jobs__keys="import firm.jobs.units\n", jobs__units="", jobs__INIT="")
    finder = Mapped(("firm",), firm__jobs=tmp_path / "elsewhere" / "jobs")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert [each.name for each in sources("firm.jobs.keys:tag", tmp_path)] == ["__init__.py", "keys.py", "units.py"]
    write(tmp_path / "site", firm__other="")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    assert [each.name for each in sources("firm.jobs.keys:tag", tmp_path)] == ["__init__.py", "keys.py", "units.py"]


def test_package_that_extends_its_path_brings_the_module_from_another_place(tmp_path: Path) -> None:
    """The way before Python knew of namespaces, with `pkgutil.extend_path`."""
    write(tmp_path / "one", shop__INIT="")
    write(tmp_path / "two", shop__INIT="", shop__prices="from shop import tax\n", shop__tax="")
    found = names(tmp_path, "shop.prices:Order", tmp_path / "one", tmp_path / "two")
    assert found == ["one/shop/__init__.py", "two/shop/prices.py", "two/shop/tax.py"]


def test_package_in_the_pipelines_folder_brings_its_other_parts_from_elsewhere(tmp_path: Path) -> None:
    """Its modules may be of several projects, of which one is the pipeline."""
    folder, site = tmp_path / "pipeline", tmp_path / "site"
    write(folder, firm__jobs="import units\nfrom firm.tax import rate\n", units="")
    write(site, firm__tax="from firm import table\n", firm__table="")
    found = names(tmp_path / "pipeline", "firm.jobs:f", site)
    assert found == ["firm/jobs.py", "units.py", "table.py", "tax.py"]


def test_package_behind_a_link_of_another_name_brings_its_modules(tmp_path: Path) -> None:
    """The files are those behind the link."""
    write(tmp_path / "elsewhere", source__prices="from shop import tax\n", source__tax="")
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "shop").symlink_to(tmp_path / "elsewhere" / "source")
    assert names(tmp_path / "pipeline", "shop.prices:Order") == ["prices.py", "tax.py"]


def test_package_in_two_places_brings_the_module_from_the_second(tmp_path: Path) -> None:
    """A package without an __init__.py may have parts of several installed projects."""
    write(tmp_path / "one", shop__other="")
    write(tmp_path / "two", shop__prices="")
    assert names(tmp_path, "shop.prices:Order", tmp_path / "one", tmp_path / "two") == ["two/shop/prices.py"]


def test_installed_package_brings_its_own_modules_only(tmp_path: Path) -> None:
    """Other installed packages have versions of their own."""
    site = tmp_path / "site"
    write(
        site, shop__models="from .fields import Amount\nfrom ..far import x\nimport other\n", shop__fields="", other=""
    )
    (site / "shop" / "__init__.py").write_text("")
    write(site, alone="import other\n")
    folder = tmp_path / "pipeline"
    folder.mkdir()
    assert names(folder, "shop.models:Order", site) == ["__init__.py", "fields.py", "models.py"]
    assert names(folder, "alone:Order", site) == ["alone.py"]
    assert names(folder, "nowhere:Order", site) == []


def test_module_in_the_pipelines_folder_comes_before_an_installed_one(tmp_path: Path) -> None:
    """Loading the model has the same order, and it brings the files next to it."""
    site, folder = tmp_path / "site", tmp_path / "pipeline"
    write(site, models="")
    write(folder, models="import fields\n", fields="")
    assert names(folder, "models:Order", site) == ["fields.py", "models.py"]


def test_module_that_does_not_parse_is_included(tmp_path: Path) -> None:
    """Loading it reports what is wrong."""
    assert names(write(tmp_path, models="def f(:\n"), "models.py:Order") == ["models.py"]


def assembly(folder: Path, schema: str = "id long", function: str | None = None) -> Assembly:
    """Return a pipeline of JSON whose function was loaded without its files being requested."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"topics": ["in"], "format": "json", "schema": schema},
            "process": {"function": function},
            "sink": {"topic": "out", "format": "json"},
        }
    )
    return Assembly(pipeline, Function(lambda frame: frame, function, ()) if function else None, folder)


@pytest.mark.parametrize("reference", ["models.py:Order", "models:Order", "shop.models:Order"])
@pytest.mark.parametrize("changed", ["models", "fields"])
def test_record_digest_changes_with_the_model_and_its_imports(tmp_path: Path, reference: str, changed: str) -> None:
    """A record that was accepted could be rejected now; a change of another file does not matter."""
    package = reference.startswith("shop")
    prefix = "shop__" if package else ""
    write(
        tmp_path,
        **{f"{prefix}models": f"import {'shop.' if package else ''}fields\n", f"{prefix}fields": "LIMIT = 1\n"},
    )
    before = assembly(tmp_path, reference).rules
    write(tmp_path, unrelated="LIMIT = 3\n")
    assert assembly(tmp_path, reference).rules == before
    file = tmp_path / f"{prefix.replace('__', '/')}{changed}.py"
    file.write_text(file.read_text() + "LIMIT = 2\n")
    assert assembly(tmp_path, reference).rules != before


def test_record_digest_of_a_written_out_schema_needs_no_file(tmp_path: Path) -> None:
    """This holds however long the schema is."""
    assert assembly(tmp_path, ", ".join(f"field_{number} long" for number in range(100))).rules


@pytest.mark.parametrize("changed", ["job", "rules"])
def test_code_digest_changes_with_the_package_of_the_function(tmp_path: Path, changed: str) -> None:
    """A function of a package ships no files, but its source counts all the same."""
    write(tmp_path, shop__job="from shop.rules import RATE\n", shop__rules="RATE = 1\n")
    before = assembly(tmp_path, function="shop.job:run").code
    file = tmp_path / "shop" / f"{changed}.py"
    file.write_text(file.read_text() + "RATE = 2\n")
    assert assembly(tmp_path, function="shop.job:run").code != before
