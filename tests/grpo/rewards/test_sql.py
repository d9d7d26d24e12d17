"""Queries judged by their results: what is equal, what only looks so, what is refused, what takes too much."""

import sqlite3
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.errors import InputError
from grpo.rewards.sql import sql_reward
from grpo.rewards.sql_judge import Result, orders, same_result

DATABASE = """
CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER, pay REAL);
INSERT INTO person VALUES (1, 'Ann', 'Oslo', 30, 10.5), (2, 'Bob', 'Rome', 25, 7.25), (3, 'Cid', 'Oslo', 41, NULL),
    (4, 'Dan', NULL, 25, 3.0), (5, 'Bob', 'Bonn', 60, 0.1);
CREATE TABLE visit (person INTEGER, day TEXT);
INSERT INTO visit VALUES (1, '2024-01-01'), (1, '2024-01-02'), (2, '2024-01-01'), (9, '2024-01-05');
"""
NAMES = "SELECT name FROM person"
OSLO = "SELECT name FROM person WHERE city = 'Oslo'"
BY_AGE = "SELECT name FROM person WHERE age > 25 ORDER BY age"
COUNTS = "SELECT city, COUNT(*) FROM person GROUP BY city"
MEAN = "SELECT AVG(pay) FROM person"
VISITED = "SELECT DISTINCT name FROM person JOIN visit ON person.id = visit.person"
FOUR = "SELECT 4"

