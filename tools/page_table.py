"""A table of a page that a tool writes, between `<!-- begin NAME -->` and `<!-- end NAME -->`."""

import re


def replaced(page: str, name: str, table: str) -> str:
    """Returns a page with another table.

    Args:
      page: The page's text.
      name: The table's name.
      table: Its lines, each with its end.
    """
    block = rf"(?<=<!-- begin {name} -->\n).*?(?=<!-- end {name} -->)"
    return re.sub(block, lambda _: table, page, flags=re.S)
