"""The user's part: loading the function, its conditions, the distribution of the records, and their errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from support.rules import rules
from support.spark import AT_MS, headers_of, in_order, records
from tailrace.config import Sink, Source
from tailrace.errors import ConfigInvalid, FunctionInvalid, FunctionMissing, TopicUnknown
from tailrace.stages.decode import decode
from tailrace.stages.encode import encode
from tailrace.stages.process import Function, apply, load, spread_rows, unchanged, validate
from tailrace.stages.rows import accepted

JOB = """
from tailrace_test_helper import doubled
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

def enrich(frame, times=1):
    twice = F.udf(lambda n: doubled(n) * times, LongType())
    return frame.select(twice("n").alias("n"))

LIMIT = 5
"""
HELPER = """
def doubled(n):
    return 2 * n
"""
RAW = Source.model_validate({"topics": ["in"], "format": "raw"})
JSON = Source.model_validate({"topics": ["in"], "format": "json", "schema": "n int, text string"})


def job(folder: Path, text: str = JOB, name: str = "tailrace_test_job.py") -> Path:
    """Return a user's folder: a job, and a module next to it."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / "tailrace_test_helper.py").write_text(HELPER)
    return folder


def test_a_function_in_a_file_runs_in_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    """The file and the modules next to it that it imports are listed, so that they can be shipped."""
    function = load("tailrace_test_job.py:enrich", job(tmp_path / "a"))
    assert [file.name for file in function.files] == ["tailrace_test_helper.py", "tailrace_test_job.py"]
    for file in function.files:
        spark.sparkContext.addPyFile(str(file))
    frame = apply(function, spark.sql("SELECT 3L AS n"), {"times": 10})
    assert frame.collect()[0]["n"] == 60


def test_two_folders_may_have_a_file_of_the_same_name(tmp_path: Path) -> None:
    """The one loaded last does not hide the other."""
    first = load("tailrace_test_same.py:f", job(tmp_path / "a", "def f(frame): return 1", "tailrace_test_same.py"))
    second = load("tailrace_test_same.py:f", job(tmp_path / "b", "def f(frame): return 2", "tailrace_test_same.py"))
    assert (first.call(None), second.call(None)) == (1, 2)


def package(folder: Path, name: str, text: str) -> None:
    """Write a package with a module `mod`."""
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "mod.py").write_text(text)


def test_function_of_a_package_that_was_edited_after_its_import_is_refused(tmp_path: Path) -> None:
    """Python keeps the modules of packages, and the digest of the code would be that of another text."""
    package(tmp_path, "tailrace_test_package", "def f(frame): return 'old'")
    first = load("tailrace_test_package.mod:f", tmp_path)
    assert load("tailrace_test_package.mod:f", tmp_path).call is first.call
    package(tmp_path, "tailrace_test_package", "def f(frame): return 'edited'")
    with pytest.raises(FunctionMissing, match=r"tailrace_test_package\.mod was edited after") as raised:
        load("tailrace_test_package.mod:f", tmp_path)
    assert raised.value.then == "start a new process; in a notebook, restart the kernel"
    package(tmp_path, "tailrace_test_package", "def f(frame): return 'old'")
    assert load("tailrace_test_package.mod:f", tmp_path).call is first.call


def test_function_of_a_package_that_was_imported_from_another_folder_is_refused(tmp_path: Path) -> None:
    """The first folder's function would run, and the digest of the code would be that of the second's."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        package(tmp_path / name, "tailrace_test_twice", f"def f(frame): return {name!r}")
    assert load("tailrace_test_twice.mod:f", tmp_path / "one").call(None) == "one"
    with pytest.raises(
        FunctionMissing, match=r"has imported another tailrace_test_twice.mod before, from .*one"
    ) as raised:
        load("tailrace_test_twice.mod:f", tmp_path / "two")
    assert raised.value.then == "start a new process; in a notebook, restart the kernel"
    assert load("tailrace_test_twice.mod:f", tmp_path / "one").call(None) == "one"


def test_function_of_a_package_that_was_imported_from_another_copy_of_it_is_loaded(tmp_path: Path) -> None:
    """An image has it installed and next to the pipeline; until one of them is edited, they are the same."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        package(tmp_path / name, "tailrace_test_copied", "def f(frame): return 1")
    for name in ("one", "two", "two"):
        assert load("tailrace_test_copied.mod:f", tmp_path / name).call(None) == 1
    package(tmp_path / "two", "tailrace_test_copied", "def f(frame): return 2")
    with pytest.raises(FunctionMissing, match=r"tailrace_test_copied\.mod"):
        load("tailrace_test_copied.mod:f", tmp_path / "two")