TABLE = [
    # (completion, answer, expected)
    (OSLO, OSLO, 1),
    (OSLO + ";", OSLO, 1),
    (OSLO + "; -- done", OSLO, 1),
    (f"Like this:\n```sql\n{OSLO}\n```\nIt works.", OSLO, 1),
    (f"```\n{OSLO}\n```", OSLO, 1),
    (f"```sql\nSELECT 1\n```\n```sql\n{OSLO}\n```", OSLO, 1),
    (f"```sql\n{OSLO}\n```\n```sql\nSELECT 1\n```", OSLO, 0),
    ("select NAME as who from Person p where p.CITY in ('Oslo')", OSLO, 1),
    ("WITH o AS (SELECT * FROM person WHERE city = 'Oslo') SELECT name FROM o", OSLO, 1),
    ("SELECT name FROM person WHERE city LIKE 'os%'", OSLO, 1),
    (OSLO + " ORDER BY name DESC", OSLO, 1),
    ("VALUES ('Ann'), ('Cid')", OSLO, 1),
    ("", OSLO, 0),
    ("There are two people in Oslo: Ann and Cid.", OSLO, 0),
    ("SELECT name FROM person WHERE city = 'oslo'", OSLO, 0),
    ("SELECT 'Ann, Cid'", OSLO, 0),
    ("SELECT name FROM person WHERE city = 'Oslo' LIMIT 1", OSLO, 0),
    ("SELECT name FROM person", OSLO, 0),
    ("SELECT name, city FROM person WHERE city = 'Oslo'", OSLO, 0),
    ("SELECT id FROM person WHERE city = 'Oslo'", OSLO, 0),
    ("SELECT name FROM persons WHERE city = 'Oslo'", OSLO, 0),
    ("SELECT name FROM person WHERE", OSLO, 0),
    (f"{OSLO}; {OSLO}", OSLO, 0),
    (f"EXPLAIN {OSLO}", OSLO, 0),
    ("SELECT DISTINCT name FROM person", NAMES, 0),
    ("SELECT name FROM person UNION ALL SELECT 'Ann' WHERE 0", NAMES, 1),
    ("SELECT name FROM person UNION SELECT name FROM person", NAMES, 0),
    ("SELECT name FROM person GROUP BY id HAVING 1", NAMES, 1),
    (BY_AGE, BY_AGE, 1),
    ("SELECT name FROM person WHERE age > 25", BY_AGE, 1),
    ("SELECT name FROM person WHERE age > 25 ORDER BY age DESC", BY_AGE, 0),
    ("SELECT name FROM (SELECT * FROM person ORDER BY age) WHERE age > 25", BY_AGE, 1),
    ("SELECT name FROM person WHERE age >= 30 ORDER BY id DESC", BY_AGE, 0),
    ("SELECT city, COUNT(id) FROM person GROUP BY 1", COUNTS, 1),
    ("SELECT COUNT(*), city FROM person GROUP BY city", COUNTS, 0),
    ("SELECT city, COUNT(city) FROM person GROUP BY city", COUNTS, 0),
    ("SELECT COALESCE(city, ''), COUNT(*) FROM person GROUP BY city", COUNTS, 0),
    ("SELECT city, COUNT(*) FROM person WHERE city IS NOT NULL GROUP BY city", COUNTS, 0),
    ("SELECT COALESCE(city, 'NULL'), COUNT(*) FROM person GROUP BY city", COUNTS, 0),
    ("SELECT SUM(pay) / COUNT(pay) FROM person", MEAN, 1),
    ("SELECT SUM(pay) / COUNT(*) FROM person", MEAN, 0),
    ("SELECT ROUND(AVG(pay), 2) FROM person", MEAN, 0),
    ("SELECT AVG(COALESCE(pay, 0)) FROM person", MEAN, 0),
    ("SELECT SUM(pay * 0.1) / SUM(pay IS NOT NULL) * 10 FROM person", MEAN, 1),
    ("SELECT name FROM person WHERE id IN (SELECT person FROM visit)", VISITED, 1),
    ("SELECT name FROM person JOIN visit ON person.id = visit.person", VISITED, 0),
    ("SELECT name FROM person WHERE EXISTS (SELECT 1 FROM visit WHERE person = id)", VISITED, 1),
    ("SELECT 2 + 2", FOUR, 1),
    ("SELECT 4.0", FOUR, 1),
    ("SELECT '4'", FOUR, 0),
    ("SELECT x'34'", FOUR, 0),
    ("SELECT 4.0001", FOUR, 0),
    ("SELECT NULL", FOUR, 0),
    ("SELECT 4 WHERE 0", FOUR, 0),
    ("SELECT NULL", "SELECT city FROM person WHERE id = 4", 1),
    ("SELECT ''", "SELECT city FROM person WHERE id = 4", 0),
    ("SELECT name FROM person WHERE id = 0", "SELECT city FROM person WHERE age > 99", 1),
    ("SELECT name FROM person WHERE id = 0", "SELECT NULL", 0),
]
REFUSED = {
    "insert": "INSERT INTO person (id) VALUES (7) RETURNING 4",
    "update": "UPDATE person SET age = 4 WHERE id = 1 RETURNING age",
    "delete": "DELETE FROM person WHERE id = 1 RETURNING 4",
    "drop": "DROP TABLE person",
    "create": "CREATE TABLE x AS SELECT 4",
    "temporary": "CREATE TEMP VIEW x AS SELECT 4",
    "attach": "ATTACH '/tmp/stolen.db' AS x",
    "pragma": "PRAGMA cache_size = 4",
    "pragma as a table": "SELECT 4 FROM pragma_table_info('person') LIMIT 1",
    "vacuum into a file": "VACUUM INTO '/tmp/stolen.db'",
    "extension": "SELECT CASE WHEN load_extension('x') THEN 4 ELSE 4 END",
    "file": "SELECT CASE WHEN readfile('/etc/passwd') THEN 4 ELSE 4 END",
    "chance": "SELECT CASE WHEN random() THEN 4 ELSE 4 END",
    "begin": "BEGIN",
    "two statements": "SELECT 4; SELECT 4",
}
# A search that SQLite cannot be interrupted in.
UNENDING = "SELECT instr(hex(zeroblob(4000000)), hex(zeroblob(2000000)) || '1')"
HEAVY = {
    "one function without end": UNENDING,
    "rows without end": "WITH RECURSIVE n(i) AS (SELECT 4 UNION ALL SELECT 4 FROM n) SELECT i FROM n",
    "counting without end": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "a long text": "SELECT length(printf('%.*c', 2000000000, 'x'))",
    "a long blob": "SELECT length(zeroblob(2000000000))",
    "sorting without end": "WITH RECURSIVE n(i) AS (SELECT hex(zeroblob(50000)) UNION ALL SELECT i FROM n)"
    " SELECT COUNT(*) FROM (SELECT i FROM n ORDER BY i || '')",
    "a slow pattern": f"SELECT printf('%.90000c', 'a') LIKE '{'%a' * 400}b'",
    "a deep expression": "SELECT " + "(" * 10_000 + "4" + ")" * 10_000,
    "a long statement": "SELECT 4" + " + 0" * 200_000,
}


