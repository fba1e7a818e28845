"""The lists of jars, and that only listed jars get into the folder."""

from __future__ import annotations

import hashlib
import multiprocessing
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tailrace import jars
from tailrace.errors import InvariantBroken, JarsMissing, JavaMissing

ONE, TWO = b"the first jar", b"the second jar"


def jar(module: str, content: bytes) -> jars.Jar:
    """Return a jar of a list, with the checksum of the content."""
    return jars.Jar("org.example", module, "1.0", hashlib.sha256(content).hexdigest())


LIST = (jar("one", ONE), jar("two", TWO))
CONTENT = {"one-1.0.jar": ONE, "two-1.0.jar": TWO}


def bring(wanted: Sequence[jars.Jar], into: Path) -> str:
    """Fetch what is listed."""
    for each in wanted:
        (into / each.file).write_bytes(CONTENT[each.file])
    return ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder for jars, and set a list of two."""
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr(jars, "listed", lambda name: LIST)
    return tmp_path / "jars"


def names(folder: Path) -> list[str]:
    """Return the names in the folder, except the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_lists_parse_and_name_each_file_once() -> None:
    """Both shipped lists parse, and the files of both fit into one flat folder."""
    files = [each.file for name in jars.NAMES for each in jars.listed(name)]
    assert "kafka_2.13-4.3.1.jar" in files
    assert "spark-sql-kafka-0-10_2.13-4.2.0.jar" in files
    assert len(files) == len(set(files))


def test_a_list_has_comments_and_blank_lines() -> None:
    """Comments and blank lines are skipped, and the other lines are parsed."""
    checksum = "a" * 64
    assert jars.parse(f"# why\n\norg.x:name_2.13:1.0-b {checksum}  # because\n") == (
        jars.Jar("org.x", "name_2.13", "1.0-b", checksum),
    )


@pytest.mark.parametrize("line", ["org:name:1.0", "org:name " + "a" * 64, "org:name:1.0 abc", "a:b:c:d " + "a" * 64])
def test_an_invalid_line_is_refused(line: str) -> None:
    """A line that is not organisation, module, version and checksum is shown with its number."""
    with pytest.raises(InvariantBroken, match="line 2"):
        jars.parse(f"# first\n{line}\n")


def test_ivy_gets_each_jar_without_dependencies() -> None:
    """The descriptor lists the jars one by one and excludes their dependencies."""
    found = ElementTree.fromstring(jars.ivy_file(LIST)).findall("dependencies/dependency")
    assert [(each.get("name"), each.get("rev"), each.get("transitive")) for each in found] == [
        ("one", "1.0", "false"),
        ("two", "1.0", "false"),
    ]


def test_missing_jars_are_fetched_into_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed jars that are missing are fetched, and nothing else is left in the folder."""
    monkeypatch.setattr(jars, "fetch", bring)
    assert jars.ensure("spark") == [folder / "one-1.0.jar", folder / "two-1.0.jar"]
    assert names(folder) == ["one-1.0.jar", "two-1.0.jar"]
    assert jars.missing("spark") == []


def test_only_what_is_missing_or_damaged_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing jar stays; one that was damaged since is fetched again."""
    asked: list[str] = []

    def note(wanted: Sequence[jars.Jar], into: Path) -> str:
        asked.extend(each.file for each in wanted)
        return bring(wanted, into)

    monkeypatch.setattr(jars, "fetch", note)
    folder.mkdir()
    (folder / "one-1.0.jar").write_bytes(ONE)
    (folder / "two-1.0.jar").write_bytes(TWO[:-1])
    jars.ensure("spark")
    jars.ensure("spark")
    assert asked == ["two-1.0.jar"]
    assert (folder / "two-1.0.jar").read_bytes() == TWO


def test_a_jar_with_another_checksum_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download with an unlisted checksum raises an error with both sums, and nothing of it is kept."""

    def forge(wanted: Sequence[jars.Jar], into: Path) -> str:
        bring(wanted, into)
        (into / "two-1.0.jar").write_bytes(b"another")
        return ""

    monkeypatch.setattr(jars, "fetch", forge)
    with pytest.raises(JarsMissing) as raised:
        jars.ensure("spark")
    assert "org.example:two:1.0" in raised.value.what
    assert LIST[1].sha256 in raised.value.what
    assert hashlib.sha256(b"another").hexdigest() in raised.value.what
    assert names(folder) == []


def test_a_failed_download_is_retried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures are tolerated."""
    tries: list[int] = []

    def at_last(wanted: Sequence[jars.Jar], into: Path) -> str:
        tries.append(len(wanted))
        return bring(wanted, into) if len(tries) == 3 else "no answer"

    monkeypatch.setattr(jars, "fetch", at_last)
    jars.ensure("kafka")
    assert len(tries) == 3
    assert names(folder) == ["one-1.0.jar", "two-1.0.jar"]


