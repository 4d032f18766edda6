"""A tutorial on real data: the names of the Unicode characters, found by word.

    python examples/tutorial.py [DIRECTORY]

Stores the characters of Python's `unicodedata`, about 150,000, in one table, and an index of the words of
their names in another one. Queries the tables, writes from several threads while a report runs, and makes a
backup.
"""

import pathlib
import sys
import tempfile
import threading
import unicodedata

import azekura


def characters():
    """Yields (code point, name) of each character with a name."""
    for code in range(sys.maxunicode + 1):
        name = unicodedata.name(chr(code), None)
        if name is not None:
            yield code, name


def load(db, characters_table, words):
    """Stores the characters and the index. A transaction holds a lock for each of its rows, so each
    transaction has only a few thousand rows."""
    rows = list(characters())
    for start in range(0, len(rows), 5_000):
        part = rows[start : start + 5_000]
        with db.begin() as tx:
            tx[characters_table].update(
                (code, {"name": name, "category": unicodedata.category(chr(code))}) for code, name in part
            )
            # The index: one row for each word of a name. The value is not needed.
            tx[words].update(((word, code), b"") for code, name in part for word in name.split())
    return len(rows)


def find(db, characters_table, words, word):
    """Returns the characters that have a word in their name, from one snapshot."""
    with db.snapshot() as snap:
        codes = [code for (_, code), _ in snap[words].prefix((word,))]
        found = snap[characters_table].get_many(codes)
    return [(chr(code), character["name"]) for code, character in zip(codes, found)]


def main(directory):
    with azekura.open(directory / "unicode.azk") as db:
        table = db.table("characters", key=int, value="json")
        words = db.table("words", key=(str, int), value=bytes)
        looked_up = db.table("looked_up", key=str, value=int)

        count = load(db, table, words)
        print(f"{count:,} characters, {len(words):,} words of names")

        for word in ("SNOWMAN", "KIMONO", "ICHTHYS"):
            found = find(db, table, words, word)
            print(f"{word}: " + ", ".join(f"{char} {name}" for char, name in found))

        # Eight threads count at once. Each `add` is one transaction, and no addition is lost.
        def look_up(number):
            for word in ("SNOWMAN", "SUN", "MOON")[: 1 + number % 3]:
                looked_up.add(word, len(find(db, table, words, word)))

        threads = [threading.Thread(target=look_up, args=(number,)) for number in range(8)]
        with db.snapshot() as before:
            for thread in threads:
                thread.start()
            # The report reads every row, but blocks no thread. The snapshot excludes their writes.
            categories = {}
            for character in before[table].values():
                categories[character["category"]] = categories.get(character["category"], 0) + 1
            assert len(before[looked_up]) == 0
            for thread in threads:
                thread.join()
        most = sorted(categories.items(), key=lambda item: -item[1])[:3]
        print("most frequent categories: " + ", ".join(f"{name} {count:,}" for name, count in most))
        print("looked up: " + ", ".join(f"{word} {count}" for word, count in looked_up.items()))

        rows = db.backup(directory / "copy")
        print(f"backup of {rows:,} rows")
    restored = azekura.restore(directory / "copy", directory / "restored.azk", verify=True)
    assert restored == rows
    print("restored and verified")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(pathlib.Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(pathlib.Path(scratch))
