"""Export of a translator to a page that translates and shows how, in a browser."""

from tfattn.convert.page.page import to_page

__all__ = ["to_page"]
