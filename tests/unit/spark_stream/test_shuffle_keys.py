"""What decides the branch of a record in `exactly_once`, as it is compared after a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.spark_stream.shuffle_keys import NONE, ShuffleKeys, digest, moved, with_branches


def noted(rows: DataFrame) -> ShuffleKeys:
    """Return what is noted of a query whose batches are written as they are."""
    batch = rows.sparkSession.range(1)._jdf.queryExecution().analyzed()
    return with_branches(NONE, rows._jdf.queryExecution().analyzed(), batch, -1)


def planned(frame: DataFrame) -> ShuffleKeys:
    """Return what is noted of the shuffles of a frame, as Spark executes it."""
    execution = frame._jdf.queryExecution()
    return digest(execution, execution)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Provide a stream."""
    return spark.readStream.format("rate").load()


def split(rows: DataFrame, condition: Any) -> DataFrame:
    """Take records into one branch or the other."""
    return rows.where(condition).union(rows.where(~condition))


def test_list_of_values_counts_in_any_order(rows: DataFrame) -> None:
    """A set is listed in another order by each process."""
    first, second = (noted(split(rows, F.col("value").isin(*each))) for each in ([1, 2, 3], [3, 1, 2]))
    other = noted(split(rows, F.col("value").isin(1, 2, 4)))
    assert first.code == second.code
    assert first.code != other.code


def test_address_of_a_person_counts(rows: DataFrame) -> None:
    """It is no address of an object in this process."""
    first, second = (noted(split(rows, F.col("value").cast("string") == each)) for each in ("a@beef", "a@face"))
    assert first.code != second.code


@pytest.mark.parametrize("tags", [("#1", "#2"), ("room#1", "room#2")])
def test_values_that_look_like_the_ids_of_columns_count(rows: DataFrame, tags: tuple[str, str]) -> None:
    """Spark prints the name of a column, #, and its number."""
    tag = F.col("value").cast("string")
    first, same, second = (noted(split(rows, tag == each)) for each in (tags[0], *tags))
    assert first.code == same.code != second.code
    first, same, second = (
        noted(split(rows, tag.isin(*each))) for each in ((tags[0], "#0"), ("#0", tags[0]), (tags[1], "#0"))
    )
    assert first.code == same.code != second.code


def test_columns_in_a_list_count_without_their_ids(rows: DataFrame) -> None:
    """Each process, and each new query, gives other ids."""

    def among(other: str) -> ShuffleKeys:
        named = rows.select("value", (F.col("value") + 1).alias("home"), (F.col("value") - 1).alias("away"))
        return noted(split(named, F.col("value").isin(F.col("home"), F.col(other))))

    assert among("away").code == among("away").code != among("value").code


def test_values_that_look_like_the_ids_of_columns_count_in_a_long_list_of_a_key(spark: SparkSession) -> None:
    """Spark makes a set of a list of more than ten."""

    def keyed(last: int) -> ShuffleKeys:
        tags = [f"room#{number}" for number in [*range(11), last]]
        return planned(spark.range(9).repartition(4, F.col("id").cast("string").isin(*tags)))

    assert keyed(20) == keyed(20)
    assert keyed(20).code != keyed(21).code


def test_condition_counts_in_full_where_spark_cuts_it_short(rows: DataFrame) -> None:
    """Spark prints the first 25 arguments of a call."""

    def among(numbers: Sequence[int]) -> ShuffleKeys:
        return noted(split(rows, F.array_contains(F.array(*map(F.lit, numbers)), F.col("value"))))

    first, same, other = (among([*range(29), last]) for last in (30, 30, 31))
    assert first.code == same.code
    assert first.code != other.code


def test_list_of_values_counts_in_any_order_beside_a_call_that_spark_cuts_short(rows: DataFrame) -> None:
    """The literals that are added for the call are not those of the list."""
    long = F.array_contains(F.array(*map(F.lit, range(30))), F.col("value"))
    first, second = (noted(split(rows, long & F.col("value").isin(*each))) for each in ([1, 2, 3], [3, 1, 2]))
    assert first.code == second.code