def test_function_of_a_package_whose_part_was_imported_from_another_folder_is_refused(tmp_path: Path) -> None:
    """The module that is named is the same in both, and what it imports is not."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        package(tmp_path / name, "tailrace_test_parts", "from tailrace_test_parts.g import g\ndef f(frame): return g")
        (tmp_path / name / "tailrace_test_parts" / "g.py").write_text(f"g = {name!r}")
    assert load("tailrace_test_parts.mod:f", tmp_path / "one").call(None) == "one"
    with pytest.raises(FunctionMissing, match=r"another tailrace_test_parts\.g before"):
        load("tailrace_test_parts.mod:f", tmp_path / "two")


def test_function_of_a_package_that_lies_in_two_folders_is_loaded_again(tmp_path: Path) -> None:
    """It says so itself (pkgutil), and only one of the folders is searched for its files."""
    text = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)"
    with pytest.MonkeyPatch.context() as patched:
        for name, module in (("one", "x"), ("two", "y")):
            folder = tmp_path / name / "tailrace_test_spread"
            folder.mkdir(parents=True)
            (folder / "__init__.py").write_text(text)
            (folder / f"{module}.py").write_text("def f(frame): return 1")
            patched.syspath_prepend(tmp_path / name)
        for _ in range(2):
            assert load("tailrace_test_spread.y:f", tmp_path).call(None) == 1
            assert load("tailrace_test_spread.x:f", tmp_path).call(None) == 1


def test_package_of_a_file_that_was_edited_after_its_import_is_refused(tmp_path: Path) -> None:
    """The file and the modules next to it are loaded again, also after one that raised; a package is not."""
    package(tmp_path, "tailrace_test_part", "def g(): return 'old'")
    text = "from tailrace_test_part.mod import g\nfrom tailrace_test_helper import doubled\ndef f(frame): return g()\n"
    folder = job(tmp_path, f"{text}1 / 0", "tailrace_test_whole.py")
    with pytest.raises(FunctionMissing, match="ZeroDivisionError"):
        load("tailrace_test_whole.py:f", folder)
    for more in ("", "# edited"):
        job(tmp_path, text + more, "tailrace_test_whole.py")
        (folder / "tailrace_test_helper.py").write_text(HELPER + more)
        assert load("tailrace_test_whole.py:f", folder).call(None) == "old"
    package(tmp_path, "tailrace_test_part", "def g(): return 'edited'")
    with pytest.raises(FunctionMissing, match=r"tailrace_test_part\.mod was edited after"):
        load("tailrace_test_whole.py:f", folder)


def test_package_that_is_no_longer_imported_is_loaded_as_it_is(tmp_path: Path) -> None:
    """Python reads its files again."""
    for version in ("old", "edited"):
        package(tmp_path, "tailrace_test_gone", f"def f(frame): return {version!r}")
        assert load("tailrace_test_gone.mod:f", tmp_path).call(None) == version
        for name in ("tailrace_test_gone", "tailrace_test_gone.mod"):
            del sys.modules[name]


def test_a_function_of_an_installed_module_needs_no_files(tmp_path: Path) -> None:
    """package.module:name is imported as it is."""
    function = load("tailrace.stages.rows:accepted", tmp_path)
    assert function.call is accepted
    assert function.files == ()


def test_loading_leaves_the_path_as_it_was(tmp_path: Path) -> None:
    """The user's folder is on the path only while the file loads."""
    before = list(sys.path)
    load("tailrace_test_job.py:enrich", job(tmp_path))
    assert sys.path == before


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("enrich", "not of the form"),
        ("tailrace_test_job.py:enrcih", "did you mean 'enrich'?"),
        ("tailrace_test_job.py:LIMIT", "'LIMIT' is not callable"),
        ("tailrace_test_jbo.py:enrich", "did you mean 'tailrace_test_job.py'?"),
        ("no.such.module:f", "no module 'no.such.module'"),
        ("json.py:f", f"the same name as another module ({json.__file__})"),
        ("xxsubtype.py:f", "the same name as another module (built-in)"),
        ("tailrace_test_raises.py:f", "ZeroDivisionError: division by zero (tailrace_test_raises.py, line 2: 1 / 0)"),
        ("tailrace_test_syntax.py:f", "(tailrace_test_syntax.py, line 1)"),
        ("tailrace_test_imports.py:f", "No module named 'not_there'"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_an_error_with_a_reason(tmp_path: Path, reference: str, words: str) -> None:
    """The error names what is missing, and the nearest existing name."""
    folder = job(tmp_path)
    for name in ("json.py", "xxsubtype.py"):
        (folder / name).write_text("def f(frame): return frame")
    (folder / "tailrace_test_raises.py").write_text("\n1 / 0\n")
    (folder / "tailrace_test_syntax.py").write_text("def f(:\n")
    (folder / "tailrace_test_imports.py").write_text("import not_there\n")
    with pytest.raises(FunctionMissing) as raised:
        load(reference, folder)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no')", "ValueError: no (tailrace_test_bad.py, line 2: raise ValueError('no'))"),
        ("return frame.select('absent')", "tailrace_test_bad.py, line 2: return frame.select('absent')"),
        ("return None", "returned NoneType, not a DataFrame"),
        ("return frame.collect()", "returned list, not a DataFrame"),
    ],
)
def test_a_function_that_raises_or_returns_something_else_is_reported(
    spark: SparkSession, tmp_path: Path, body: str, words: str
) -> None:
    """The error has the line of the user's file."""
    text = f"def f(frame):\n    {body}\n"
    function = load("tailrace_test_bad.py:f", job(tmp_path, text, "tailrace_test_bad.py"))
    with pytest.raises(FunctionInvalid) as raised:
        apply(function, spark.sql("SELECT 1 AS n"), {})
    assert words in str(raised.value)


