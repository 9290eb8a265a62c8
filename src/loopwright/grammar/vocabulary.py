"""Owns what llguidance knows of a model's tokens: their bytes, and how its tokenizer writes a text. Never a grammar.

Made by the compiler, once for a model. Control tokens have no text, so that no grammar of a text can let one through;
only a grammar of calls may name those that begin and divide calls. The end of a text is a token of its own, one beyond
the model's.
"""

from llguidance import LLTokenizer, TokenizerWrapper

from loopwright.text.tokenizer import Tokenizer


class Vocabulary:
    """The tokens of one model. `vocab_size` may be above the tokenizer's: those ids have no text. It may be below: the
    model cannot write what is beyond."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Takes about 0.3 s for 50,000 tokens."""
        self.vocab_size = vocab_size
        self.end_id = vocab_size
        self.num_mask_bytes = -(-vocab_size // 8)
        marks = ["1" if text else "0" for text in tokenizer.token_bytes[:vocab_size]]  # control tokens have no text
        self.text_bits = int("".join(reversed(marks)), 2)  # bit i: token i has text
        self.call_marks = {text: one for text, one in tokenizer.call_marks.items() if one < vocab_size}
        self.tokens = LLTokenizer(TokenizerWrapper(_Words(tokenizer, vocab_size)))


class _Words:
    """What TokenizerWrapper asks for, by its names."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        known = tokenizer.bytes_with_marks[:vocab_size]  # marks are special: what they are written as is no text
        self.tokens = (*known, *[b""] * (vocab_size - len(known)), b"<end>")
        self.eos_token_id = vocab_size
        self.special_token_ids = [*sorted(one for one in tokenizer.control_ids if one < vocab_size), vocab_size]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())