def test_key_behind_a_union_counts_in_each_branch(rows: DataFrame) -> None:
    """The union's column has the id of the first branch's."""

    def nested(divisor: int) -> ShuffleKeys:
        low = rows.where("value < 10").select("value", F.lit(1).alias("g"))
        high = rows.where("value >= 10").select("value", (F.col("value") % divisor).alias("g"))
        return noted(split(low.union(high), F.col("g") > 0))

    assert nested(2).code == nested(2).code
    assert nested(2).code != nested(3).code


def test_function_of_a_key_behind_a_union_counts_in_each_branch(rows: DataFrame) -> None:
    """Spark prints the names of functions alone."""

    def nested(by: Callable[[str], str]) -> ShuffleKeys:
        text = F.col("value").cast("string")
        low = rows.where("value < 10").select("value", F.udf(shout(str.upper), "string")(text).alias("g"))
        high = rows.where("value >= 10").select("value", F.udf(shout(by), "string")(text).alias("g"))
        return noted(split(low.union(high), F.col("g") > "a"))

    assert nested(str.lower).code == nested(str.lower).code != nested(str.title).code


def test_function_of_a_key_of_a_shuffle_behind_a_union_counts_in_each_branch(spark: SparkSession) -> None:
    """It is computed in the branch, below the key."""

    def keyed(by: Callable[[str], str]) -> ShuffleKeys:
        text, numbers = F.col("id").cast("string"), spark.range(0, 20, 1, 2)
        low = numbers.where("id < 10").select("id", F.udf(shout(str.upper), "string")(text).alias("g"))
        high = numbers.where("id >= 10").select("id", F.udf(shout(by), "string")(text).alias("g"))
        return planned(low.union(high).repartition(4, "g"))

    assert keyed(str.lower) == keyed(str.lower)
    assert keyed(str.lower).code != keyed(str.title).code


def test_types_count_in_full_where_spark_cuts_them_short(spark: SparkSession) -> None:
    """A value of another type goes into another partition."""

    def keyed(kind: str) -> ShuffleKeys:
        fields = ", ".join(f"f{number} {kind if number == 28 else 'string'}" for number in range(30))
        read = spark.range(9).select(F.from_json(F.col("id").cast("string"), fields).alias("r")).select("r.*")
        return planned(read.repartition(4, "f28"))

    before = spark.conf.get("spark.sql.debug.maxToStringFields")
    assert keyed("bigint") == keyed("bigint")
    assert keyed("bigint").code != keyed("string").code
    assert spark.conf.get("spark.sql.debug.maxToStringFields") == before


def test_digest_of_columns_that_are_made_of_each_other_stays_short(spark: SparkSession) -> None:
    """Written out, the text of twenty rules would take gigabytes."""
    frame = spark.range(9).select(F.lit(None).cast("string").alias("hit"), F.col("id").cast("string").alias("text"))
    for rule in map(str, range(20)):
        hit, text = F.col("hit"), F.col("text")
        frame = frame.select(
            F.when(hit.isNull() & text.rlike(rule), rule).otherwise(hit).alias("hit"),
            F.when(hit.isNull(), F.regexp_replace(text, rule, "")).otherwise(text).alias("text"),
        )
    assert planned(frame.repartition(4, "hit")).code


def test_shuffles_of_a_table_that_each_task_has_as_a_whole_do_not_count(spark: SparkSession) -> None:
    """Where its rows were before does not matter, and a growing table is joined in another way."""
    numbers, table = spark.range(0, 20, 1, 2), spark.range(0, 9, 1, 2).withColumn("x", F.rand())
    ways = (table, table.repartition(3), table.repartition(3, "id"))
    codes = {planned(numbers.join(F.broadcast(each), "id").repartition(4, "id")).code for each in ways}
    assert len(codes) == 1


def test_function_that_chooses_the_rows_of_a_table_counts(rows: DataFrame, spark: SparkSession) -> None:
    """It decides which branch a record is in, as much as a condition on the records."""

    def known(by: Callable[[str], str]) -> ShuffleKeys:
        chosen = F.udf(shout(by), "string")(F.col("value").cast("string")) > "a"
        table = spark.range(9).toDF("value").where(chosen)
        return noted(
            rows.select("value")
            .join(table, "value", "left_semi")
            .union(rows.select("value").join(table, "value", "left_anti"))
        )

    assert known(str.lower).code == known(str.lower).code != known(str.title).code


