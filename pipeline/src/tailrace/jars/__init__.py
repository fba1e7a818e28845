"""The jars that pip cannot install: Spark's Kafka connector, the embedded broker, and what a checkpoint on S3 needs.

Each is listed by name, version and checksum, and downloaded once by PySpark's own Ivy, so Maven is not needed. A jar in
the folder is trusted only if its checksum matches, which is verified at every use.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import quoteattr

from tailrace.errors import InvariantBroken, JarsMissing, JavaMissing

Name = Literal["kafka", "spark", "s3"]
NAMES: tuple[Name, ...] = ("kafka", "spark", "s3")
USUAL: tuple[Name, ...] = ("kafka", "spark")  # those that `make setup` fetches; the others are fetched when needed

JAVA_NEEDED = 17
TRIES = 3
FETCH_LIMIT = 600.0
LOCK_LIMIT = TRIES * FETCH_LIMIT
TEMPORARY = "fetching-"
KEPT = "nothing was started"

# No host is named: Ivy knows where Maven Central is. The poms are ignored because the lists are complete.
SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints>
    <timeout-constraint name="net" connectionTimeout="20000" readTimeout="60000"/>
  </timeout-constraints>
  <caches defaultCacheDir={cache}/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false" timeoutConstraint="net"/>
  </resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Jar:
    """One line of a list."""

    organisation: str
    module: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        """Return the jar's file name; it includes the version so that each set can have its own kafka-clients."""
        return f"{self.module}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.version}"


def parse(text: str) -> tuple[Jar, ...]:
    """Parse a list of jars: one `organisation:module:version sha256` per line; `#` begins a comment."""
    jars = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = re.fullmatch(r"([^\s:]+):([^\s:]+):([^\s:]+)\s+([0-9a-f]{64})", content)
        if match is None:
            raise InvariantBroken(f"line {number} of a list of jars is not `org:module:version sha256`: {line!r}")
        jars.append(Jar(*match.groups()))
    return tuple(jars)


def listed(name: Name) -> tuple[Jar, ...]:
    """Return the jars of a set."""
    return parse(resources.files(__package__).joinpath(f"{name}.txt").read_text(encoding="utf-8"))


def folder() -> Path:
    """Return the folder of the jars: TAILRACE_JARS, or a folder in the user's cache."""
    named = os.environ.get("TAILRACE_JARS")
    if named:
        return Path(named).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tailrace" / "jars"


def missing(name: Name) -> list[Jar]:
    """Return the jars of a set that are missing from the folder or have a wrong checksum."""
    return _missing(listed(name), folder())


def ensure(name: Name) -> list[Path]:
    """Return the jars of a set, sorted; fetch the missing ones first."""
    return provide(name, listed(name))


def provide(name: str, jars: Sequence[Jar]) -> list[Path]:
    """Do the same for a list that is not Tailrace's own."""
    where = folder()
    if _missing(jars, where):
        try:
            where.mkdir(parents=True, exist_ok=True)
            with _locked(where):
                # Another process may have fetched them while this one waited.
                wanted = _missing(jars, where)
                if wanted:
                    _fetch_into(where, name, wanted)
        except OSError as error:
            raise JarsMissing(
                f"the jars of {name!r} cannot be stored in {where}: {error}",
                then="name a writable folder with room for 80 MB: TAILRACE_JARS=FOLDER",
            ) from error
    return sorted(where / jar.file for jar in jars)