def test_jars_that_cannot_be_fetched_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last try the error names the jars and quotes the fetcher, and half a set is not kept."""

    def half(wanted: Sequence[jars.Jar], into: Path) -> str:
        (into / "one-1.0.jar").write_bytes(ONE)
        return "UNRESOLVED DEPENDENCIES"

    monkeypatch.setattr(jars, "fetch", half)
    with pytest.raises(JarsMissing, match=r"(?s)1 of 2 jars of 'kafka'.*org.example:two:1.0.*UNRESOLVED"):
        jars.ensure("kafka")
    assert names(folder) == []


def test_leftovers_of_a_killed_process_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed fetch leaves a temporary folder, and the next fetch removes it."""
    (folder / f"{jars.TEMPORARY}old").mkdir(parents=True)
    monkeypatch.setattr(jars, "fetch", bring)
    jars.ensure("spark")
    assert names(folder) == ["one-1.0.jar", "two-1.0.jar"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a folder cannot be created, the error says which, and how to name another."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "file" / "jars"))
    with pytest.raises(JarsMissing, match="file/jars") as raised:
        jars.ensure("spark")
    assert "TAILRACE_JARS" in raised.value.then


def _race(folder: Path, noted: Path) -> None:
    """Run one of several processes that want the same jars; each fetch leaves a line."""

    def note(wanted: Sequence[jars.Jar], into: Path) -> str:
        with noted.open("a") as file:
            file.write("fetched\n")
        return bring(wanted, into)

    patch = pytest.MonkeyPatch()
    patch.setenv("TAILRACE_JARS", str(folder))
    patch.setattr(jars, "listed", lambda name: LIST)
    patch.setattr(jars, "fetch", note)
    jars.ensure("spark")


def test_processes_that_race_fetch_once(tmp_path: Path) -> None:
    """If several processes find the folder empty, one fetches, and all succeed."""
    folder, noted = tmp_path / "jars", tmp_path / "noted"
    context = multiprocessing.get_context("fork")
    racers = [context.Process(target=_race, args=(folder, noted)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0, 0, 0, 0]
    assert noted.read_text() == "fetched\n"
    assert names(folder) == ["one-1.0.jar", "two-1.0.jar"]


def test_the_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TAILRACE_JARS comes first, then the user's cache according to XDG, then ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TAILRACE_JARS", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert jars.folder() == tmp_path / ".cache" / "tailrace" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert jars.folder() == tmp_path / "xdg" / "tailrace" / "jars"
    monkeypatch.setenv("TAILRACE_JARS", str(tmp_path / "own"))
    assert jars.folder() == tmp_path / "own"


def fake_java(home: Path, says: str) -> Path:
    """Create a JAVA_HOME whose java prints its version on stderr, as Java does."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19', 21),
        ('java version "1.8.0_401"', 8),
    ],
)
def test_the_version_of_java_is_parsed(tmp_path: Path, says: str, version: int) -> None:
    """Both the new and the old form are understood."""
    assert jars.java_version(fake_java(tmp_path, says)) == version


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is used if it is set, otherwise the PATH."""
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    path = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert jars.java() == home
    monkeypatch.delenv("JAVA_HOME")
    assert jars.java() == path


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JAVA_HOME and without java on the PATH, the error names both."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match="PATH") as raised:
        jars.java()
    assert "tailrace explain TR-501" in raised.value.then


def test_a_java_that_only_says_that_there_is_none_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS without Java the PATH has such a program; the error quotes it and names the page with the commands."""
    path = fake_java(tmp_path, "Unable to locate a Java Runtime.")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    with pytest.raises(JavaMissing, match="Unable to locate a Java Runtime") as raised:
        jars.java()
    assert "tailrace explain TR-501" in raised.value.then


def test_a_java_home_without_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong JAVA_HOME is an error, because Spark would use it too."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="no executable bin/java"):
        jars.java()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java below 17 is refused with its version."""
    fake_java(tmp_path, 'openjdk version "11.0.22"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="version 11"):
        jars.java()


def test_the_command_fetches_nothing_if_all_jars_exist(folder: Path) -> None:
    """A second run fetches nothing and prints one line per set with its folder."""
    env = {"PATH": "/nowhere", "TAILRACE_JARS": str(folder)}
    folder.mkdir()
    for content in CONTENT:
        (folder / content).write_bytes(CONTENT[content])
    code = (
        "import sys; from tailrace import jars\n"
        "jars.listed = lambda name: tuple(jars.Jar('o', m, '1.0', c) for m, c in "
        f"{[(each.module, each.sha256) for each in LIST]!r})\n"
        "from tailrace.jars.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["jars of kafka", "jars of spark"]
    assert f"2 in {folder}" in done.stdout
