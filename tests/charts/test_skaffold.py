"""skaffold.yaml is valid, and everything that it names exists. The tests do not need Skaffold itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, ROOT, SHARED, Resource, helm, of_kind, pods, render

SCHEMA = SHARED / "skaffold" / "v4beta13.schema.json"
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "skaffold.yaml").read_text(encoding="utf-8"))
# Strimzi makes this Service from the Kafka resource.
BOOTSTRAP = re.compile(r"(?P<cluster>.+)-kafka-bootstrap")


def releases() -> list[Any]:
    """Return the releases of the configuration and of its profiles."""
    parts = [CONFIG, *CONFIG["profiles"]]
    return [each for part in parts for each in part.get("deploy", {}).get("helm", {}).get("releases", [])]


def given(release: Any) -> dict[str, Any]:
    """Return the values that Skaffold would set, with `x` for each image's name and tag."""
    values = {**release.get("setValues", {}), **release.get("setValueTemplates", {})}
    return {key: re.sub(r"\{\{\.IMAGE_(REPO|TAG)_\w+\}\}", "x", value) for key, value in values.items()}


def rendered(release: Any) -> list[Resource]:
    """Render a release with Helm."""
    arguments = ["template", release["name"], str(ROOT / release["chartPath"]), "--namespace", release["namespace"]]
    arguments += [f"--values={ROOT / file}" for file in release["valuesFiles"]]
    arguments += [f"--set={key}={value}" for key, value in given(release).items()]
    done = helm(*arguments, "--api-versions", "kafka.strimzi.io/v1")
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def test_file_matches_skaffolds_schema(tmp_path: Path) -> None:
    """Helm validates the file as values of an empty chart with that schema."""
    if not SCHEMA.is_file():
        pytest.skip(f"Skaffold's schema is not at {SCHEMA}: set SHARED_TOOLS")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: check\nversion: 0.0.1\n")
    shutil.copy(SCHEMA, tmp_path / "values.schema.json")
    assert helm("template", "t", str(tmp_path), values=CONFIG).returncode == 0
    wrong = {**CONFIG, "build": {**CONFIG["build"], "artefacts": []}}
    message = helm("template", "t", str(tmp_path), values=wrong).stderr
    assert "artefacts" in message


def test_each_image_has_a_dockerfile_and_builds_on_an_earlier_one() -> None:
    """The earlier image is an argument of its Dockerfile; Skaffold would ask a registry for one that is a default."""
    built: set[str] = set()
    for artifact in CONFIG["build"]["artifacts"]:
        dockerfile = (ROOT / artifact["context"] / artifact["docker"]["dockerfile"]).read_text(encoding="utf-8")
        for needed in artifact.get("requires", []):
            assert needed["image"] in built
            assert f"ARG {needed['alias']}\nFROM ${{{needed['alias']}}}\n" in dockerfile
        built.add(artifact["image"])
    named = {each for release in releases() for each in re.findall(r"IMAGE_\w+?_(tailrace_\w+)\}", json.dumps(release))}
    assert named <= {image.replace("-", "_") for image in built}


