"""A page in which a trained translator runs, `live/grammar.html`, for pages that embed it."""

from pathlib import Path


def _write(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    import tfattn

    folder = Path(app.outdir) / "live"
    folder.mkdir(exist_ok=True)
    _, held_out = tfattn.data.split_pairs(tfattn.data.toy_translation(8_000))
    examples = [source for source, _ in held_out[:5]]
    tfattn.convert.to_page(*tfattn.load_example("grammar"), folder / "grammar.html", examples)


def setup(app):
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}
