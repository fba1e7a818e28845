"""A Pipeline resource on a real Kubernetes: applied, broken, rolled back, suspended, left alone, deleted; counted.

The tests build on each other and run in this order. After each that moves records, an independent reader counts all.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from e2e import operated
from e2e import release as releases
from e2e.operated import PIPELINE, Operated, Operator
from e2e.release import NAME, Release
from support import cluster
from support.helm import CHART, ROOT
from tailrace.cli.main import app
from tailrace.config.resource import PLURAL

pytestmark = [pytest.mark.timeout(1800)]

MANY = 100
BAD_EVERY = 97  # of hand.py


@pytest.fixture(scope="module")
def pipeline(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Provide brokers, topics and a pipeline by a release, and an operator that runs."""
    folder = tmp_path_factory.mktemp("operator")
    file = folder / "platform.yaml"
    file.write_text(yaml.safe_dump(operated.platform()), encoding="utf-8")
    operator = Operator(release.namespace, folder, file)
    made = Operated(release.namespace, operator=operator)
    with operated.definition():
        helm("install", made.namespace)
        releases.hand(made)
        made.kubectl("wait", "kafkauser/hand", "pod/hand", "--for=condition=Ready", "--timeout=5m")
        operator.start()
        try:
            yield made
        finally:
            operator.kill()
            # While the stand-in is there to let go of them: topics outlive their Pipelines, and here their release.
            made.kubectl("delete", PLURAL, "--all", "--timeout=60s", check=False)
            cluster.helm("uninstall", NAME, "-n", made.namespace, "--wait", "--timeout=2m", check=False)
            made.kubectl("delete", "kafkatopics,kafkausers", "--all", "--timeout=60s", check=False)


@pytest.fixture
def running(pipeline: Operated) -> Operated:
    """Return the Pipeline once it works, with its operator."""
    if pipeline.operator.process is None:
        pipeline.operator.start()
    pipeline.phase("Running")
    pipeline.until(pipeline.single, "a single driver")
    return pipeline


def test_pipeline_takes_over_from_a_helm_release(pipeline: Operated) -> None:
    """`kubectl wait` knows when, and the status says what is behind and which revision works."""
    pipeline.until(pipeline.single, "the release's driver")
    with pipeline.feeding():
        pipeline.feed("tweets", 1000)
        pipeline.apply(operated.spec())
        try:
            pipeline.until(lambda: len(pipeline.pods("driver")) == 2, "a second driver")
            pipeline.kubectl("rollout", "status", f"deployment/{PIPELINE}", "--timeout=10m")
            helm("upgrade", pipeline.namespace, "--set-json=pipelines=[]")
            pipeline.kubectl("wait", PLURAL, PIPELINE, "--for=condition=Ready", "--timeout=10m")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{pipeline.look()}") from error
        pipeline.until(pipeline.single, "the Pipeline's driver alone")
        pipeline.feed("tweets", 1000)
    pipeline.count("from a Helm release to a Pipeline")
    pipeline.phase("Running")

    def caught_up() -> bool:
        found = pipeline.status()
        return found.get("lag") == 0 and found.get("lastBatch", {}).get("number", 0) > 0

    pipeline.until(caught_up, "the status to say that batches were delivered, and nothing is behind")
    found = pipeline.status()
    assert found["revision"] == found["running"] == found["lastStable"]


def test_spec_with_an_error_changes_nothing(running: Operated) -> None:
    """The configuration's own words are in the condition; the driver is the same."""
    driver, before = running.driver(), running.status()["running"]
    wrong = operated.changed(source={"format": "json"})
    del wrong["config"]["source"]["schema"]
    with running.feeding():
        running.apply(wrong)
        running.phase("Invalid")
        assert "format json needs a `schema`" in running.condition("Accepted")["message"]
        assert (running.driver(), running.status()["running"]) == (driver, before)
        running.apply(operated.spec())
        running.phase("Running")
    running.count("invalid spec")
    assert running.driver() == driver