def judge(completions, answer=FOUR, **options):
    answers = [answer] * len(completions) if isinstance(answer, str) else answer
    return sql_reward(completions=completions, answer=answers, database=[DATABASE] * len(answers), **options)


@pytest.fixture(scope="module")
def table_rewards():
    completions, answers, _ = zip(*TABLE, strict=True)
    return judge(completions, list(answers))


@pytest.mark.parametrize("row", range(len(TABLE)))
def test_reward(row, table_rewards):
    assert table_rewards[row] == TABLE[row][2], TABLE[row][:2]


def test_what_is_not_one_reading_query_is_refused():
    assert dict(zip(REFUSED, judge(list(REFUSED.values())), strict=True)) == dict.fromkeys(REFUSED, 0.0)
    assert judge(["SELECT 4"]) == [1.0]


def test_what_takes_too_much_is_wrong_and_the_rest_of_the_batch_right():
    started = time.monotonic()
    rewards = judge(["SELECT 4", *HEAVY.values(), "SELECT 4"], timeout_s=0.5, memory_mb=256)
    assert rewards == [1.0, *[0.0] * len(HEAVY), 1.0]
    assert time.monotonic() - started < len(HEAVY) * 1.5 + 2


def test_an_answer_that_does_not_end_is_refused_where_the_same_query_is_wrong():
    assert judge([UNENDING, FOUR], timeout_s=0.1) == [0.0, 1.0]
    with pytest.raises(InputError, match="the answer of sample 1 fails on its database: it takes too long"):
        judge([FOUR, FOUR], [FOUR, UNENDING], timeout_s=0.1)


def test_a_query_cannot_change_what_the_next_one_sees():
    assert judge(["DELETE FROM person", "SELECT COUNT(*) FROM person"], "SELECT 5", workers=1) == [0.0, 1.0]


def test_a_database_file_is_read_and_left_alone(tmp_path):
    path = tmp_path / "people.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(DATABASE)
    connection.close()
    before = path.read_bytes()
    options = {"answer": [NAMES] * 2, "database": [str(path)] * 2}
    assert sql_reward(completions=[NAMES, "DELETE FROM person RETURNING name"], **options) == [1.0, 0.0]
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == ["people.sqlite"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t ORDER\n/* up */ BY a LIMIT 3", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("WITH x AS (SELECT a FROM t ORDER BY a) SELECT a FROM x", False),
        ("SELECT ROW_NUMBER() OVER (ORDER BY a) FROM t", False),
        ("SELECT ')', a FROM t WHERE b = '(' ORDER BY a", True),
        ("SELECT 'it''s ORDER BY' FROM t", False),
        ('SELECT "ORDER BY" FROM t -- ORDER BY a', False),
        ("SELECT [order], by FROM t", False),
        ("SELECT a FROM t", False),
    ],
)
def test_order_counts_only_with_an_order_by_outside_parentheses(query, expected):
    assert orders(query) is expected


