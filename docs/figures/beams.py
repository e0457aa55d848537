"""Draws docs/beams.png: what the beams of docs/decoding.md did."""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

DOCS = Path(__file__).resolve().parents[1]


def main():
    page = (DOCS / "decoding.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    variables = {}
    exec(blocks[0], variables)
    found = variables["beams"](return_trace=True)
    tree = variables["tfattn"].plot.beam_tree
    figure = tree(found.trace, variables["words"], title="Four beams, step by step")
    figure.savefig(DOCS / "beams.png", dpi=150)


if __name__ == "__main__":
    main()