def test_number_of_executors_changes_without_another_driver(running: Operated) -> None:
    """`kubectl scale` changes the spec, and the driver that runs requests another executor; an Event says so."""
    driver, found = running.driver(), running.deployment()["spec"]["template"]
    with running.feeding():
        running.kubectl("scale", f"{PLURAL}/{PIPELINE}", "--replicas=2")
        # The kubelet updates a mounted ConfigMap within a minute or so, and at once if the pod itself changes.
        running.until(lambda: running.live() == "2", "the ConfigMap to have the number")
        running.kubectl("annotate", "pod", driver, "test=now")
        running.until(lambda: running.status().get("replicas") == 2, "the status to count two executors")
        assert running.status()["selector"].startswith("tailrace.dev/component=executor,")
        assert len(running.pods("executor")) == 2
        assert (running.driver(), running.deployment()["spec"]["template"]) == (driver, found)
        running.kubectl("scale", f"{PLURAL}/{PIPELINE}", "--replicas=1")
    running.count("scaled without another driver")
    assert "without another driver: executors.instances" in running.told("ChangedInPlace")


def test_new_pipeline_waits_for_its_secret(running: Operated) -> None:
    """No pod before it is there; then the driver starts by itself. Its topic goes with it, as the spec says."""
    waits = operated.spec() | {"secretEnv": {"KEY": {"secret": "late", "key": "k"}}, "deletionPolicy": "Delete"}
    running.apply(waits, "waits")
    running.phase("Waiting", "waits")
    running.until(lambda: running.condition("Ready", "waits")["reason"] == "WaitingForSecret", "only a Secret to miss")
    assert "Secret late does not exist" in running.condition("Ready", "waits")["message"]
    assert not running.pods("driver", "waits")
    assert "waits.rejected" in running.topics()
    running.kubectl("create", "secret", "generic", "late", "--from-literal=k=v")
    running.until(lambda: bool(running.pods("driver", "waits")), "its driver to start")
    running.kubectl("delete", PLURAL, "waits", "--timeout=60s")
    running.until(lambda: "waits.rejected" not in running.topics(), "its topic to be gone")
    running.kubectl("delete", "secret", "late")


def test_function_that_does_not_exist_is_rolled_back(running: Operated) -> None:
    """At once, because no waiting mends it; applying the same spec again changes nothing, and another one runs."""
    driver, good = running.driver(), running.status()["running"]
    bad = operated.changed(process={"function": "/opt/pipeline/tweets.py:nothing"})
    with running.feeding():
        running.apply(bad)
        begun = ("Upgrading", "RolledBack")
        running.until(lambda: running.status()["phase"] in begun, "the broken revision to be tried")
        assert running.status()["running"] == good
        running.phase("RolledBack")
        assert running.status()["lastError"]["code"] == "TR-102"
        found = running.condition("RolledBack")
        assert found["reason"] == "ConfigurationRefused"
        assert "TR-102" in found["message"]
        assert "hand-over because: config.process" in running.told("HandOver")
        running.until(running.single, "the failed driver to be gone")
        generation = running.deployment()["metadata"]["generation"]
        running.kubectl("annotate", PLURAL, PIPELINE, "again=yes", "--overwrite")
        running.apply(bad)
        assert running.deployment()["metadata"]["generation"] == generation
        assert (running.driver(), running.status()["running"]) == (driver, good)
        assert running.condition("Ready")["status"] == "True"
        running.apply(operated.changed(batch={"drain": 21}))
        running.phase("Running")
        running.until(running.single, "one driver")
        assert running.driver() != driver
    running.count("broken upgrade rolled back, then a good one")


def test_image_that_does_not_exist_is_rolled_back_at_the_deadline(running: Operated) -> None:
    """The driver works meanwhile, and the reason has Kubernetes' words."""
    driver, bad = running.driver(), operated.changed(batch={"drain": 21})
    bad["image"] = {"driver": {"repository": "tailrace-example", "tag": "none"}}
    bad["progressDeadlineSeconds"] = 30
    with running.feeding():
        since = time.monotonic()
        running.apply(bad)
        running.phase("RolledBack")
        print(f"rolled back after {operated.tenths(since)}", flush=True)  # noqa: T201
        found = running.condition("RolledBack")
        assert found["reason"] == "ProgressDeadlineExceeded"
        assert "ImagePull" in found["message"]
        assert running.driver() == driver
        running.apply(operated.spec())
        running.phase("Running")
    running.count("upgrade that cannot start rolled back")


