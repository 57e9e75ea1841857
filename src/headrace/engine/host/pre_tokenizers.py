r"""How text is cut into words before byte-pair merging: one entry per `tokenizer.ggml.pre` that a GGUF may name.

Knows regular expressions, in the syntax of the `tokenizers` package (Oniguruma), as the families' own `tokenizer.json`
files have them; llama.cpp, which gave the names, approximates a few. Each pattern in turn cuts every piece that the
patterns before it left into matches and what lies between them. Does not know vocabularies.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PreTokenization:
    patterns: tuple[str, ...]
    byte_level: bool = True
    """Pieces are written in the byte alphabet; False: U+2581 for spaces, and byte tokens, as in SentencePiece."""
    ignore_merges: bool = False
    """A piece that is a token is taken whole, whatever the merges say."""
    adds_bos: bool = False
    """Whether encoding puts a BOS first where the file does not say."""


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HAN_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS_AND_MARKS = rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORDS_AND_MARKS}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_JAIS2 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)"
    r"|\s{1,2}(?!\S)|\s{1}"
)
_MINICPM5 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"


def _cased_words(*, contraction: str, number: str) -> str:
    """A word is capitals and then small letters, so that camelCase falls apart (o200k and what follows it)."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{contraction}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{contraction}"
        rf"|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_GPT4O = _cased_words(contraction=f"{_CONTRACTION}?", number=r"\p{N}{1,3}")
_TEKKEN = _cased_words(contraction="", number=r"\p{N}")
_YOUTU = _cased_words(contraction=f"{_CONTRACTION}?", number=r"\p{N}")
_YOUTU_SCRIPTS = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+"
    rf"|[\x{{3105}}-\x{{312F}}]+|{_HAN_AND_KANA}"
)
_DEEPSEEK3 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SPARK25 = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
    r"|[\r\n]|\s+(?!\S)|\s+"
)
# The cased letters that DeepSeek's first tokenizer lists one range after another.
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}"
    r"\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}"
    r"\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}"
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}"
    r"\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}"
    r"\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}"
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}"
    r"\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}"
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+"
)
_DEEPSEEK_PUNCTUATION = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_LINES = r"[^\n]+|[\n]+"

_GPT2_WORDS = PreTokenization((_GPT2,))
_SINGLE_DIGITS = PreTokenization((r"\p{N}", _GPT2))
_QWEN2_WORDS = PreTokenization((_QWEN2,))
_LLAMA3_WORDS = PreTokenization((_LLAMA3,))
_LLAMA3_WHOLE = replace(_LLAMA3_WORDS, ignore_merges=True, adds_bos=True)
_GPT4O_WORDS = PreTokenization((_GPT4O,))
_DEEPSEEK3_WORDS = PreTokenization((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK3))
_BLOOM_WORDS = PreTokenization((_BLOOM,))
_BAILING_WORDS = PreTokenization((_BAILING,))
_METASPACE_LINES = PreTokenization((_LINES,), byte_level=False)

DEFAULT_PRE = "default"
"""What a file means that names nothing: files from before the key existed."""

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": PreTokenization((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    # GPT-2's own cut, and those that kept it
    "gpt-2": _GPT2_WORDS, "phi-2": _GPT2_WORDS, "mpt": _GPT2_WORDS, "olmo": _GPT2_WORDS, "jais": _GPT2_WORDS,
    "trillion": _GPT2_WORDS, "granite-docling": _GPT2_WORDS, "gigachat": _GPT2_WORDS, "a.x-4.0": _GPT2_WORDS,
    "mellum": _GPT2_WORDS, "exaone4": _GPT2_WORDS,
    # GPT-2's, with every digit alone
    "starcoder": _SINGLE_DIGITS, "refact": _SINGLE_DIGITS, "command-r": _SINGLE_DIGITS, "smollm": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS, "exaone": _SINGLE_DIGITS, "minerva-7b": _SINGLE_DIGITS, "mellum2": _SINGLE_DIGITS,
    # Llama 3's: up to three digits together; its own merges are a subset of its tokens
    "llama3": _LLAMA3_WHOLE, "llama-v3": _LLAMA3_WHOLE, "llama-bpe": _LLAMA3_WHOLE, "falcon3": _LLAMA3_WHOLE,
    "falcon-h1": _LLAMA3_WHOLE, "pixtral": _LLAMA3_WHOLE, "midm-2.0": _LLAMA3_WHOLE, "lfm2": _LLAMA3_WHOLE,
    "dbrx": _LLAMA3_WORDS, "smaug-bpe": _LLAMA3_WORDS, "glm4": _LLAMA3_WORDS, "chatglm-bpe": _LLAMA3_WORDS,
    "jais-2": PreTokenization((_JAIS2,)),
    "minicpm5": PreTokenization((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    # Qwen's: every digit alone
    "qwen2": _QWEN2_WORDS, "deepseek-r1-qwen": _QWEN2_WORDS, "kormo": _QWEN2_WORDS, "megrez": _QWEN2_WORDS,
    "stablelm2": _QWEN2_WORDS, "hunyuan": _QWEN2_WORDS, "solar-open": _QWEN2_WORDS, "grok-2": _QWEN2_WORDS,
    "qwen35": PreTokenization((_QWEN35,)),
    "laguna": PreTokenization((_LINES, _QWEN2)),
    "ufakzeka": PreTokenization((_WORDS_AND_MARKS,)),
    "seed-coder": PreTokenization((_SEED_CODER,)),
    "exaone-moe": PreTokenization((_EXAONE_MOE,)),
    "bailingmoe": _BAILING_WORDS, "bailingmoe2": _BAILING_WORDS, "llada-moe": _BAILING_WORDS,
    # OpenAI's o200k: words by case
    "gpt-4o": _GPT4O_WORDS, "llama4": _GPT4O_WORDS, "kanana2": _GPT4O_WORDS, "talkie": _GPT4O_WORDS,
    "minimax-m2": _GPT4O_WORDS,
    "tekken": PreTokenization((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "youtu": PreTokenization((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True),
    "tiny_aya": PreTokenization((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "cohere2moe": PreTokenization((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    # DeepSeek
    "deepseek-llm": PreTokenization((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_PUNCTUATION, r"\s+$", _CJK, r"\p{N}")),
    "deepseek-coder": PreTokenization((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3": _DEEPSEEK3_WORDS, "hunyuan-dense": _DEEPSEEK3_WORDS, "joyai-llm": _DEEPSEEK3_WORDS,
    "hy_v4": _DEEPSEEK3_WORDS,
    "spark2_5": PreTokenization((r"\p{N}{1,3}", _HAN_AND_KANA, _SPARK25, r"\p{N}")),
    # Others
    "falcon": PreTokenization((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "poro-chat": _BLOOM_WORDS, "bloom": _BLOOM_WORDS, "gpt3-finnish": _BLOOM_WORDS,
    "viking": PreTokenization((_BLOOM, r"\p{N}")),
    "chameleon": PreTokenization(
        (r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
         r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
        adds_bos=True,
    ),
    "superbpe": PreTokenization((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    # SentencePiece's spelling with merges of its own; lines are cut because no merge crosses one
    "gemma4": replace(_METASPACE_LINES, adds_bos=True), "sarvam-moe": _METASPACE_LINES,
}  # fmt: skip
