"""Owns what llguidance knows of a model's tokens: their bytes, and how its tokenizer writes a text. Never a grammar.

Made by the compiler, once for a model. Control tokens are unknown to it, so that no grammar can let one through; the
end of a text is a token of its own, one beyond the model's.
"""

from llguidance import LLTokenizer, TokenizerWrapper

from loopwright.text.tokenizer import Tokenizer


class Vocabulary:
    """The tokens of one model. `vocab_size` may be above the tokenizer's: those ids have no text."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Takes about 0.3 s for 50,000 tokens."""
        self.vocab_size = vocab_size
        self.end_id = vocab_size
        self.num_mask_bytes = -(-vocab_size // 8)
        marks = ["1" if text else "0" for text in tokenizer.token_bytes]  # control tokens have no text
        self.text_bits = int("".join(reversed(marks)), 2)  # bit i: token i has text
        self.tokens = LLTokenizer(TokenizerWrapper(_Words(tokenizer, vocab_size)))


class _Words:
    """What TokenizerWrapper asks for, by its names."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        num_missing = vocab_size - len(tokenizer.token_bytes)
        self.tokens = (*tokenizer.token_bytes, *[b""] * num_missing, b"<end>")
        self.eos_token_id = vocab_size
        self.special_token_ids = [*sorted(tokenizer.control_ids), vocab_size]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())
