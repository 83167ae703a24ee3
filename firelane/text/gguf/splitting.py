"""Ways to cut a text before byte-pair encoding, by the names that GGUF files give them.

A file names the way (tokenizer.ggml.pre) and does not describe it; the patterns are those of the models' own
tokenizers (after llama.cpp's list of names, github.com/ggml-org/llama.cpp, src/llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from firelane.text.tokens.tokenizer_source import KIMI_PATTERN

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _words(numbers: str) -> str:
    return rf"{CONTRACTION}|{LEAD}\p{{L}}+|{numbers}|{SYMBOLS}|{SPACES}"


def _cased(ending: str, numbers: str) -> str:
    """Words are cut where a capital letter follows on small ones."""
    first, second = f"{LEAD}{UPPER}*{LOWER}+{ending}", f"{LEAD}{UPPER}+{LOWER}*{ending}"
    return rf"{first}|{second}|{numbers}|{SYMBOLS_SLASH}|{SPACES}"


LLAMA3 = _words(r"\p{N}{1,3}")
QWEN2 = _words(r"\p{N}")
MARKED = rf"{CONTRACTION}|{LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
SEED = rf"{CONTRACTION}|{LEAD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
O200K = _cased(f"{CONTRACTION}?", r"\p{N}{1,3}")
TEKKEN = _cased("", r"\p{N}")
DIGIT = r"\p{N}"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
)
IDEOGRAPHS = "[一-龥ࠀ-一가-퟿]+"
CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭ"
    "Ꚁ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""Letters that have a case, those that DeepSeek's first tokenizers know."""
DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{CASED}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    IDEOGRAPHS,
    DIGIT,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS, DIGIT)
PUNCTUATION = r"[\p{P}$+<=>^~|`]+"


@dataclass(frozen=True)
class Splitting:
    """patterns: applied one after the other to what those before have cut. gpt2: whether GPT-2's pattern
    follows. after: patterns for what is cut by then, where each byte has its stand-in. composed: whether the
    text is normalised (NFC) before. whole: whether a piece that is a token is taken as it is, however its
    merges would go. begins: whether a text begins with the special token, where the file does not say."""

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    after: tuple[str, ...] = ()
    composed: bool = False
    whole: bool = False
    begins: bool = False

    def normalizer(self) -> dict[str, Any] | None:
        """The normaliser in the form of tokenizer.json."""
        return {"type": "NFC"} if self.composed else None

    def pre_tokenizer(self) -> dict[str, Any]:
        level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": self.gpt2,
        }
        return {"type": "Sequence", "pretokenizers": [*_splits(self.patterns), level, *_splits(self.after)]}


def _splits(patterns: Iterable[str]) -> list[dict[str, Any]]:
    return [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns
    ]


_LLAMA3 = Splitting((LLAMA3,), whole=True, begins=True)
_WORDS = Splitting((LLAMA3,))
_GLM4 = Splitting((LLAMA3,), whole=True)
_GPT2 = Splitting(gpt2=True)
_DIGITS = Splitting((DIGIT,), gpt2=True)
_QWEN2 = Splitting((QWEN2,), composed=True)
_O200K = Splitting((O200K,))
_FALCON = Splitting((PUNCTUATION,), gpt2=True, after=(r"\p{N}+", "[0-9][0-9][0-9]"))
SPLITTINGS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _WORDS),
    **dict.fromkeys(("glm4", "glm5"), _GLM4),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "a.x-4.0", "mellum"), _GPT2),
    **dict.fromkeys(("refact", "starcoder", "command-r", "smollm", "codeshell", "exaone"), _DIGITS),
    **dict.fromkeys(("qwen2", "kormo", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _O200K),
    "deepseek-r1-qwen": Splitting((QWEN2,)),
    "stablelm2": Splitting((QWEN2,)),
    "qwen35": Splitting((MARKED,), composed=True),
    "seed-coder": Splitting((SEED,)),
    "tekken": Splitting((TEKKEN,), whole=True, begins=True),
    "deepseek-v3": Splitting(DEEPSEEK3, begins=True),
    "deepseek-llm": Splitting(DEEPSEEK),
    "deepseek-coder": Splitting(DEEPSEEK_CODER),
    "falcon": _FALCON,
    "kimi-k2": Splitting((KIMI_PATTERN,)),
}
UNNAMED = ("", "default")
"""Files of before April 2024 do not say how their model's texts are cut."""


def splitting(name: str) -> Splitting | None:
    """The way of this name, llama.cpp's usual one where a file has none; None of a name that is not known."""
    return _FALCON if name in UNNAMED else SPLITTINGS.get(name)
