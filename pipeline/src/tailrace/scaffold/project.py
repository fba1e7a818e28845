"""A new project's files, from templates: a pipeline that works, with samples, a test, and what Kubernetes needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

import yaml

from tailrace.errors import ConfigInvalid
from tailrace.scaffold.schema import schema
from tailrace.version import SEMANTIC

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_TEMPLATES = files("tailrace.scaffold").joinpath("templates")
_IN_IMAGE = "/opt/pipeline/"
SCHEMA = ".tailrace/pipeline.schema.json"


class Kind(StrEnum):
    """The format of a new pipeline's records."""

    JSON = "json"
    AVRO = "avro"
    RAW = "raw"


@dataclass(frozen=True)
class Project:
    """What a new project is to be."""

    name: str
    kind: Kind = Kind.JSON
    arrow: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigInvalid(
                f"{self.name!r} is no name for a pipeline: it has lower-case letters, digits and dashes, and neither "
                "begins nor ends with a dash",
                kept="nothing was written",
                then="for example: tailrace init orders",
            )

    @property
    def files(self) -> dict[str, str]:
        """Every file by its path."""
        function = "function-arrow" if self.arrow else "function"
        made = {
            "pipeline.yaml": self._made(f"pipeline-{self.kind}.yaml"),
            "functions.py": self._made(f"{function}-{'raw' if self.kind is Kind.RAW else 'fields'}.py"),
            "samples.py": self._made(f"samples-{self.kind}.py"),
            "test_pipeline.py": self._made(f"test-{'raw' if self.kind is Kind.RAW else 'fields'}.py"),
            "README.md": self._made("readme.md"),
            ".gitignore": self._made("gitignore"),
            "Dockerfile": self._made("dockerfile"),
            "values.yaml": self._values(self._made(f"pipeline-{self.kind}.yaml")),
            SCHEMA: json.dumps(schema(), indent=1) + "\n",
        }
        if self.kind is Kind.AVRO:
            made |= {"order.avsc": self._made("order.avsc"), "total.avsc": self._made("total.avsc")}
        return made

    def _made(self, template: str) -> str:
        text = _TEMPLATES.joinpath(f"{template}.tmpl").read_text(encoding="utf-8")
        key = "arrow" if self.arrow else "function"
        more = " order.avsc total.avsc" if self.kind is Kind.AVRO else ""
        return filled(text, {"NAME": self.name, "KEY": key, "VERSION": SEMANTIC, "MORE": more})

    def _values(self, pipeline: str) -> str:
        """Return the chart's values: the same configuration, with the files where the image has them."""
        config = yaml.safe_load(pipeline)
        del config["pipeline"], config["kafka"]
        key = "arrow" if self.arrow else "function"
        config["process"][key] = f"{_IN_IMAGE}{config['process'][key]}"
        for section in (config["source"], config["sink"]):
            if str(section.get("schema", "")).endswith(".avsc"):
                section["schema"] = f"{_IN_IMAGE}{section['schema']}"
        topics = {f"{self.name}-{side}": {"partitions": 4} for side in ("in", "out")}
        image = {"driver": {"repository": self.name, "tag": "1"}}
        values = {
            "kafka": {"topics": topics},
            "pipelines": {self.name: {"image": image, "config": config}},
        }
        head = (
            "# CHART is charts/tailrace of Tailrace's repository, or the place of your own registry, oci://…\n"
            f"# helm install {self.name} CHART -n streams --create-namespace -f values.yaml\n"
        )
        return head + yaml.safe_dump(values, sort_keys=False)

    def write(self, folder: Path) -> list[Path]:
        """Write the files into a folder that is empty or does not exist yet."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigInvalid(
                f"{folder} exists already, and is not empty",
                kept="nothing was written",
                then="name another folder, or remove this one",
            )
        written: list[Path] = []
        for path, text in self.files.items():
            place = folder / path
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigInvalid(
                    f"{place} cannot be written: {error.strerror}",
                    kept=f"{len(written)} files were written",
                    then="name another folder with --folder",
                ) from error
            written.append(place)
        return written


def filled(text: str, values: Mapping[str, str]) -> str:
    """Put values into a template's places, which look like @NAME@."""
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)
