"""Building: a revision becomes the objects that run it, rendered by the same chart that `helm install` uses.

So a pipeline of a Pipeline resource and one of the chart's values are the same objects. A spec that the chart or the
configuration refuses raises ConfigInvalid, in their words, before anything is changed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailrace.config import Pipeline
from tailrace.config.file import load
from tailrace.config.resource import OWNER
from tailrace.errors import ConfigInvalid, InvariantBroken
from tailrace_operator import owners
from tailrace_operator.changes import Effect, combined, part
from tailrace_operator.model import APPLIED, LIVE, REVISION, TEMPLATE, Key, Object, Resource, Revision
from tailrace_operator.platform import KINDS, TOPIC, Platform
from tailrace_operator.revisions import digest

TAKEN_LIVE = "tailrace.dev/live"  # the label of the ConfigMap that a running driver reads again and again
_CLUSTER = "strimzi.io/cluster"
_LIMIT = 60.0  # seconds for Helm, which needs a fifth of one
_KEPT = "what runs was left as it is"


@dataclass(frozen=True)
class Built:
    """The objects of one revision, in the order in which they are applied."""

    objects: tuple[Object, ...]
    digest: str

    @property
    def deployment(self) -> Object:
        """The driver's."""
        [found] = [each for each in self.objects if each["kind"] == "Deployment"]
        return found

    @property
    def template(self) -> str:
        """A digest of the driver's pod template: if it changes, Kubernetes replaces the driver."""
        return digest(self.deployment["spec"]["template"])


class Builder:
    """Renders revisions, and remembers the last ones: most reconciles ask for what is there already."""

    def __init__(
        self,
        platform: Platform,
        helm: str,
        apis: Callable[[], Iterable[str]],
        pipelines: Callable[[], Mapping[Key, Object]] = dict,
    ) -> None:
        """Render with Helm; `apis` are the versions of other operators' that the cluster has by now.

        A topic that another one of the `pipelines` names outlives the Pipeline that it was made for.
        """
        self.platform = platform
        self._pipelines = pipelines
        self._helm = helm
        self._apis = apis
        self._made: dict[tuple[Key, str], tuple[Object, ...]] = {}
        self._last: dict[Key, set[tuple[Key, str]]] = {}
        self._lock = threading.Lock()  # a shadow is rendered for its Pipeline as well

    @property
    def made(self) -> set[str]:
        """The topics that the platform itself makes."""
        return _made(self.platform.values.get("kafka") or {})

    def check(self, resource: Resource, revision: Revision) -> None:
        """Raise ConfigInvalid if a revision cannot run."""
        self._rendered(resource, revision, running=True)

    def configuration(self, resource: Resource, revision: Revision) -> Pipeline:
        """Return the configuration of a revision, the platform's defaults included; raise ConfigInvalid as `check`."""
        return _loaded(self._rendered(resource, revision, running=True))

    def build(self, resource: Resource, revision: Revision, running: bool) -> Built:
        """Return the objects of a revision; without a driver if it is not to run."""
        others = [(key, body) for key, body in self._pipelines().items() if key != resource.key]
        shared = {topic for key, body in others for topic in topics_of(key.name, body.get("spec") or {})}
        objects = tuple(_owned(each, resource, shared) for each in self._rendered(resource, revision, running))
        made = Built(objects, digest([*objects, revision.name]))
        notes = {
            REVISION: revision.name,
            APPLIED: made.digest,
            TEMPLATE: made.template,
            LIVE: json.dumps(part(resource.spec, Effect.LIVE), sort_keys=True),
        }
        made.deployment["metadata"].setdefault("annotations", {}).update(notes)
        return made

    def forget(self, key: Key) -> None:
        """Drop what was remembered of a Pipeline that is gone."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        for each in self._last.pop(key, ()):
            self._made.pop(each, None)

    def _rendered(self, resource: Resource, revision: Revision, running: bool) -> list[Object]:
        spec = combined(revision.spec, resource.spec, revision.topics)
        values, apis = self._values(resource, spec, running), sorted(self._apis())
        place = resource.key, digest([values, apis])
        made = self._made.get(place)
        if made is None:
            made = tuple(self._render(resource.key, values, apis))
            _loaded(made)
            with self._lock:
                if len(self._last.get(resource.key, ())) > 3:
                    self._drop(resource.key)
                self._last.setdefault(resource.key, set()).add(place)
                self._made[place] = made
        copies: list[Object] = json.loads(json.dumps(made))
        return copies

    def _values(self, resource: Resource, spec: Mapping[str, Any], running: bool) -> Object:
        key, entry = resource.key, {**spec, "enabled": running}
        kafka = dict(self.platform.values.get("kafka") or {})
        if resource.partitions:
            own = {spec["config"]["sink"]["topic"]: {"partitions": resource.partitions}}
            kafka["topics"] = {**_by_name(kafka), **own}
        # A Pipeline names topics that exist; whether they do is found out at the brokers.
        kafka["existingTopics"] = sorted({*self.platform.topics, *topics(spec)} - _made(kafka))
        return {**self.platform.values, "kafka": kafka, "pipelines": {key.name: entry}}

    def _render(self, key: Key, values: Mapping[str, Any], apis: Iterable[str]) -> Iterable[Object]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "values.json"
            file.write_text(json.dumps(values), encoding="utf-8")
            command = [self._helm, "template", key.name, str(self.platform.chart), "--namespace", key.namespace]
            command += ["--values", str(file), "--no-hooks", "--skip-tests"]
            command += [f"--api-versions={each}" for each in apis]
            homes = {f"HELM_{name}_HOME": folder for name in ("CACHE", "CONFIG", "DATA")}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT, check=False, env={"HOME": folder, **homes}
            )
        if done.returncode:
            raise ConfigInvalid(_words(done.stderr), kept=_KEPT, then="correct the spec, and apply it again")
        made = [
            each
            for each in yaml.safe_load_all(done.stdout)
            if each and KINDS.get(each["kind"]) == each["apiVersion"] and not _shared(each)
        ]
        return sorted(made, key=lambda each: list(KINDS).index(each["kind"]))


def _owned(made: Object, resource: Resource, shared: Container[str]) -> Object:
    about = made["metadata"]
    about["labels"] = {
        **about.get("labels", {}),
        "app.kubernetes.io/managed-by": "tailrace-operator",
        OWNER: resource.key.name,
    }
    if made["kind"] == TOPIC:  # shared: the ledger is that of all Pipelines, and of a Helm release
        about["labels"] = {_CLUSTER: about["labels"][_CLUSTER]}
    if references := owners.of_pipeline(made, resource, shared):
        about["ownerReferences"] = references
    return made


def _shared(made: Object) -> bool:
    """Return whether an object is none of a pipeline's: dashboards are ConfigMaps, too."""
    return made["kind"] == "ConfigMap" and not made["metadata"]["labels"].keys() & {"tailrace.dev/revision", TAKEN_LIVE}