def test_table_counts_without_the_names_that_a_session_gives_it(spark: SparkSession, rows: DataFrame) -> None:
    """PySpark draws a new name for each frame that a query names, and Spark adds the number of cores to a range."""

    def known(partitions: int) -> ShuffleKeys:
        kinds = spark.sql("select id from {numbers}", numbers=spark.range(0, 3, 1, partitions)).withColumnRenamed(
            "id", "value"
        )
        return noted(
            rows.select("value").join(kinds, "value").union(rows.select("value").join(kinds, "value", "left_anti"))
        )

    assert known(2).code == known(3).code != ""


def shout(by: Callable[[str], str]) -> Callable[[str], str]:
    """Return a function that has the name of all that are made here."""
    return lambda value: by(value)


def looked_up(rows: DataFrame, folder: str, those: Any = True) -> DataFrame:
    """Add a column of a table in files, of those rows that are chosen."""
    table = rows.sparkSession.read.schema("value bigint, name string").parquet(folder).where(F.lit(True) & those)
    return rows.join(F.broadcast(table), "value", "left").select(F.concat("name", F.lit("!")).alias("y"))


MAKES: dict[str, Callable[[DataFrame, str, int], DataFrame]] = {
    "a constant beside a random value": lambda rows, folder, which: rows.select(
        F.lit(str(which)).alias("topic"), "value", F.rand().alias("x")
    ),
    "a constant in a call with a random value": lambda rows, folder, which: rows.select(
        F.concat(F.expr("uuid()"), F.lit(str(which))).alias("x")
    ),
    "a rate": lambda rows, folder, which: rows.select((F.col("value") * (1.5 + which)).alias("x")),
    "a column below the last one": lambda rows, folder, which: rows.withColumn(
        "x", (F.lower, F.upper)[which](F.col("value").cast("string"))
    ).select(F.concat("x", F.lit("!")).alias("y")),
    "a function of the same name": lambda rows, folder, which: rows.select(
        F.udf(shout((str.upper, str.lower)[which]), "string")(F.col("value").cast("string")).alias("x")
    ),
    "the time and a constant": lambda rows, folder, which: rows.select(
        F.concat(F.lit(datetime.now(UTC)).cast("string"), F.lit(str(which))).alias("x")
    ),
    "a table": lambda rows, folder, which: looked_up(rows, f"{folder}/{which}"),
    "rows of a table": lambda rows, folder, which: looked_up(rows, folder, F.col("name") == str(which)),
    "a key of a join": lambda rows, folder, which: looked_up(
        rows.withColumn("value", F.col("value") + which), folder
    ).select("y"),
    "a common table's rows": lambda rows, folder, which: rows.sparkSession.sql(
        f"SELECT value + {which} AS x FROM {{rows}}", rows=rows
    ),
    "the same columns in other places": lambda rows, folder, which: rows.select(
        F.col("value").cast("string").alias("x"), F.col("timestamp").cast("string").alias("y")
    ).select(*(("x", "y"), ("y", "x"))[which]),
    "a field beside a random value": lambda rows, folder, which: rows.select(
        F.struct(F.col("value").alias("before"), F.col("value").alias("after")).alias("pair")
    ).select(F.concat(F.expr("uuid()"), F.col("pair")[("before", "after")[which]].cast("string")).alias("x")),
    "a type beside a random value": lambda rows, folder, which: rows.select(
        F.concat(F.expr("uuid()"), F.col("value").cast(("int", "double")[which]).cast("string")).alias("x")
    ),
    "a number beside a random value": lambda rows, folder, which: rows.select(
        F.concat(F.expr("uuid()"), (F.col("value") + which).cast("string")).alias("x")
    ),
    "a value that looks like a column": lambda rows, folder, which: rows.select(F.lit(f"room#{which}").alias("x")),
    "another column": lambda rows, folder, which: rows.select(F.col(("value", "timestamp")[which]).cast("string")),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKES)
