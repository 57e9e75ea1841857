"""What bytes a token's spelling in a vocabulary stands for: the three alphabets that vocabularies are written in.

Knows single spellings. Does not know ids, merges or which tokens are special.
"""

from enum import StrEnum


class Spelling(StrEnum):
    """How a vocabulary writes its tokens."""

    BYTE_LEVEL = "byte_level"
    """Every byte has a printable character of its own (GPT-2's alphabet); a token need not be whole characters."""
    METASPACE = "metaspace"
    """Plain text with U+2581 for a space, and `<0x0A>` for a byte that belongs to no token (SentencePiece)."""
    WORD_PIECE = "word_piece"
    """Plain words; `##` marks a piece that continues a word (BERT)."""
    PLAIN = "plain"
    """Plain text."""


METASPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's bijection: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet.values()]
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()
"""Character -> the byte it stands for in a byte-level vocabulary."""


def spelled_bytes(spelling: Spelling, piece: str) -> bytes:
    """The bytes that an ordinary token stands for.

    >>> spelled_bytes(Spelling.BYTE_LEVEL, "Ġhé")
    b' h\\xe9'
    >>> spelled_bytes(Spelling.METASPACE, "<0xE2>")
    b'\\xe2'
    """
    if spelling is Spelling.BYTE_LEVEL:
        return _from_byte_alphabet(piece)
    if spelling is Spelling.METASPACE:
        byte = byte_of(piece)
        return added_bytes(spelling, piece) if byte is None else bytes((byte,))
    if spelling is Spelling.WORD_PIECE:
        return piece[2:].encode() if piece.startswith("##") else f" {piece}".encode()
    return piece.encode()


def added_bytes(spelling: Spelling, content: str) -> bytes:
    """The bytes of a token that stands beside the vocabulary proper (`<|im_start|>`): its own text, unescaped."""
    return (content.replace(METASPACE, " ") if spelling is Spelling.METASPACE else content).encode()


def byte_of(piece: str) -> int | None:
    """The byte that a byte-fallback token such as `<0x0A>` names; None for any other spelling."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return int(piece[3:5], 16)
        except ValueError:
            return None
    return None


def _from_byte_alphabet(piece: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[character] for character in piece])
    except KeyError:
        # A token that was put into the vocabulary as plain text; no byte-level token has such a character.
        return piece.encode()
