"""Ways to cut a text before byte-pair encoding, by the names that GGUF files give them.

A file names the way (tokenizer.ggml.pre) and does not describe it; the patterns are those of the models' own
tokenizers (after llama.cpp's list of names, github.com/ggml-org/llama.cpp, src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firelane.text.tokenizer_source import KIMI_PATTERN

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


@dataclass(frozen=True)
class Splitting:
    """patterns: applied one after the other to what those before have cut. gpt2: whether GPT-2's pattern
    follows. composed: whether the text is normalised (NFC) before. whole: whether a piece that is a token is
    taken as it is, however its merges would go. begins: whether a text begins with the special token, where
    the file does not say."""

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    composed: bool = False
    whole: bool = False
    begins: bool = False

    def normalizer(self) -> dict[str, Any] | None:
        """As the tokenizers library has it in tokenizer.json."""
        return {"type": "NFC"} if self.composed else None

    def pre_tokenizer(self) -> dict[str, Any]:
        splits = [
            {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
            for p in self.patterns
        ]
        level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": self.gpt2,
        }
        return {"type": "Sequence", "pretokenizers": [*splits, level]}


_LLAMA3 = Splitting((LLAMA3,), whole=True, begins=True)
_WORDS = Splitting((LLAMA3,))
_GPT2 = Splitting(gpt2=True)
_DIGITS = Splitting((DIGIT,), gpt2=True)
_QWEN2 = Splitting((QWEN2,), composed=True)
_O200K = Splitting((O200K,))
SPLITTINGS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _WORDS),
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
    "kimi-k2": Splitting((KIMI_PATTERN,)),
}
