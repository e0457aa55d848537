"""Asks the search of the built pages: `python docs/queries.py [WORDS ...]`, after `docs/build.py`.

Without words it asks the queries below, ten in each language, and fails where fewer than nine find
their page among the first three. It needs Playwright and a Chromium, as tests of pages do.
"""

import os
import shutil
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "out" / "docs" / "search.html"
FIRST = 3
ENOUGH = 9
# From a query to the page that it is to find.
QUERIES = {
    "Chinese": {
        "残差": "zh/tutorials/residuals_and_norms",
        "热图": "zh/glossary",
        "留一": "zh/tutorials/kernel_regression_tool",
        "核函数": "zh/tutorials/kernel_regression",
        "位置编码": "zh/tutorials/positions",
        "掩码": "zh/masks",
        "束搜索": "zh/glossary",
        "交叉注意力": "zh/glossary",
        "多头": "zh/tutorials/multi_head",
        "带宽": "zh/tutorials/kernel_regression_tool",
    },
    "English": {
        "beam search": "decoding",
        "mixed precision": "mixed-precision",
        "causal mask": "masks",
        "rotary": "positions-and-biases",
        "bandwidth": "kernel-regression",
        "layer normalization": "tutorials/residuals_and_norms",
        "leave-one-out": "kernel-regression",
        "BLEU": "translation",
        "ONNX": "save-export-serve",
        "long sequences": "long-sequences",
    },
}
# The pages that a query finds, best first, as the page of results lists them.
_ASK = """query => {
  const [words, ...terms] = Search._parseQuery(query);
  return [...new Set(Search._performSearch(words, ...terms).reverse().map(([page]) => page))];
}"""


def answers(queries: list[str]) -> dict[str, list[str]]:
    """The pages that each query finds, best first."""
    from playwright import sync_api

    root = [] if getattr(os, "geteuid", lambda: 1)() else ["--no-sandbox"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=root)
        page = browser.new_page()
        page.goto(PAGE.as_uri())
        page.wait_for_function("Search.hasIndex()")
        return {query: page.evaluate(_ASK, query) for query in queries}


def main() -> int:
    """Asks, and returns 1 where too few queries find their page."""
    if len(sys.argv) > 1:
        print(*answers([" ".join(sys.argv[1:])]).popitem()[1][:10], sep="\n")
        return 0
    from playwright import sync_api

    try:
        found = answers([query for queries in QUERIES.values() for query in queries])
    except sync_api.Error as error:
        if os.environ.get("CI") or "Executable doesn't exist" not in str(error):
            raise
        print("The search was not asked: python -m playwright install chromium")
        return 0
    few = False
    for language, queries in QUERIES.items():
        right = [page in found[query][:FIRST] for query, page in queries.items()]
        few |= sum(right) < ENOUGH
        print(f"{language}: {sum(right)} of {len(right)} queries find their page")
        for (query, page), is_right in zip(queries.items(), right, strict=True):
            if not is_right:
                print(f"  {query}: {', '.join(found[query][:FIRST])}, not {page}")
    return int(few)


if __name__ == "__main__":
    sys.exit(main())
