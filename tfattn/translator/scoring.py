"""Scores: a table of BLEU and chrF by sacrebleu, and log-probabilities of given pairs."""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfattn import _optional, decoding
from tfattn.translator import corpus, lines, translating
from tfattn.translator.arguments import WrongName
from tfattn.translator.corpus import Pairs
from tfattn.translator.folder import Folder, fingerprint, load_ensemble

Scores = dict[str, dict[str, Any]]  # from a metric to its score and interval
DEVIATION = "standard deviation"
# Sentences drawn for the bootstrap. sacrebleu holds all of them, with 72 bytes each.
RESAMPLED = 10_000_000


def score_pairs(options: argparse.Namespace) -> None:
    """Prints the log-probability of the second sentence of each line given the first."""
    with lines.opened(options.pairs) as (text, _):
        split = [line.partition("\t") for line in text]
    for number, (_, tab, translation) in enumerate(split, start=1):
        if not tab or "\t" in translation:
            line = f"line {number} of {options.pairs}"
            raise ValueError(f"{line} must be a sentence, a tab and its translation")
    pairs = [(sentence, translation) for sentence, _, translation in split]
    model, vocabularies = load_ensemble(options.ensemble or options.out)
    for side, name in enumerate(("source vocabulary", "target vocabulary")):
        unknown = lines.UnknownWords(vocabularies[side], raw=True, name=name)
        for pair in pairs:
            unknown.add(pair[side])
        unknown.note()
    with lines.numbered(0, len(pairs)):
        for log_probability in decoding.log_probabilities(model, pairs, *vocabularies):
            print(f"{log_probability:.4f}")


def score(options: argparse.Namespace) -> None:
    """Prints a table, the mean and standard deviation of several runs, and a line of JSON."""
    metrics = _metrics(options.tokenize or "none")
    baseline = [[options.compare]] if options.compare else []
    scored = [options.ensemble] if options.ensemble else [[out] for out in options.out]
    runs = {" + ".join(map(str, paths)): paths for paths in (*baseline, *scored)}
    parts = _parts(runs, options)  # fails before the first translation if a file is missing
    searches = {
        name: translating.search(options, translating.published_search(options, paths))
        for name, paths in runs.items()
    }
    if len(set(map(repr, searches.values()))) > 1:
        print(
            "note: the runs are translated by different searches, which changes the scores too; "
            "--beam 1 is the same for all",
            file=sys.stderr,
        )
    widths = [max(map(len, names)) for names in ((*runs, DEVIATION), (*options.parts, "part"))]

    def show(run: str, part: str, cells: Sequence[str]) -> None:
        names = f"{run:{widths[0]}}  {part:{widths[1]}}"
        print("  ".join((names, *(f"{cell:31}" for cell in cells))).rstrip(), flush=True)

    show("run", "part", list(metrics))
    found: dict[str, dict[str, Scores]] = {name: {} for name in runs}
    compared: dict[str, list[str]] = {}
    for name, paths in runs.items():
        model, vocabularies = load_ensemble(paths)
        for part, pairs in parts[name].items():
            sources = [source for source, _ in pairs]
            hypotheses = translating.translate(
                model, sources, vocabularies, searches[name], True, options.max_length
            )
            other = compared.setdefault(part, hypotheses) if baseline else hypotheses
            found[name][part], signatures = _scores(metrics, hypotheses, pairs, other)
            show(name, part, list(map(_cell, found[name][part].values())))
    result: dict[str, Any] = {"searches": {name: repr(each) for name, each in searches.items()}}
    result |= {"max_length": options.max_length, "sentences": options.sentences, "runs": found}
    if baseline:
        result["compare"] = str(options.compare)
    elif len(found) > 1:
        result |= _summaries(found, show)
    for name, signature in signatures.items():
        print(f"{name}: {signature}")
    print("result:", json.dumps({**result, "signatures": signatures}))  # one line, easy to parse


def _summaries(
    found: dict[str, dict[str, Scores]], show: Callable[[str, str, Sequence[str]], None]
) -> dict[str, Any]:
    """The mean and the standard deviation of several runs, which are also printed."""
    summaries: dict[str, Any] = {"mean": {}, DEVIATION: {}}
    first = next(iter(found.values()))
    for name, summary in (("mean", statistics.mean), (DEVIATION, statistics.stdev)):
        for part, metrics in first.items():
            summaries[name][part] = {
                metric: round(summary(run[part][metric]["score"] for run in found.values()), 2)
                for metric in metrics
            }
            show(name, part, [f"{value:.2f}" for value in summaries[name][part].values()])
    return summaries


def _parts(runs: dict[str, list[Path]], options: argparse.Namespace) -> dict[str, dict[str, Pairs]]:
    """The parts of each run; those compared, or in an ensemble, must have the same sentences."""
    paths = {path: read_parts(Folder(path), options) for each in runs.values() for path in each}
    (first, wanted), *others = paths.items()
    for path, parts in others if options.compare or options.ensemble else ():
        for part in wanted:
            if parts[part] != wanted[part]:
                raise ValueError(
                    f"{first} and {path} have other sentences of {part}. Use --data to score both "
                    "on the same files."
                )
    return {name: paths[each[0]] for name, each in runs.items()}


def _metrics(tokenize: str) -> dict[str, Any]:
    """sacrebleu's metrics by name."""
    metrics = _optional.find("sacrebleu", "text", "score").metrics
    try:
        # `force` disables sacrebleu's warning about tokenized text.
        return {"BLEU": metrics.BLEU(tokenize=tokenize, force=True), "chrF2": metrics.CHRF()}
    except RuntimeError as error:  # MeCab is not installed, as sacrebleu says
        raise ImportError(f"--tokenize {tokenize}: {error}") from None


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
    read = argparse.Namespace(data=Path(path), languages=folder.languages())
    return {part: corpus.read(read, part, "--parts")[: options.sentences] for part in options.parts}


def _held_out(folder: Folder, record: dict[str, Any], part: str, sentences: int | None) -> Pairs:
    if part != "val":
        raise WrongName("--parts", f"part {part} of the grammar in {folder.path}", ["val"])
    toy = argparse.Namespace(**record["settings"], data=None)
    train, validation = corpus.training_and_validation(toy)
    if fingerprint(line for pair in (*train, *validation) for line in pair) != record["sentences"]:
        raise ValueError(f"the grammar has changed since the run in {folder.path} was trained")
    return validation[:sentences]


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