def test_a_wrong_argument_is_the_functions_error(spark: SparkSession) -> None:
    """An argument that the function does not take is reported as such."""
    with pytest.raises(FunctionInvalid) as raised:
        apply(Function(lambda frame: frame, "f", ()), spark.sql("SELECT 1 AS n"), {"nonsense": 1})
    assert "nonsense" in str(raised.value)


def test_a_tailrace_error_in_a_function_is_not_wrapped(spark: SparkSession) -> None:
    """It already says what to do."""

    def fail(frame: DataFrame) -> DataFrame:
        raise TopicUnknown("t")

    with pytest.raises(TopicUnknown):
        apply(Function(fail, "f", ()), spark.sql("SELECT 1 AS n"), {})


def test_a_batch_in_place_of_a_stream_is_refused(spark: SparkSession) -> None:
    """A function must return a frame derived from the stream of records."""
    stream = spark.readStream.format("rate").load()
    function = Function(lambda frame: spark.sql("SELECT 1 AS n"), "f", ())
    with pytest.raises(FunctionInvalid) as raised:
        apply(function, stream, {})
    assert "does not come from the records" in str(raised.value)


def test_a_record_that_fails_a_condition_gets_its_name(spark: SparkSession) -> None:
    """The first condition that fails is the reason, null fails a condition, and earlier reasons are kept."""
    values = [b'{"n":1,"text":"a"}', b'{"n":-1,"text":"a"}', b'{"text":"a"}', b'{"n":1}', b'{"n":-1}', b"bad"]
    conditions = rules({"positive": "n > 0", "has text": "length(text) > 0 AND kafka.partition = 3"})
    rows = in_order(validate(decode(records(spark, values), JSON, Path()), conditions))
    assert [(row["_reason"], row["_stage"]) for row in rows] == [
        (None, None),
        ("positive", "process"),
        ("positive", "process"),
        ("has text", "process"),
        ("positive", "process"),
        ("not json", None),
    ]
    assert rows[1]["_detail"] == "n > 0"


def test_record_that_breaks_a_warning_is_accepted(spark: SparkSession) -> None:
    """It is noted as broken, also next to a rule that rejects the record, if that comes later."""
    values = [b'{"n":1,"text":"a"}', b'{"n":-1,"text":"a"}', b'{"n":1}', b'{"n":-1}', b"bad", b'{"n":-5}']
    checked = rules(
        {
            "large": {"condition": "n > -3", "severity": "stop", "ratio": 0.5},
            "text": {"condition": "text IS NOT NULL", "severity": "warn"},
            "positive": "n > 0",
            "tiny": {"condition": "n < 1", "severity": "warn"},
        }
    )
    rows = in_order(validate(decode(records(spark, values), JSON, Path()), checked))
    assert [(row["_reason"], row["_tailrace_broken"]) for row in rows] == [
        (None, [3]),
        ("positive", [2]),
        (None, [1, 3]),
        ("positive", [1, 2]),
        ("not json", None),
        ("large", [0]),
    ]