def test_suspended_pipeline_goes_on_where_it_was(running: Operated) -> None:
    """`tailrace pipelines suspend` ends the driver after its batch, and `resume` loses and repeats nothing."""
    steer("suspend", running)
    running.phase("Suspended")
    running.until(lambda: not running.pods("driver") and not running.pods("executor"), "no driver and no executor")
    running.feed("tweets", 1000)
    steer("resume", running)
    running.phase("Running")
    running.count("suspended and resumed")


def test_revision_is_left_and_tried_again_on_request(running: Operated) -> None:
    """`tailrace pipelines rollback` goes to the last one that worked, and `retry` comes back; the spec stays."""
    good = running.status()["running"]
    with running.feeding():
        running.apply(operated.changed(batch={"drain": 22}))
        running.phase("Running")
        newer = running.status()["running"]
        running.until(lambda: running.status().get("lastStable") == newer, "the newer revision to be stable")
        before = running.body()["spec"]
        steer("rollback", running, "--why", "too slow")
        running.phase("RolledBack")
        running.until(lambda: running.status()["running"] == good, "the revision before to run")
        assert "too slow" in running.condition("RolledBack")["message"]
        steer("retry", running)
        running.phase("Running")
        running.until(lambda: running.status()["running"] == newer, "the newer revision to run again")
        assert running.body()["spec"] == before
    running.count("rolled back by hand, and tried again")
    assert PIPELINE in steer("list", running)
    assert "Leading" in steer("status", running)
    assert '"event"' in steer("logs", running, "--lines=5")


def test_shadow_is_compared_and_promoted(running: Operated) -> None:
    """The counts are those of the records that the change concerns; then the live pipeline runs it, and loses nothing.

    When the overlay is moved into the spec, no driver is replaced, and the shadow goes with its topic.
    """
    driver, spec = running.driver(), running.body()["spec"]
    shadowed = {**spec, "shadow": operated.LOUDER}
    running.apply(shadowed)
    running.until(lambda: running.holds("ShadowReady"), "the shadow to read")
    first = (running.feeds + 1) * releases.FEED
    running.feed("tweets", 600)
    tags = [n % 3 for n in range(first, first + 600) if n % BAD_EVERY != BAD_EVERY - 1]
    wanted = {"different": tags.count(2), "equal": len(tags) - tags.count(0), "onlyLive": 0, "onlyShadow": 0}
    every = wanted["equal"] + wanted["different"]
    running.count("before a shadow is compared")
    running.until(lambda: running.hand("silence", "hashtags-shadow", "0")["records"] == every, "the shadow's output")
    counts = json.loads(steer("shadow", running, "--output=json"))
    print(f"shadow run: {json.dumps(counts)}", flush=True)  # noqa: T201
    assert counts.items() >= {**wanted, "live": every, "shadow": every}.items()
    running.until(lambda: running.condition("ShadowCompared")["reason"] == "Different", "the status to have the counts")
    found = running.status()["shadow"]
    assert found["compared"]["different"] == wanted["different"]
    assert (running.driver(), running.status()["running"]) == (driver, found["base"])
    with running.feeding():
        steer("promote", running)
        running.until(lambda: running.status()["running"] == found["revision"], "the live pipeline to run the change")
        running.phase("Running")
        running.until(running.single, "one driver")
    running.count("shadow run promoted")
    assert running.body()["spec"] == shadowed
    assert running.holds("Promoted")
    driver = running.driver()
    config = {**spec["config"], "process": operated.LOUDER["config"]["process"]}
    running.apply({**spec, "config": config, "files": operated.LOUDER["files"]})
    running.until(lambda: not running.pods("driver", f"{PIPELINE}-shadow", ending=True), "the shadow's driver to end")
    running.until(lambda: "hashtags-shadow" not in running.topics(), "the shadow's topic to be gone")
    running.phase("Running")
    assert (running.driver(), running.status()["running"]) == (driver, found["revision"])


