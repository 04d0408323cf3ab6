"""Characters that every encoding takes."""


def whole_characters(text: str) -> str:
    """Text without halves of characters (lone surrogates, from JSON or a broken terminal), which no encoding takes."""
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