def _by_name(kafka: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the topics that the platform makes, by name; a list is how version 0.1 had them."""
    topics = kafka.get("topics") or {}
    return topics if isinstance(topics, dict) else {str(each["name"]): each for each in topics}


def _made(kafka: Mapping[str, Any]) -> set[str]:
    return set(_by_name(kafka))


def topics(spec: Mapping[str, Any]) -> set[str]:
    """Return the topics that a spec names."""
    config = spec.get("config") or {}
    source, sink = config.get("source") or {}, config.get("sink") or {}
    found = {*(source.get("topics") or ()), sink.get("topic"), *(sink.get("topics") or ())}
    more = spec.get("topics") or {}
    return {str(each) for each in {*found, *(more.get("read") or ()), *(more.get("write") or ())} if each}


def topics_of(name: str, spec: Mapping[str, Any]) -> set[str]:
    """Return the topics of a Pipeline, that of its rejected records with them."""
    return topics(spec) | {str((spec.get("config") or {}).get("rejected") or f"{name}.rejected")}


def _loaded(made: Iterable[Object]) -> Pipeline:
    """Load a configuration as its driver does; the schema of values does not say all that is refused."""
    made = tuple(made)
    found = [each for each in made if each["kind"] == "ConfigMap" and TAKEN_LIVE not in each["metadata"]["labels"]]
    if len(found) != 1:
        raise InvariantBroken(f"the chart rendered {len(found)} configurations of one pipeline", kept=_KEPT)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipeline.yaml"
        file.write_text(found[0]["data"]["pipeline.yaml"], encoding="utf-8")
        try:
            return load(file, _environment(made)).pipeline
        except ConfigInvalid as error:
            what = error.what.replace(f"{folder}/", "")
            raise ConfigInvalid(what, kept=_KEPT, then="correct spec.config, and apply it again") from None


def _environment(made: Iterable[Object]) -> dict[str, str]:
    """Return the variables of the driver, those of the platform too; what they refer to is not looked up."""
    [driver] = [each for each in made if each["kind"] == "Deployment"]
    containers = driver["spec"]["template"]["spec"]["containers"]
    [variables] = [each.get("env") or () for each in containers if each["name"] == "driver"]
    return {each["name"]: str(each.get("value") or "") if "valueFrom" not in each else "secret" for each in variables}


def _words(stderr: str) -> str:
    """Return what Helm says, without what it says about itself."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and "Use --debug" not in line]
    text = " ".join(lines)
    return text.rpartition("error calling fail: ")[2] if "error calling fail: " in text else text
