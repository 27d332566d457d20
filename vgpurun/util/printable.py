"""Text from others, as it may be shown: names that users, containers and programs choose themselves."""


def printable(text: str, keep: str = "") -> str:
    """Return a text that steers no terminal and breaks no file."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else "\N{REPLACEMENT CHARACTER}" for letter in text)