def test_operation_runs_once_while_the_pipeline_rests(running: Operated) -> None:
    """What reads runs beside the driver; offsets are set without one, here to where they are; a failure says why."""
    running.feed("tweets", 500)
    running.count("before an operation")
    driver = running.driver()
    exported = operate(running, "Succeeded", "offsets", "export")
    assert running.driver() == driver
    text = running.kubectl("logs", f"job/{exported}", "-c", "operation")
    offsets = json.loads(text[text.index("{") : text.rindex("}") + 1])["offsets"]
    places = [f"{topic}:{number}={offset}" for topic, each in offsets.items() for number, offset in each.items()]
    operate(running, "Succeeded", "offsets", "set", *places)
    running.phase("Running")
    running.until(running.single, "a driver")
    assert running.driver() != driver
    failed = operate(running, "Failed", "offsets", "set", "nonsense")
    assert "nonsense" in running.operation(failed)["message"]
    with running.feeding():
        running.phase("Running")
    running.count("operations")


def test_operator_that_is_killed_at_any_time_leaves_only_work(running: Operated) -> None:
    """Killed in the middle of an upgrade, several times, it ends where it would have ended."""
    with running.feeding():
        for seconds in (0.1, 0.4, 0.8, 1.6):
            running.apply(operated.changed(batch={"drain": 23 + seconds}))
            time.sleep(seconds)  # not a wait for a condition: the time of the kill is what is tried
            running.operator.kill()
            running.operator.start()
        running.phase("Running")
        running.until(running.single, "one driver")
    running.count("operator killed")
    volumes = running.deployment()["spec"]["template"]["spec"]["volumes"]
    [mounted] = [each["configMap"]["name"] for each in volumes if each["name"] == "pipeline"]
    data = json.loads(running.kubectl("get", "configmap", mounted, "-o", "json"))["data"]
    assert yaml.safe_load(data["pipeline.yaml"])["batch"]["drain"] == 24.6


def test_two_operators_do_no_harm(running: Operated, tmp_path_factory: pytest.TempPathFactory) -> None:
    """They apply the same pods, so an upgrade is one hand-over; each may write its own words for the reason."""
    second = Operator(running.namespace, tmp_path_factory.mktemp("second"), running.operator.platform)
    second.start()
    try:
        with running.feeding():
            before = templates(running)
            running.apply(operated.changed(batch={"drain": 26}))
            running.phase("Running")
            running.until(running.single, "one driver")
            seen = reconciles(second)
            running.until(lambda: reconciles(second) > seen + 2, "the second operator to look three times more")
            assert templates(running) == before + 1
    finally:
        second.kill()
    running.count("two operators")


def test_hundred_pipelines_cost_no_requests_once_they_are_as_they_should_be(running: Operated) -> None:
    """What the watches have seen is not asked for again."""
    suspended = operated.spec() | {"suspend": True}
    names = [f"many-{number}" for number in range(MANY)]
    cluster.apply(running.namespace, *(operated.resource(each, suspended) for each in names))
    since = time.monotonic()

    def phases() -> list[str]:
        found = cluster.items(PLURAL, running.namespace)
        return [each.get("status", {}).get("phase", "") for each in found if each["metadata"]["name"] in names]

    running.until(lambda: phases().count("Suspended") == MANY, f"{MANY} Pipelines to be suspended")
    print(f"{MANY} Pipelines in {operated.tenths(since)}", flush=True)  # noqa: T201
    operator = running.operator
    settled = reconciles(operator)
    running.until(lambda: reconciles(operator) > settled + 2 * MANY, "every Pipeline to be looked at twice")
    asked, looked = requests(operator), reconciles(operator)
    running.until(lambda: reconciles(operator) > looked + 3 * MANY, "every Pipeline to be looked at three times more")
    afterwards = requests(operator) - asked
    print(f"{asked:.0f} requests for {MANY} Pipelines, {afterwards:.0f} afterwards", flush=True)  # noqa: T201
    # Only the one that runs has a status whose numbers change.
    assert afterwards < 20
    running.kubectl("delete", PLURAL, *names, "--wait=false")


def test_api_server_may_be_away_for_a_minute(running: Operated, tmp_path: Path) -> None:
    """The pipeline runs on; the operator's requests hang, and afterwards it does what was asked for meanwhile."""
    running.operator.kill()
    with operated.between(tmp_path) as (kubeconfig, proxy):
        running.operator.kubeconfig = str(kubeconfig)
        running.operator.start()
        try:
            running.until(lambda: reconciles(running.operator) > 2, "the operator to work through the proxy")
            with running.feeding():
                proxy.send_signal(signal.SIGSTOP)
                running.apply(operated.changed(batch={"drain": 28}))
                time.sleep(60)  # not a wait for a condition: how long it is away is what is tried
                proxy.send_signal(signal.SIGCONT)
                running.phase("Running")
                running.until(running.single, "one driver")
            running.count("API server away")
        finally:
            running.operator.kill()
            running.operator.kubeconfig = ""


