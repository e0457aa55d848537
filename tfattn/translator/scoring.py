"""Scores: a table of BLEU and chrF by sacrebleu, and log-probabilities of given pairs."""

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfattn import _optional, decoding
from tfattn.translator import corpus, lines, translating
from tfattn.translator.arguments import GRAMMAR_SENTENCES, WrongName
from tfattn.translator.corpus import Pairs
from tfattn.translator.folder import Folder, fingerprint, languages, load_ensemble

DEVIATION = "standard deviation"
# Sentences drawn for the bootstrap. sacrebleu holds all of them, with 72 bytes each.
RESAMPLED = 10_000_000


def score_pairs(options: argparse.Namespace) -> None:
    """Prints the log-probability of the second sentence of each line given the first."""
    pairs = []
    with lines.opened(options.pairs) as (text, _):
        for number, line in enumerate(text, start=1):
            pair = line.split("\t")
            if len(pair) != 2:
                line = f"line {number} of {options.pairs}"
                raise ValueError(f"{line} must be a sentence, a tab and its translation")
            pairs.append((pair[0], pair[1]))
    model, (source, target) = load_ensemble(options.ensemble or options.out)
    for side, (name, vocabulary) in enumerate((("source", source), ("target", target))):
        unknown = lines.UnknownWords(vocabulary, raw=True, name=f"{name} vocabulary")
        for sentences in pairs:
            unknown.add(sentences[side])
        unknown.note()
    with lines.numbered(0, len(pairs)), translating.without_warnings():
        for log_probability in decoding.log_probabilities(model, pairs, source, target):
            print(f"{log_probability:.4f}")


def score(options: argparse.Namespace) -> None:
    """Prints a table, the mean and standard deviation of several runs, and a line of JSON."""
    metrics = _metrics(options.tokenize or "none")
    baseline = [] if options.compare is None else [[options.compare]]
    ensembles = [options.ensemble] if options.ensemble else [[out] for out in options.out]
    # Read all parts first, to fail before the first translation if a file is missing.
    runs = {
        " + ".join(map(str, paths)): (paths, _parts_of_all(paths, options))
        for paths in (*baseline, *ensembles)
    }
    if baseline:
        _check_same_sentences("--compare", {name: parts for name, (_, parts) in runs.items()})
    show = functools.partial(_print_row, [(*runs, DEVIATION), (*options.parts, "part")])
    show(("run", "part"), metrics)
    searches = {
        name: translating.published_search(options, paths) for name, (paths, _) in runs.items()
    }
    if len({json.dumps(search) for search in searches.values()}) > 1:
        print(
            "note: the runs are translated by different searches, which changes the scores too; "
            "--beam 1 is the same for all",
            file=sys.stderr,
        )
    found: dict[str, Any] = {}
    compared: dict[str, list[str]] = {}
    for name, (paths, parts) in runs.items():
        model, vocabularies = load_ensemble(paths)
        found[name] = {}
        for part, pairs in parts.items():
            sources = [source for source, _ in pairs]
            search = translating.search(options, searches[name])
            hypotheses = translating.translate(
                model, sources, vocabularies, search, True, options.max_length
            )
            other = compared.setdefault(part, hypotheses) if baseline else hypotheses
            scores, signatures = _scores(metrics, hypotheses, pairs, other)
            found[name][part] = scores
            show((name, part), map(_cell, scores.values()))
    result = {**translating.settings(options), "runs": found}
    if any(searches.values()):
        result["published"] = {name: search for name, search in searches.items() if search}
    # Then no run used the options' search.
    if all("num_beams" in search for search in searches.values()):
        del result["beam"], result["length_penalty"]
    if baseline:
        result["compare"] = str(options.compare)
    elif len(found) > 1:
        for name, summary in (("mean", statistics.mean), (DEVIATION, statistics.stdev)):
            result[name] = {}
            for part in dict.fromkeys(options.parts):
                scores = {
                    metric: round(summary(run[part][metric]["score"] for run in found.values()), 2)
                    for metric in metrics
                }
                show((name, part), (f"{score:.2f}" for score in scores.values()))
                result[name][part] = scores
    for name, signature in signatures.items():
        print(f"{name}: {signature}")
    print("result:", json.dumps({**result, "signatures": signatures}))  # one line, easy to parse


