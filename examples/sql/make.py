"""Write train.jsonl and eval.jsonl beside this file: questions over the toy database of a library, with queries.

Each row has the database as a script, so that it can be judged by itself. Questions whose reference gives nothing, zero
or no value are left out: they could be answered by accident.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

SCHEMA = """\
CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
CREATE TABLE book (id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER, year INTEGER, pages INTEGER, price REAL);
CREATE TABLE loan (id INTEGER PRIMARY KEY, book_id INTEGER, reader TEXT, days INTEGER);
"""
CONTENT = """\
INSERT INTO author VALUES (1,'Amara Obi','Nigeria'),(2,'Bela Kiss','Hungary'),(3,'Carla Rossi','Italy'),
(4,'Dara Singh','India'),(5,'Emil Berg','Norway'),(6,'Fiona Ward','Ireland'),(7,'Gita Rao','India');
INSERT INTO book VALUES (1,'Salt Roads',1,1998,312,12.5),(2,'The Quiet Mill',2,2004,189,9.0),
(3,'Red Harbour',3,2011,401,15.75),(4,'Paper Rivers',4,2015,256,11.25),(5,'North of Snow',5,1987,523,18.0),
(6,'Green Stairs',6,2019,148,7.5),
(7,'A Second Moon',1,2007,344,13.0),(8,'Copper Days',2,1993,275,10.5),(9,'Glass Orchard',3,2020,367,16.5),
(10,'Monsoon Letters',7,2012,221,8.25),(11,'The Last Ferry',5,2001,298,14.0),(12,'Stone and Thread',4,1979,612,21.0);
INSERT INTO loan VALUES (1,1,'Noor',14),(2,3,'Otto',21),(3,5,'Noor',30),(4,3,'Pia',7),(5,9,'Quin',12),(6,2,'Otto',10),
(7,12,'Noor',45),(8,7,'Pia',18),(9,10,'Rosa',NULL),(10,4,'Quin',25),(11,6,'Rosa',5),(12,8,'Otto',NULL);
"""
AUTHORS = ("Amara Obi", "Bela Kiss", "Carla Rossi", "Dara Singh", "Emil Berg", "Fiona Ward", "Gita Rao")
COUNTRIES = ("Nigeria", "Hungary", "Italy", "India", "Norway", "Ireland")
READERS = ("Noor", "Otto", "Pia", "Quin", "Rosa")
SYSTEM = f"You write SQLite queries for this database:\n{SCHEMA}Answer with one query and nothing else."
EXAMPLE = ("How many authors are there?", "SELECT COUNT(*) FROM author")
EVERY = 6  # every sixth question is held out


def questions() -> Iterator[tuple[str, str]]:
    """(question, reference query)."""
    for year in range(1980, 2021, 3):
        yield f"How many books were published after {year}?", f"SELECT COUNT(*) FROM book WHERE year > {year}"
        yield f"What are the titles of books published before {year}?", f"SELECT title FROM book WHERE year < {year}"
        yield (
            f"What are the titles of books published after {year}, newest first?",
            f"SELECT title FROM book WHERE year > {year} ORDER BY year DESC",
        )
        yield (
            f"What is the highest price of a book from before {year}?",
            (f"SELECT MAX(price) FROM book WHERE year < {year}"),
        )
    for pages in range(150, 601, 30):
        yield (
            f"Which books have more than {pages} pages? Give their titles.",
            (f"SELECT title FROM book WHERE pages > {pages}"),
        )
        yield f"How many books have at most {pages} pages?", f"SELECT COUNT(*) FROM book WHERE pages <= {pages}"
        yield (
            f"What is the average price of books with more than {pages} pages?",
            (f"SELECT AVG(price) FROM book WHERE pages > {pages}"),
        )
    for price in range(8, 21):
        yield (
            f"What are the titles and prices of books that cost less than {price}, cheapest first?",
            (f"SELECT title, price FROM book WHERE price < {price} ORDER BY price"),
        )
        yield f"How many books cost more than {price}?", f"SELECT COUNT(*) FROM book WHERE price > {price}"
        yield (
            f"How many pages do the books that cost more than {price} have in all?",
            (f"SELECT SUM(pages) FROM book WHERE price > {price}"),
        )
    for author in AUTHORS:
        by_author = f"FROM book JOIN author ON author.id = book.author_id WHERE author.name = '{author}'"
        yield f"What are the titles of the books by {author}?", f"SELECT title {by_author}"
        yield f"How many books are there by {author}?", f"SELECT COUNT(*) {by_author}"
        yield (
            f"What is the title of the longest book by {author}?",
            (f"SELECT title {by_author} ORDER BY pages DESC LIMIT 1"),
        )
        yield f"Which country is {author} from?", f"SELECT country FROM author WHERE name = '{author}'"
        yield f"When was the first book by {author} published?", f"SELECT MIN(year) {by_author}"
    for country in COUNTRIES:
        yield (
            f"What are the names of the authors from {country}?",
            (f"SELECT name FROM author WHERE country = '{country}'"),
        )
        yield (
            f"What is the average number of pages of books by authors from {country}?",
            (f"SELECT AVG(pages) FROM book JOIN author ON author.id = book.author_id WHERE country = '{country}'"),
        )
    for reader in READERS:
        yield f"How many loans does {reader} have?", f"SELECT COUNT(*) FROM loan WHERE reader = '{reader}'"
        yield (
            f"What are the titles of the books that {reader} borrowed?",
            (f"SELECT title FROM book JOIN loan ON loan.book_id = book.id WHERE reader = '{reader}'"),
        )
        yield (
            f"What was the longest loan of {reader}, in days?",
            f"SELECT MAX(days) FROM loan WHERE reader = '{reader}'",
        )
    for days in range(5, 45, 3):
        yield (
            f"Which readers borrowed a book for more than {days} days? Name each once.",
            (f"SELECT DISTINCT reader FROM loan WHERE days > {days}"),
        )
        yield f"How many loans lasted {days} days or more?", f"SELECT COUNT(*) FROM loan WHERE days >= {days}"


def tells(connection: sqlite3.Connection, query: str) -> bool:
    """Whether the query gives something that is not found by accident."""
    rows = connection.execute(query).fetchall()
    return rows not in ([], [(0,)], [(None,)])


def row(question: str, query: str) -> dict[str, object]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": EXAMPLE[0]},
        {"role": "assistant", "content": EXAMPLE[1]},
        {"role": "user", "content": question},
    ]
    return {"prompt": messages, "answer": query, "database": SCHEMA + CONTENT}


def split() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(train, held out), in an order that looks random and is the same for every version of Python."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA + CONTENT)
    asked = [pair for pair in questions() if tells(connection, pair[1])]
    connection.close()
    asked.sort(key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    train = [row(*pair) for n, pair in enumerate(asked) if n % EVERY]
    return train, [row(*pair) for pair in asked[::EVERY]]


def main(folder: Path = Path(__file__).parent) -> None:
    for name, rows in zip(("train", "eval"), split(), strict=True):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        print(f"{name}.jsonl: {len(rows)} questions")


if __name__ == "__main__":
    main()