def java() -> Path:
    """Find the Java that Spark would use: JAVA_HOME's, else the one on the PATH; it must be version 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not os.access(path, os.X_OK):
            raise JavaMissing(
                f"JAVA_HOME is {home}, which has no executable bin/java",
                kept=KEPT,
                then=f"set JAVA_HOME to Java {JAVA_NEEDED} or newer, unset it to use the PATH, or {JavaMissing.usual}",
            )
    else:
        found = shutil.which("java")
        if found is None:
            raise JavaMissing("JAVA_HOME is not set, and `java` is not on the PATH", kept=KEPT)
        path = Path(found)
    version = java_version(path)
    if version < JAVA_NEEDED:
        what = f"{path} is version {version}, but {JAVA_NEEDED} or newer is needed"
        raise JavaMissing(what, kept=KEPT, then=f"set JAVA_HOME to a newer one, or {JavaMissing.usual}")
    return path


def java_version(path: Path) -> int:
    """Return the feature version of a Java runtime, such as 17."""
    try:
        # In a session of its own: a signal to our group, which ends the run in its own time, must not end this.
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        then = "set JAVA_HOME to a Java that works"
        raise JavaMissing(f"{path} does not run: {error}", kept=KEPT, then=then) from error
    said = done.stderr + done.stdout
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        what = f"{path} -version prints no version: {said.strip()[:300]!r}"
        # macOS has such a `java`, which only says that there is none.
        raise JavaMissing(what, kept=KEPT, then=f"set JAVA_HOME to a Java that works, or {JavaMissing.usual}")
    return int(match.group(1))


def ivy_file(jars: Sequence[Jar]) -> str:
    """Return the module descriptor that makes Ivy fetch these jars without their dependencies."""
    lines = [
        f"    <dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} rev={quoteattr(jar.version)}"
        ' transitive="false" conf="default->default"/>'
        for jar in jars
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="tailrace" module="jars"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
        ]
    )


def _missing(jars: Sequence[Jar], where: Path) -> list[Jar]:
    return [jar for jar in jars if _checksum(where / jar.file) != jar.sha256]


def _checksum(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def _locked(where: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel frees when this process ends, however it ends."""
    until = time.monotonic() + LOCK_LIMIT
    with (where / ".lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise JarsMissing(
                        f"waited {LOCK_LIMIT:.0f} s for another process that is fetching jars into {where}",
                        then=f"find that process, for example with `fuser {where / '.lock'}`",
                    ) from None
                time.sleep(0.1)
        yield


def _fetch_into(where: Path, name: str, jars: Sequence[Jar]) -> None:
    for left in where.glob(f"{TEMPORARY}*"):  # left by a killed process: we hold the lock, so none is in use
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=where) as temporary:
        fetched = Path(temporary)
        said = ""
        for _ in range(TRIES):
            said = fetch(jars, fetched)
            if all((fetched / jar.file).exists() for jar in jars):
                break
        absent = [jar for jar in jars if not (fetched / jar.file).exists()]
        if absent:
            raise JarsMissing(
                f"{len(absent)} of {len(jars)} jars of {name!r} could not be fetched in {TRIES} tries:"
                f" {', '.join(map(str, absent[:5]))}{', …' if len(absent) > 5 else ''}\n{_end_of(said)}",
                kept=f"the jars already in {where}",
                then="check that Maven Central is reachable from here, then run `python -m tailrace.jars`",
            )
        for jar in jars:
            found = _checksum(fetched / jar.file)
            if found != jar.sha256:
                raise JarsMissing(
                    f"{jar} does not match its listed checksum: its sha256 is {found}, listed is {jar.sha256}",
                    kept=f"the jars already in {where}; nothing of this download was kept",
                    then="find out what changed the file in transit; do not use it",
                )
        for jar in jars:
            (fetched / jar.file).replace(where / jar.file)


def fetch(jars: Sequence[Jar], into: Path) -> str:
    """Run Ivy once to fetch the jars into a folder; return its output. Jars it got are cached for the next try."""
    (into / "ivy.xml").write_text(ivy_file(jars), encoding="utf-8")
    (into / "ivysettings.xml").write_text(SETTINGS.format(cache=quoteattr(str(into / "cache"))), encoding="utf-8")
    command: list[str | Path] = [
        java(),
        "-jar",
        _ivy(),
        "-settings",
        into / "ivysettings.xml",
        "-ivy",
        into / "ivy.xml",
    ]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=FETCH_LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"Ivy had not finished after {FETCH_LIMIT:.0f} s"
    return done.stdout


def _ivy() -> Path:
    # PySpark is located, not imported: importing it takes a second, and this module must work without it.
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    raise JarsMissing("PySpark, whose Ivy fetches the jars, is not installed", then="pip install tailrace")


def _end_of(said: str) -> str:
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-12:])