def test_operator_of_the_chart_has_the_rights_it_needs(running: Operated) -> None:
    """In a pod, with the chart's account: it upgrades the pipeline, and hears what the driver says."""
    running.operator.kill()
    operated.install(running.namespace)
    with running.feeding():
        running.apply(operated.changed(batch={"drain": 27}))
        running.phase("Running")
        running.until(running.single, "one driver")
        running.until(lambda: running.condition("Ready")["reason"] == "Leading", "the driver to be heard")
    running.count("operator in a pod")
    spec, shadow = operated.changed(batch={"drain": 27}), f"{PIPELINE}-shadow"
    running.apply({**spec, "shadow": {"suspend": True}})
    running.until(lambda: shadow in running.pipelines(), "the operator to make a Pipeline")
    running.phase("Suspended", shadow)
    running.apply(spec)
    running.until(lambda: shadow not in running.pipelines(), "the shadow to be gone")
    cluster.helm("uninstall", "operator", "-n", running.namespace, "--wait", "--timeout=2m")


def test_pipeline_is_deleted_without_an_operator(running: Operated) -> None:
    """Kubernetes deletes what belongs to it, the driver first, which keeps its user until it has finished its batch.

    Its topics stay, and a new Pipeline of this name goes on where it was.
    """
    running.operator.kill()
    running.feed("tweets", 500)
    running.count("without an operator")
    running.kubectl("delete", PLURAL, PIPELINE, "--timeout=60s")

    def ended() -> bool:
        users = [releases.name(each) for each in cluster.items("kafkausers", running.namespace)]
        drivers = running.pods("driver", ending=True)  # asked for last: one that is left must still have its user
        assert not drivers or PIPELINE in users
        return not drivers

    running.until(ended, "its driver to end")
    running.until(lambda: not operated.owned(running.namespace), "everything of the Pipeline to be gone")
    running.until(lambda: not running.pods("driver") and not running.pods("executor"), "its pods to be gone")
    assert {"tweets", "hashtags", "tweets.rejected"} <= running.topics()
    running.feed("tweets", 500)
    running.operator.start()
    running.apply(operated.spec())
    running.phase("Running")
    running.count("deleted and made again")


def helm(act: str, namespace: str, *more: str) -> None:
    """Install or upgrade the release, which keeps its topics."""
    files = (CHART / "environments" / "dev.yaml", ROOT / "tests" / "e2e" / "values.yaml")
    values = [f"--values={each}" for each in files]
    cluster.helm(act, NAME, str(CHART), "-n", namespace, *values, "--set=kafka.strimzi.keep=true", *more)


def steer(command: str, pipeline: Operated, *more: str) -> str:
    """Run `tailrace pipelines`, and return what it prints."""
    name = [] if command == "list" else [PIPELINE]
    done = CliRunner().invoke(app, ["pipelines", command, *name, "-n", pipeline.namespace, *more])
    assert done.exit_code == 0, done.output
    return done.stdout


def operate(pipeline: Operated, ends: str, *command: str) -> str:
    """Let a command run as an operation, wait until it has ended so, and return its name."""
    name = steer("operate", pipeline, "--", *command).split()[0]
    pipeline.until(lambda: pipeline.operation(name)["phase"] == ends, f"the operation {name} to be {ends}")
    return name


def templates(running: Operated) -> int:
    """Return how often the Deployment's pods were replaced; a change of annotations alone does not count."""
    return int(running.deployment()["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def reconciles(operator: Operator) -> float:
    """Return how often an operator has looked at Pipelines."""
    return metric(operator, "tailrace_operator_reconciles_total")


def requests(operator: Operator) -> float:
    """Return how many requests an operator has made, without watches."""
    return metric(operator, "tailrace_operator_requests")


def metric(operator: Operator, name: str) -> float:
    """Return the sum of a metric of an operator."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.URLError:  # it has just been started
        assert operator.process is None or operator.process.poll() is None, f"it has ended:\n{operator.log()}"
        return 0.0
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