def test_branches_are_told_by_what_they_make(rows: DataFrame, tmp_path: Path, name: str) -> None:
    """They have the same records, and only their order says which task writes which."""
    for which in range(2):
        (tmp_path / str(which)).mkdir()

    def made(*order: int) -> ShuffleKeys:
        first, second = (MAKES[name](rows, str(tmp_path), which) for which in order)
        return noted(first.union(second))

    was, again, now = made(0, 1), made(0, 1), made(1, 0)
    assert was.code == now.code
    assert was.branches == again.branches
    assert moved(was.branches, now.branches)


def test_branches_are_told_whatever_columns_their_union_has_first(rows: DataFrame) -> None:
    """A union by name begins with the columns of its first branch."""
    made = [rows.select("value", F.lit("a").alias("x")), rows.select("value", F.lit("b").alias("y"))]
    was, now = (noted(first.unionByName(second, allowMissingColumns=True)) for first, second in (made, made[::-1]))
    assert moved(was.branches, now.branches)


def test_common_table_is_the_same_in_each_branch(rows: DataFrame, spark: SparkSession) -> None:
    """Spark gives the columns of a second reference other ids."""

    def made(*topics: str) -> ShuffleKeys:
        parts = (f"SELECT x, '{topic}' AS topic FROM r WHERE x > 0" for topic in topics)
        text = f"WITH r AS (SELECT value % {len(topics)} AS x FROM {{rows}}) {' UNION ALL '.join(parts)}"
        return noted(spark.sql(text, rows=rows))

    was, now, other = made("a", "b"), made("b", "a"), made("a", "b", "c")
    assert was.code == now.code != other.code
    assert moved(was.branches, now.branches)


def test_branches_are_told_although_a_function_of_all_of_them_was_mended(rows: DataFrame) -> None:
    """That is the usual mend of a batch that cannot be finished."""

    def made(by: Callable[[str], str], *topics: str) -> ShuffleKeys:
        render = F.udf(shout(by), "string")(F.col("value").cast("string")).alias("x")
        first, second = (rows.select(F.lit(topic).alias("topic"), render) for topic in topics)
        return noted(first.union(second))

    was = made(str.upper, "a", "b")
    assert moved(was.branches, made(str.lower, "b", "a").branches)
    assert not moved(was.branches, made(str.lower, "a", "b").branches)


def test_list_of_values_counts_in_any_order_in_a_constant_table(rows: DataFrame, spark: SparkSession) -> None:
    """It decides which rows the table has."""

    def known(*values: int) -> ShuffleKeys:
        table = spark.range(9).toDF("value").where(F.col("value").isin(*values))
        return noted(
            rows.select("value").join(table, "value").union(rows.select("value").join(table, "value", "left_anti"))
        )

    assert known(1, 2, 3).code == known(3, 1, 2).code != known(1, 2, 4).code


def test_branch_that_has_moved_beside_a_mended_one_is_told(rows: DataFrame) -> None:
    """The mended one differs in more columns than before."""
    text = F.col("value").cast("string")
    kept = rows.select(F.lit("k").alias("key"), F.concat(text, F.lit("+")).alias("x"))
    failing, mended = (rows.select(F.lit(key).alias("key"), text.alias("x")) for key in ("k", "m"))
    was, now, in_place = (noted(a.union(b)) for a, b in ((failing, kept), (kept, mended), (mended, kept)))
    assert moved(was.branches, now.branches)
    assert not moved(was.branches, in_place.branches)


@pytest.mark.parametrize(
    ("was", "now", "so"),
    [
        (("a", "b"), ("a", "b"), False),
        (("a", "b"), ("b", "a"), True),
        (("a", "b"), ("a", "c"), False),
        (("a", "b"), ("b", "c"), True),
        (("a", "b"), ("b", "b"), False),
        (("a,x", "b,x"), ("b,y", "a,y"), True),
        (("a,x", "b,x"), ("a,y", "b,y"), False),
        (("a", "b", "c"), ("a", "c", "b"), True),
        (("a", "a"), ("a", "a"), False),
        (("a", "a", "b"), ("a", "c", "b"), False),
        ((), ("a", "b"), False),
    ],
)
def test_branch_has_moved_if_another_has_its_place(was: tuple[str, ...], now: tuple[str, ...], *, so: bool) -> None:
    """One that is nowhere any more was mended where it is."""
    assert moved(was, now) is so