def test_sources_of_each_image_are_in_the_repository() -> None:
    """Skaffold looks for them before any hook has run, in a fresh clone."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for artifact in CONFIG["build"]["artifacts"]:
        dockerfile = (ROOT / artifact["docker"]["dockerfile"]).read_text(encoding="utf-8")
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE):
            for source in line.split():
                assert any(file == source or file.startswith(f"{source.rstrip('/')}/") for file in listed), source


def copied(dockerfile: str) -> list[str]:
    """Return what a Dockerfile copies from the repository."""
    text = (ROOT / dockerfile).read_text(encoding="utf-8")
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    return [each.rstrip("/") for line in lines for each in line.split()]


def admitted(file: str, dockerfile: str) -> bool:
    """Tell whether the Dockerfile's ignore file lets a file into its build: the last pattern that matches decides."""
    text = (ROOT / f"{dockerfile}.dockerignore").read_text(encoding="utf-8")
    found = True
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        pattern = re.escape(line.removeprefix("!").rstrip("/")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{pattern}(/.*)?", file):
            found = line.startswith("!")
    return found


def watched(file: str, dockerfile: str) -> bool:
    """Tell whether Skaffold watches a file for an image: the Dockerfile, and what it copies unless it is ignored."""
    named = any(file == source or file.startswith(f"{source}/") for source in copied(dockerfile))
    return file == dockerfile or (named and admitted(file, dockerfile))


def effect(file: str) -> tuple[list[str], list[str], bool]:
    """Return the images that Skaffold builds after an edit, those it copies the file into, and whether it deploys.

    It ignores the rules of an image on which others are built, and an image watches what those below it watch.
    """
    artifacts = {each["image"]: each for each in CONFIG["build"]["artifacts"]}
    below = {name: [each["image"] for each in made.get("requires", [])] for name, made in artifacts.items()}
    needed = {each for names in below.values() for each in names}
    built, synced = list[str](), list[str]()
    for name, artifact in artifacts.items():
        chain = [name]
        for each in chain:
            chain += below[each]
        if not any(watched(file, artifacts[each]["docker"]["dockerfile"]) for each in chain):
            continue
        rules = [] if name in needed else artifact.get("sync", {}).get("manual", [])
        (synced if any(Path(file).match(rule["src"]) for rule in rules) else built).append(name)
    release = next(each for each in releases() if each["namespace"] == "tailrace-dev")
    deployed = file.startswith(f"{release['chartPath']}/") or file in release["valuesFiles"]
    return built, synced, deployed or bool(built)


DRIVERS = ["tailrace-driver", "tailrace-example"]
OURS = ["tailrace-driver", "tailrace-executor", "tailrace-example"]
ALL = ["tailrace-spark", *OURS]


@pytest.mark.parametrize(
    ("file", "built", "synced", "deployed"),
    [
        # A function: into the running driver, which starts again with it.
        ("pipeline/examples/tweets/tweets.py", [], ["tailrace-example"], False),
        ("pipeline/examples/tweets/tweet.avsc", [], ["tailrace-example"], False),
        # On Kubernetes the pipeline's configuration is in the values.
        ("pipeline/examples/tweets/pipeline.yaml", [], [], False),
        ("charts/tailrace/environments/dev.yaml", [], [], True),
        ("charts/tailrace/templates/pipeline-deployment.yaml", [], [], True),
        # Code that executors run, code of the driver alone, and code that neither image has.
        ("pipeline/src/tailrace/gateway/daemon.py", OURS, [], True),
        ("pipeline/src/tailrace/driver/loop.py", OURS, [], True),
        ("pipeline/src/tailrace/startup/run.py", DRIVERS, [], True),
        ("pipeline/src/tailrace/cli/run.py", DRIVERS, [], True),
        ("pipeline/src/tailrace/testing/embedded.py", [], [], False),
        ("pipeline/src/tailrace/cli/demo.py", [], [], False),
        ("pipeline/src/tailrace/jars/spark.txt", OURS, [], True),
        ("pipeline/pyproject.toml", OURS, [], True),
        ("requirements/runtime.txt", ALL, [], True),
        ("requirements/build.txt", ALL, [], True),
        ("requirements/dev.txt", [], [], False),
        ("requirements/operator.txt", [], [], False),
        ("images/example/Dockerfile", ["tailrace-example"], [], True),
        ("images/executor/executor", ["tailrace-executor"], [], True),
        ("images/spark/Dockerfile", ALL, [], True),
        ("images/operator/Dockerfile", [], [], False),
        ("operators/src/tailrace_operator/decide.py", [], [], False),
        ("tests/charts/test_skaffold.py", [], [], False),
        ("docs/index.md", [], [], False),
        ("CHANGELOG.md", [], [], False),
    ],
)
def test_edit_rebuilds_what_depends_on_it_and_nothing_else(
    file: str, built: list[str], synced: list[str], deployed: bool
) -> None:
    """An edited function is copied into its driver. Once it also rebuilt the driver's image, whose new pod undid it."""
    assert (ROOT / file).is_file()
    assert effect(file) == (built, synced, deployed)


@pytest.mark.parametrize("image", [path.parent.name for path in sorted((ROOT / "images").glob("*/Dockerfile"))])
def test_ignore_file_of_an_image_admits_what_its_dockerfile_copies_and_nothing_else(image: str) -> None:
    """Each file that Git knows is in the build's context if the Dockerfile copies it; but not what it then removes."""
    dockerfile = f"images/{image}/Dockerfile"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    removed = re.findall(r"site-packages/tailrace\s*&& rm -rf ([^&]+?)\s*&&", text_of(dockerfile))
    gone = [f"pipeline/src/tailrace/{each}" for words in removed for each in words.split() if not each.startswith("/")]
    for file in listed:
        named = any(file == source or file.startswith(f"{source}/") for source in copied(dockerfile))
        left = file.endswith(".gitignore") or any(file == each or file.startswith(f"{each}/") for each in gone)
        assert admitted(file, dockerfile) == (named and not left), file


def text_of(dockerfile: str) -> str:
    """Return a Dockerfile with its continued lines joined."""
    return (ROOT / dockerfile).read_text(encoding="utf-8").replace("\\\n", " ")


def test_releases_render_with_the_built_images() -> None:
    """In every pod."""
    assert len(releases()) == 3
    for release in releases():
        made = rendered(release)
        images = {each["image"] for pod in pods(made).values() for each in pod["spec"]["containers"] if "image" in each}
        assert images == {"x:x"}, release["namespace"]


def test_each_forwarded_port_belongs_to_a_service() -> None:
    """In the namespace of the release."""
    [release] = [each for each in releases() if each["namespace"] == "tailrace-dev"]
    made = rendered(release)
    services = {each["metadata"]["name"]: each["spec"]["ports"] for each in of_kind(made, "Service")}
    elsewhere = [each for each in CONFIG["profiles"] if "deploy" in each]
    assert all({"op": "remove", "path": "/portForward"} in each["patches"] for each in elsewhere)
    for forward in CONFIG["portForward"]:
        assert forward["namespace"] == release["namespace"]
        strimzis = BOOTSTRAP.fullmatch(forward["resourceName"])
        if strimzis:
            [kafka] = of_kind(made, "Kafka")
            assert kafka["metadata"]["name"] == strimzis["cluster"]
            assert forward["port"] in {each["port"] for each in kafka["spec"]["kafka"]["listeners"]}
        else:
            assert forward["port"] in {each["port"] for each in services[forward["resourceName"]]}


def test_synchronised_files_reach_the_folder_that_the_driver_reads() -> None:
    """The folder is writable, and the configuration takes the function from it."""
    [artifact] = [each for each in CONFIG["build"]["artifacts"] if "sync" in each]
    [rule] = artifact["sync"]["manual"]
    assert [file for file in ROOT.glob(rule["src"]) if file.name == "tweets.py"]
    assert rule["src"].startswith(rule["strip"])
    [release] = [each for each in releases() if each["namespace"] == "tailrace-dev"]
    made = rendered(release)
    [deployment] = of_kind(made, "Deployment")
    [driver] = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "editable", "mountPath": rule["dest"]} in driver["volumeMounts"]
    [configuration] = [each for each in of_kind(made, "ConfigMap") if "pipeline.yaml" in each["data"]]
    assert f"function: {rule['dest']}/tweets.py:hashtags" in configuration["data"]["pipeline.yaml"]
    dockerfile = (ROOT / artifact["docker"]["dockerfile"]).read_text(encoding="utf-8")
    assert f" {rule['dest']}/\n" in dockerfile


def test_profiles_are_those_in_the_documentation() -> None:
    """Each has its own namespace."""
    assert [each["name"] for each in CONFIG["profiles"]] == ["dev", "e2e", "staging"]
    assert len({each["namespace"] for each in releases()}) == 3
    assert CHART.is_dir()
    assert render("staging")
