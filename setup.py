"""The long description of the package: README.md, so that it reads where its files are not.

With the `url` of `[publisher]` in setup.cfg, relative links and pictures lead to the files of this
version there. While it is empty, links become their words, and pictures are left out.
"""

import configparser
import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
LINK = re.compile(r"(:\n\n)?(!?)\[([^][]*)\]\((?![a-z]+:|#)([^()\s]+)\)")


def long_description(text: str, url: str, version: str) -> str:
    """The README's text with its relative links made absolute, or without them.

    Args:
        text: Markdown.   url: of the repository's page, or empty.   version: its tag is `vVERSION`.
    """

    def absolute(found):
        before, picture, words, path = found.groups("")
        return f"{before}{picture}[{words}]({url}/{'raw' if picture else 'blob'}/v{version}/{path})"

    def plain(found):
        before, picture, words, _ = found.groups("")
        return ("." if before else "") if picture else f"{before}{words}"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(absolute if url else plain, text))


if __name__ == "__main__":
    config = configparser.ConfigParser()
    config.read(HERE / "setup.cfg", encoding="utf-8")
    publisher = config["publisher"]
    package = (HERE / "tfattn" / "__init__.py").read_text(encoding="utf-8")
    setup(
        long_description=long_description(
            (HERE / "README.md").read_text(encoding="utf-8"),
            publisher["url"],
            re.search('__version__ = "(.+)"', package)[1],
        ),
        long_description_content_type="text/markdown",
        **{name: value for name, value in publisher.items() if value},
    )
