"""A table of BLEU with a row per run and a column per part of a corpus."""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from tfattn import data, training
from tfattn.translator import corpus, translating
from tfattn.translator.corpus import Pairs
from tfattn.translator.folder import Folder, fingerprint

GRAMMAR_SENTENCES = 1000


def score(options: argparse.Namespace) -> None:
    """Prints a table, the mean and standard deviation of several runs, and a line of JSON."""
    training.corpus_bleu(["a"], ["a"])  # fail early if sacrebleu is missing
    # Read all parts first, to fail before the first translation if a file is missing.
    runs = [(Folder(out), _parts(Folder(out), options)) for out in dict.fromkeys(options.out)]
    width = max(len(str(out)) for out in (*options.out, DEVIATION))
    columns = list(dict.fromkeys(options.parts))
    print(" " * width, *(f"{part:>{_column(part)}}" for part in columns))
    found = {}
    for folder, parts in runs:
        found[str(folder.path)] = dict(_bleu(folder, parts, options))
        _print_row(str(folder.path), found[str(folder.path)], width)
    result = {**translating.settings(options), "runs": found}
    if len(found) > 1:
        for name, summary in (("mean", statistics.mean), (DEVIATION, statistics.stdev)):
            result[name] = {
                part: round(summary(run[part] for run in found.values()), 2) for part in columns
            }
            _print_row(name, result[name], width)
    print("result:", json.dumps(result))  # one line, easy to parse


DEVIATION = "standard deviation"


def _parts(folder: Folder, options: argparse.Namespace) -> dict[str, Pairs]:
    """From the name of a part to its pairs."""
    record = folder.read_record()
    settings = record.get("settings", {})
    path = options.data or record.get("data")
    if path is None and "data" not in record:
        raise ValueError(
            f"{folder.path} has no record of its training data. Use --data to choose the files to "
            "score."
        )
    if path is None:
        return {part: _held_out(folder, record, part, options.sentences) for part in options.parts}
    read = argparse.Namespace(data=Path(path), languages=settings.get("languages", ("en", "de")))
    return {part: corpus.read(read, part)[: options.sentences] for part in options.parts}


def _held_out(folder, record, part, sentences):
    if part != "val":
        raise ValueError(
            f"--parts {part}: the model in {folder.path} learned from the grammar. Use --data to "
            "choose the files to score."
        )
    settings = record["settings"]
    toy = data.toy_translation(settings["pairs"], seed=settings["seed"])
    train, validation = data.split_pairs(toy, seed=settings["seed"])
    if fingerprint(line for pair in (*train, *validation) for line in pair) != record["sentences"]:
        raise ValueError(f"the grammar has changed since the run in {folder.path} was trained")
    return validation[: sentences or GRAMMAR_SENTENCES]


def _bleu(
    folder: Folder, parts: dict[str, Pairs], options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    model, words = folder.load_model()
    for part, pairs in parts.items():
        sources, references = zip(*pairs, strict=True)
        hypotheses = translating.translate(
            model,
            sources,
            words,
            translating.search(options),
            translating.bar(),
            options.max_length,
        )
        yield part, round(training.corpus_bleu(hypotheses, references), 2)


def _print_row(name: str, row: dict[str, float], width: int) -> None:
    print(f"{name:{width}}", *(f"{row[part]:{_column(part)}.2f}" for part in row), flush=True)


def _column(part: str) -> int:
    return max(len(part), len("100.00"))
