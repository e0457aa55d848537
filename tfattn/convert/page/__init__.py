"""Export of a translator to a page that translates and shows how, in a browser."""
