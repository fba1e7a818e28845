"""Errors of the machine: what Tailrace needs beside Python and is not there."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class EnvironmentError_(TailraceError):  # noqa: N801 - the plain name is Python's own
    """This machine lacks something that Tailrace needs."""

    exit_code = 6


class JavaMissing(EnvironmentError_):
    """No Java runtime of version 17 or newer was found.

    Spark 4 and the embedded Kafka need one, with the module jdk.incubator.vector, which the JDKs of
    the usual distributions have. Set JAVA_HOME or put `java` on the PATH.
    """

    code = "TR-501"
    title = "Java missing"


class JarsMissing(EnvironmentError_):
    """The jars could not be fetched, or one of them is not the one that is listed.

    Spark's Kafka connector and the embedded broker are fetched once from Maven Central, by the Ivy that PySpark
    carries, and each is compared with its listed checksum. `TAILRACE_JARS` names a folder to keep them in.
    """

    code = "TR-502"
    title = "jars missing"


class BrokerDidNotStart(EnvironmentError_):
    """The embedded Kafka did not come up.

    The message names its log. Usual causes: no memory, a full disk, a Java runtime that is too old.
    """

    code = "TR-503"
    title = "embedded Kafka did not start"


class GatewayUnavailable(EnvironmentError_):
    """The gateway, the process on each executor that owns its producers, cannot be started or has gone.

    A worker starts the gateway if there is none, and finds it in a folder under TMPDIR that only this user may read. A
    task whose gateway ended is retried: the next attempt finds a new gateway, which fences the old one's transactions
    and reads the markers. You see this error when the retries are used up. The executor's log says why the gateway
    ended: out of memory, a full disk, or a TMPDIR that cannot be written.
    """

    code = "TR-504"
    title = "gateway unavailable"


class PortUnusable(EnvironmentError_):
    """The driver's HTTP port cannot be opened.

    The driver serves its metrics, its health and its status page at `metrics.host` and `metrics.port`; where the port
    is taken it tries those after it. You see this when `metrics.host` is no address of this machine, the port needs
    rights that the driver has not got, or all of them are taken. An executor's gateway that finds no port logs this and
    goes on.
    """

    code = "TR-505"
    title = "HTTP port unusable"


class DriverUnreachable(EnvironmentError_):
    """No driver answers where `tailrace status` looked for it.

    The driver of the pipeline is not running, or its port is another one: it takes the next free one when that of the
    configuration is taken, and says so when it starts. On Kubernetes ask its service, or forward a port to the pod.
    """

    code = "TR-506"
    title = "driver unreachable"


class DriverPodUnknown(EnvironmentError_):
    """The executors are to be pods, and the driver does not know its own pod.

    With `spark.master: k8s://…` the executors connect to the driver's address and belong to its pod. The variables
    POD_IP and POD_NAME say which that is; the chart sets them. A driver that is no pod sets `spark.driver.host` to an
    address that pods can reach.
    """

    code = "TR-507"
    title = "driver's pod unknown"


class ExecutorsMissing(EnvironmentError_):
    """Not one executor came.

    The driver has asked Kubernetes for pods, and none of them has registered within five minutes. The message has what
    Kubernetes says: an image that cannot be pulled, no node with room, a quota, a policy that refuses the pod, or a
    right that the driver lacks. A pod that runs and does not register cannot reach the driver: look at NetworkPolicies
    and at the executor's log. Nothing was read or written.
    """

    code = "TR-508"
    title = "no executors"


class CertificateExpired(EnvironmentError_):
    """The certificate that the client shows the brokers has expired.

    The message has the file, whose certificate it is, and until when it was valid. Brokers refuse such a client, so
    none was asked; nothing was read or written. Put a new certificate and its key where the old ones are. With Strimzi
    the user operator renews a KafkaUser's Secret by itself: if it did not, it is not running, or `renewalDays` is too
    small; `kubectl annotate secret NAME strimzi.io/force-renew=true` asks for a new one. A pod has the new files a
    minute later. If the certificate is a new one, the clock of this machine is wrong.
    """

    code = "TR-509"
    title = "certificate expired"