def test_condition_is_not_asked_about_what_an_earlier_one_rejects(spark: SparkSession) -> None:
    """A condition may rely on those before it: the division by zero is never computed."""
    checked = rules(
        {
            "counted": "n > 0",
            "share": {"condition": "10 div n > 2", "severity": "warn"},
            "large": "100 div n > 2",
        }
    )
    rows = in_order(validate(decode(records(spark, [b'{"n":0}', b'{"n":5}']), JSON, Path()), checked))
    assert [(row["_reason"], row["_tailrace_broken"]) for row in rows] == [("counted", [0]), (None, [1])]


def test_the_frame_is_unchanged_without_conditions(spark: SparkSession) -> None:
    """The frame is passed on as it is."""
    frame = spark.sql("SELECT 1 AS n")
    assert validate(frame, {}) is frame


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ("n >", "[PARSE_SYNTAX_ERROR] Syntax error at or near end of input"),
        ("text = 'it", "[PARSE_SYNTAX_ERROR] Syntax error at or near '''"),
        ("absent > 0", "`absent` cannot be resolved. Did you mean one of the following? ["),
        ("n + 1", "it is int, not boolean"),
        ("no_such_function(n)", "`no_such_function`"),
        ("count(n) > 1", "[MISSING_GROUP_BY]"),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_named(spark: SparkSession, condition: str, cause: str) -> None:
    """SQL that does not parse, does not resolve or is not a condition is refused, in a line with Spark's reason."""
    frame = decode(records(spark, []), JSON, Path())
    with pytest.raises(ConfigInvalid) as raised:
        validate(frame, rules(fine="n > 0", wrong=condition))
    what = raised.value.what
    assert f"'wrong', `{condition}`, cannot be evaluated: " in what
    assert cause in what
    assert "\n" not in what


def placed(frame: DataFrame) -> dict[int, int]:
    """Return the task of each record, by its offset."""
    rows = frame.select("kafka.offset", F.spark_partition_id().alias("task")).collect()
    return {row["offset"]: row["task"] for row in rows}


def test_records_of_one_key_stay_together_and_in_order(spark: SparkSession) -> None:
    """Every record arrives, no key is split, and all tasks get some records."""
    keys = [f"k{number % 7}".encode() for number in range(200)]
    frame = decode(records(spark, [b"v"] * 200, keys=keys).coalesce(1), RAW, Path())
    tasks = placed(spread_rows(frame, 4))
    assert sorted(tasks) == list(range(200))
    assert len({(keys[offset], task) for offset, task in tasks.items()}) == 7
    assert len(set(tasks.values())) > 1
    for key in set(keys):
        own = spread_rows(frame, 4).where(F.col("kafka.key").eqNullSafe(F.lit(key)))
        offsets = [row["offset"] for row in own.select("kafka.offset").collect()]
        assert offsets == sorted(offsets)


def test_records_without_a_key_are_distributed_by_their_position(spark: SparkSession) -> None:
    """Null keys do not all go to one task, and a record always goes to the same one."""
    frame = decode(records(spark, [b"v"] * 100, keys=[None] * 100), RAW, Path())
    first = placed(spread_rows(frame, 4))
    assert len(set(first.values())) == 4
    assert placed(spread_rows(frame.repartition(3).withColumn("value", F.lit(b"other")), 4)) == first


def test_without_a_function_a_record_goes_out_as_it_came(spark: SparkSession) -> None:
    """Key, headers, timestamp and value are kept, whatever the fields are called."""
    source = Source.model_validate({"topics": ["in"], "format": "json", "schema": "key int, topic int"})
    for settings, to, value in ((Source(topics=["in"]), "raw", b'{"key":1,"topic":2}'), (source, "json", None)):
        frame = records(spark, [b'{"key":1,"topic":2}'], headers=[("h", b"v")])
        good = unchanged(accepted(decode(frame, settings, Path())))
        (row,) = encode(good, Sink.model_validate({"topic": "out", "format": to}), Path()).collect()
        assert (row["key"], row["value"], row["timestamp"]) == (b"k0", value or b'{"key":1,"topic":2}', AT_MS)
        assert headers_of(row) == {"h": b"v"}
        assert row["reason"] is None


def test_without_a_function_a_field_with_a_dot_is_not_taken_for_a_path(spark: SparkSession) -> None:
    """A field of the same path may lie next to it."""
    source = Source.model_validate(
        {"topics": ["in"], "format": "json", "schema": "`a.b` int, a struct<b: int>, `x``` int"}
    )
    value = b'{"a.b":1,"a":{"b":2},"x`":3}'
    good = unchanged(accepted(decode(records(spark, [value]), source, Path())))
    (row,) = encode(good, Sink.model_validate({"topic": "out", "format": "json"}), Path()).collect()
    assert row["value"] == value
