"""Errors of the machine or cluster: something that Tailrace needs besides Python is missing."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class EnvironmentError_(TailraceError):  # noqa: N801 - the plain name is Python's own
    """This machine lacks something that Tailrace needs."""

    exit_code = 6


class JavaMissing(EnvironmentError_):
    """No Java runtime of version 17 or newer was found.

    Spark and the embedded Kafka run on Java 17, 21 or 25; Tailrace is tested on 17. A runtime without a desktop
    ("headless", JRE) is enough:

    - Debian 12, Ubuntu: `sudo apt install openjdk-17-jre-headless`
    - Debian 13: `sudo apt install openjdk-21-jre-headless`
    - Fedora: `sudo dnf install java-21-openjdk-headless`
    - macOS: `brew install openjdk@21`, then
      `export JAVA_HOME="$(brew --prefix openjdk@21)/libexec/openjdk.jdk/Contents/Home"`
    - conda, on any system and without root: `conda install -c conda-forge openjdk=21`

    Tailrace uses the Java in JAVA_HOME, or else the `java` on the PATH; `tailrace doctor` shows which. A runtime made
    with jlink needs the module jdk.incubator.vector, which all of these have.
    """

    code = "TR-501"
    title = "Java missing"
    usual = "install Java 17 or 21; `tailrace explain TR-501` has the command for Debian, Fedora, macOS and conda"


class ExtraMissing(EnvironmentError_):
    """A package that this pipeline or command needs is not installed.

    `pip install tailrace` brings what a driver needs for the formats `raw` and `json`. The rest comes with an extra,
    such as `pip install 'tailrace[avro]'`; several are `tailrace[avro,testing]`.

    - `avro`: the format `avro`, with or without a schema registry
    - `demo`: `tailrace demo`
    - `testing`: pytest, for tests of your own pipelines
    - `zookeeper`: `offsets.store: zookeeper`
    - `operator`: `tailrace pipelines`, which talks to Kubernetes

    Install it into the environment that runs the command. On Kubernetes the images have `avro` and what a driver needs;
    add `zookeeper` to the image of your pipeline.
    """

    code = "TR-512"
    title = "package missing"

    @classmethod
    def of(cls, extra: str, purpose: str, error: ImportError) -> ExtraMissing:
        """Return the error for a module of an extra that cannot be imported."""
        return cls(
            f"{purpose} needs the extra {extra!r}, which is not installed: {error}",
            kept="nothing was read or written",
            then=f"pip install 'tailrace[{extra}]'",
        )


class JarsMissing(EnvironmentError_):
    """The jars could not be downloaded, or one does not match its listed checksum.

    Spark's Kafka connector and the embedded broker are downloaded once from Maven Central by PySpark's own Ivy, and
    each jar is checked against its listed checksum. `TAILRACE_JARS` names the folder to keep them in.
    """

    code = "TR-502"
    title = "jars missing"


class BrokerDidNotStart(EnvironmentError_):
    """The embedded Kafka did not start.

    The message names its log. Usual causes: out of memory, a full disk, a Java runtime that is too old.
    """

    code = "TR-503"
    title = "embedded Kafka did not start"


class GatewayUnavailable(EnvironmentError_):
    """The gateway, the process on each executor that owns its producers, could not start or has ended.

    A worker starts the gateway if none is running, and finds it through a folder under TMPDIR that only this user may
    read. A task whose gateway ended is retried: the next attempt gets a new gateway, which fences the old one's
    transactions and reads the markers. You see this error when the retries are exhausted. The executor's log says why
    the gateway ended: out of memory, a full disk, or a TMPDIR that is not writable.
    """

    code = "TR-504"
    title = "gateway unavailable"


class PortUnusable(EnvironmentError_):
    """The driver's HTTP port cannot be opened.

    The driver serves its metrics, health and status page at `metrics.host` and `metrics.port`; if the port is taken, it
    tries the ports after it. You see this error when `metrics.host` is not an address of this machine, the port needs
    privileges that the driver lacks, or all those ports are taken. An executor's gateway that finds no port logs this
    and continues.
    """

    code = "TR-505"
    title = "HTTP port unusable"


class DriverUnreachable(EnvironmentError_):
    """No driver answers at the address that `tailrace status` tried.

    The pipeline's driver is not running, or cannot be reached from here. With a file, `tailrace status` looks on this
    machine and then where Kafka says that the driver leads; if none runs, the message has the error that ended the last
    one. With `metrics.host: 127.0.0.1`, the default, only the driver's own machine can ask it. On Kubernetes forward a
    port to the pod (`kubectl port-forward`), and give `tailrace status` that address.
    """

    code = "TR-506"
    title = "driver unreachable"


class DriverPodUnknown(EnvironmentError_):
    """The executors are to run as pods, but the driver does not know its own pod.

    With `spark.master: k8s://…` the executors connect to the driver's address and are owned by its pod. The variables
    POD_IP and POD_NAME identify that pod; the chart sets them. For a driver outside a pod, set `spark.driver.host` to
    an address that pods can reach.
    """

    code = "TR-507"
    title = "driver's pod unknown"


class ExecutorsMissing(EnvironmentError_):
    """No executor registered.

    The driver asked Kubernetes for pods, and none registered within five minutes. The message quotes Kubernetes'
    reason: an image that cannot be pulled, no node with room, a quota, a policy that refuses the pod, or a permission
    that the driver lacks. A pod that runs but does not register cannot reach the driver: check NetworkPolicies and the
    executor's log. Nothing was read or written.
    """

    code = "TR-508"
    title = "no executors"


class SparkDidNotStart(EnvironmentError_):
    """Spark did not start, so nothing was read or written.

    The message has what Spark or its JVM said. Usual causes: a setting in `spark:` that Spark or Java does not know, a
    master that does not answer, more memory than the machine has, or a port that is taken. TAILRACE_LOG=info shows
    Spark's own log.
    """

    code = "TR-511"
    title = "Spark did not start"


class ClusterRefused(EnvironmentError_):
    """Kubernetes' API server did not answer, or refused what `tailrace pipelines` asked of it.

    The message has its words. The commands need to get and list Pipelines and ControllerRevisions, to patch both for
    `suspend`, `resume`, `rollback` and `retry`, and to read pods and their logs for `logs`. A Pipeline that is not
    found may be in another namespace: `--namespace`.
    """

    code = "TR-510"
    title = "cluster refused"


class CertificateExpired(EnvironmentError_):
    """The client certificate for the brokers has expired.

    The message names the file, the certificate's subject and its expiry date. Brokers reject such a client, so Tailrace
    did not connect; nothing was read or written. Replace the certificate and its key. With Strimzi the user operator
    renews a KafkaUser's Secret by itself: if it did not, it is not running, or `renewalDays` is too small; `kubectl
    annotate secret NAME strimzi.io/force-renew=true` requests a new one. A pod has the new files a minute later. If the
    certificate is new, the clock of this machine is wrong.
    """

    code = "TR-509"
    title = "certificate expired"
