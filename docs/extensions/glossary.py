"""The pages of the glossary: `docs/terms.csv` as a list of definitions in the page's language."""

import csv
import itertools
import re
from pathlib import Path

TERMS = Path(__file__).resolve().parent.parent / "terms.csv"
_LINK = re.compile(r"^\[.*\]\((?:\.\./)?terms\.csv\)$", re.MULTILINE)


def definitions(chinese: bool) -> str:
    """All terms as Markdown, by sections."""
    with TERMS.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    parts = []
    for section, terms in itertools.groupby(rows, lambda row: row["section"]):
        english, _, translated = section.rpartition(" ")
        parts.append(f"### {translated if chinese else english or section}")
        parts += [(_in_chinese if chinese else _in_english)(row) for row in terms]
    return "\n\n".join(parts)


def _in_english(row):
    code = f" {row['code']}" if row["code"] else ""
    chinese = f" {row['中文']}" if row["中文"] not in row["English"] else ""
    return f"**{row['English']}**{chinese}{code}\n: {row['meaning']}"


def _in_chinese(row):
    code = f" {row['code']}" if row["code"] else ""
    others = f"。也叫{' ' * row['别名'][:1].isascii()}{row['别名']}" if row["别名"] else ""
    english = f" {row['English']}".removeprefix(f" {row['中文']}")  # BLEU has one name in both
    return f"**{row['中文']}**{english}{code}\n: {row['意思']}{others}"


def _with_terms(app, docname, source):
    if docname.endswith("glossary"):
        source[0] = _LINK.sub(lambda _: definitions(docname.startswith("zh/")), source[0])


def setup(app):
    app.connect("source-read", _with_terms)
    return {"parallel_read_safe": True}
