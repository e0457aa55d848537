"""Search in two languages: English as Sphinx has it, and Chinese in pairs of characters.

Chinese has no spaces. Each two neighboring characters of a text are a word of the index, and so are
those of a query, all of which a page must have: 残差连接 gives 残差, 差连 and 连接. This needs no
dictionary, and finds any word of two characters or more.

Sphinx's index says which pages have a word. Here it also says which have it 3, 5, ... or 60 times,
as the words `word~3`, `word~5`, ..., for `search.js` to rank them.
"""

import re
from collections import Counter
from pathlib import Path

from sphinx.search.en import SearchEnglish

_RUN = re.compile(r"[\u3400-\u9fff]+|[^\W\u3400-\u9fff]+")
_TIMES = (3, 5, 8, 12, 18, 27, 40, 60)
_counts = Counter()  # of the page that is read


class SearchBoth(SearchEnglish):
    """English and Chinese."""

    js_splitter_code = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")

    def split(self, input):
        """The words of a text."""
        words = [word for run in _RUN.findall(input) for word in _words(run)]
        for word in map(self.stem, words[:]):
            _counts[word] += 1
            if _counts[word] in _TIMES:
                words.append(f"{word}~{_counts[word]}")
        return words


def _words(run):
    if "\u3400" <= run[0] <= "\u9fff" and len(run) > 1:
        return [run[place : place + 2] for place in range(len(run) - 1)]
    return [run]


def setup(app):
    app.add_search_language(SearchBoth)  # in place of English
    app.connect("doctree-resolved", lambda app, doctree, docname: _counts.clear())
    return {"parallel_read_safe": True}