def _metrics(tokenize: str) -> dict[str, Any]:
    """sacrebleu's metrics by name."""
    metrics = _optional.find("sacrebleu", "text", "score").metrics
    try:
        # `force` disables sacrebleu's warning about tokenized text.
        return {"BLEU": metrics.BLEU(tokenize=tokenize, force=True), "chrF2": metrics.CHRF()}
    except RuntimeError as error:  # MeCab is not installed, as sacrebleu says
        raise ImportError(f"--tokenize {tokenize}: {error}") from None


def _parts_of_all(paths: Sequence[Path], options: argparse.Namespace) -> dict[str, Pairs]:
    """The parts of an ensemble, which are those of each of its runs."""
    parts = {str(path): read_parts(Folder(path), options) for path in paths}
    _check_same_sentences("--ensemble", parts)
    return parts[str(paths[0])]


def read_parts(folder: Folder, options: argparse.Namespace) -> dict[str, Pairs]:
    """From the name of a part to its pairs."""
    record = folder.read_record()
    path = options.data or record.get("data")
    if path is None and "data" not in record:
        raise ValueError(
            f"{folder.path} has no record of its training data. Use --data to choose the files to "
            "score."
        )
    if path is None:
        return {part: _held_out(folder, record, part, options.sentences) for part in options.parts}
    read = argparse.Namespace(data=Path(path), languages=languages(record))
    return {part: corpus.read(read, part, "--parts")[: options.sentences] for part in options.parts}


def _held_out(folder: Folder, record: dict[str, Any], part: str, sentences: int | None) -> Pairs:
    if part != "val":
        missing = f"part {part} of the grammar, from which {folder.path} learned"
        raise WrongName("--parts", missing, ["val"])
    toy = argparse.Namespace(**record["settings"], data=None)
    train, validation = corpus.training_and_validation(toy)
    if fingerprint(line for pair in (*train, *validation) for line in pair) != record["sentences"]:
        raise ValueError(f"the grammar has changed since the run in {folder.path} was trained")
    return validation[: sentences or GRAMMAR_SENTENCES]


def _check_same_sentences(option: str, runs: dict[str, dict[str, Pairs]]) -> None:
    (first, wanted), *others = runs.items()
    for name, parts in others:
        for part in wanted:
            if parts[part] != wanted[part]:
                raise ValueError(
                    f"{option} {first}: {name} is scored on other sentences of {part}. Use --data "
                    "to score both on the same files."
                )


def _scores(
    metrics: dict[str, Any], hypotheses: list[str], pairs: Pairs, compared: list[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """(Scores with 95% intervals, and p-values if other translations are compared; signatures)."""
    paired_test = _optional.find("sacrebleu.significance", "text", "score").PairedTest
    others = [("compared", compared)] if compared != hypotheses else []
    references = [[reference for _, reference in pairs]]
    resamples = max(100, min(1000, RESAMPLED // len(hypotheses)))
    systems = [*others, ("run", hypotheses)]
    test = paired_test(systems, metrics, references, test_type="bs", n_samples=resamples)
    signatures, results = test()
    found = {}
    for name in signatures:
        last = results[name][-1]
        ends = [last.mean + side * last.ci for side in (-1, 1)]
        interval = [round(min(max(float(end), 0.0), 100.0), 2) for end in ends]
        found[name] = {"score": round(last.score, 2), "interval": interval}
        if others:
            found[name]["p_value"] = round(last.p_value, 4)
    return found, {name: str(signature) for name, signature in signatures.items()}


def _cell(score: dict[str, Any]) -> str:
    low, high = score["interval"]
    p_value = f" p={score['p_value']:.3f}" if "p_value" in score else ""
    return f"{score['score']:.2f} [{low:.2f}, {high:.2f}]{p_value}"


def _print_row(columns: list[tuple[str, ...]], names: Iterable[str], cells: Iterable[str]) -> None:
    """Prints a line of the table, with names as wide as those in their columns."""
    widths = [max(len(str(name)) for name in column) for column in columns]
    names = (f"{name:{width}}" for name, width in zip(names, widths, strict=True))
    print("  ".join((*names, *(f"{cell:31}" for cell in cells))).rstrip(), flush=True)