@pytest.mark.parametrize(
    ("rows", "reference", "expected"),
    [
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], True),
        ([(1, "a"), (1, "a"), (2, "b")], [(1, "a"), (2, "b"), (2, "b")], False),
        ([(0.1 + 0.2, "a"), (0.3, "b")], [(0.3, "a"), (0.3, "b")], True),
        ([(0.1 + 0.2, "b"), (0.3, "a")], [(0.3, "a"), (0.1 + 0.2, "b")], True),
        ([(0.3, "x")], [(0.3001, "x")], False),
        ([(0.12345675, 1)], [(0.12345674999999999, 1)], True),
        ([(1e-17,)], [(0,)], True),
        ([(2**53 + 1,)], [(2**53,)], False),
        ([(float("inf"),)], [(1e308,)], False),
        ([(None,)], [(0,)], False),
        ([("1",)], [(1,)], False),
        ([(b"a",)], [("a",)], False),
        ([(True,)], [(1,)], True),
        ([], [], True),
        ([], [(None,)], False),
    ],
)
def test_results_are_equal_as_bags_of_rows(rows, reference, expected):
    columns = len((reference or rows or [()])[0])
    assert same_result(Result(columns, rows), Result(columns, reference), in_order=False) is expected


def test_many_rows_that_differ_by_rounding_are_paired():
    rows = [(i / 7, i % 10, "x") for i in range(20_000)]
    near = [(i * (1 / 7), i % 10, "x") for i in reversed(range(20_000))]
    assert rows != near[::-1]
    assert same_result(Result(3, near), Result(3, rows), in_order=False)
    assert not same_result(Result(3, near), Result(3, [*rows[:-1], (1.0, 3, "y")]), in_order=False)


def test_duckdb_judges_the_same_way_and_reaches_no_file():
    answer = "SELECT name FROM person WHERE city = 'Oslo'"
    completions = [
        answer,
        "SELECT name FROM person QUALIFY row_number() OVER (PARTITION BY city ORDER BY id) > 0 AND city = 'Oslo'",
        "SELECT name FROM person",
        "SELECT content FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY person TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/stolen.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "DELETE FROM person RETURNING name",
        f"{answer}; {answer}",
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
        "SELECT repeat('x', 1000000000)",
        "not sql",
        "",
    ]
    assert judge(completions, answer, engine="duckdb", timeout_s=1) == [1.0, 1.0, *[0.0] * 14]


WORDS = """SELECT FROM WHERE ( ) , * person name 'x ' " ; -- /* */ UNION ALL WITH RECURSIVE AS NULL 1e999 0x ? :a @a x'0
``` ```sql"""
HOSTILE = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=st.characters(codec=None), max_size=50),
    st.binary(max_size=100).map(lambda data: data.decode(errors="surrogateescape")),
    st.lists(st.sampled_from(WORDS.split()), max_size=40).map(" ".join),
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(HOSTILE, min_size=100, max_size=100))
def test_hostile_text_gets_a_number_in_time(completions):
    started = time.monotonic()
    assert all(reward == 0.0 or reward == 1.0 for reward in judge(completions, timeout_s=0.5))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"engine": "oracle"}, "engine is 'oracle'; choose from duckdb, sqlite"),
        ({"answer": [None]}, "the answer of sample 0 is None; it must be SQL"),
        ({"database": [" "]}, "the database of sample 0 is ' '; it must be SQL"),
        ({"answer": ["SELECT x FROM nowhere"]}, "the answer of sample 0 fails on its database: .*no such table"),
        ({"answer": ["DELETE FROM person"]}, "the answer of sample 0 fails on its database: .*not authorized"),
        ({"database": ["CREATE nonsense"]}, "sample 0 fails on its database: .*syntax error"),
        ({"database": ["/no/such/file.sqlite"]}, "sample 0 fails on its database: .*unable to open"),
        ({"max_rows": 2}, "sample 0 fails on its database: it gives more than 2 rows"),
    ],
)
def test_what_cannot_be_judged_by_is_refused(changed, message):
    options = {"completions": ["SELECT 4"], "answer": [NAMES], "database": [DATABASE]} | changed
    with pytest.raises(InputError, match=message):
        sql_reward(**options)
