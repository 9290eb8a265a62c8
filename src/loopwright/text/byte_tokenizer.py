"""The byte model's tokenizer, made in code. Never read from a file. Called through `load_tokenizer`."""

import re
from dataclasses import dataclass, replace

from loopwright.text import byte_level
from loopwright.text.gguf_tokenizer import byte_level_bpe
from loopwright.text.pre_tokenizers import Cut
from loopwright.text.tokenizer import Encoder, LibraryEncoder, Tokenizer, end_ids

BYTE_MODEL_CONTROLS = {"<|bos|>": 256, "<|eos|>": 257, "<|im_start|>": 258, "<|im_end|>": 259}


def byte_tokenizer(chat_template: str = "") -> Tokenizer:
    """Ids 0 … 255 are bytes, then the control tokens of BYTE_MODEL_CONTROLS."""
    vocabulary = {character: byte for byte, character in byte_level.CHARACTERS.items()}
    return Tokenizer(
        encoder=LibraryEncoder(byte_level_bpe(vocabulary, merges=[], cut=Cut(()))),
        token_bytes=(*(bytes([byte]) for byte in range(256)), *(b"" for _ in BYTE_MODEL_CONTROLS)),
        controls=BYTE_MODEL_CONTROLS,
        eos_ids=end_ids([BYTE_MODEL_CONTROLS["<|eos|>"]], BYTE_MODEL_CONTROLS),
        bos_id=BYTE_MODEL_CONTROLS["<|bos|>"],
        add_bos=True,
        chat_template=chat_template,
    )


PLAIN_CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


_WORD = re.compile(r" w([1-9][0-9]{2,9})")


@dataclass(frozen=True, slots=True)
class _WordEncoder:
    """Bytes, but for words of the vocabulary: what such a model has written is as many tokens when it is read again."""

    plain: Encoder
    first: int
    end: int  # one past the last word's id

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        done = 0
        for word in _WORD.finditer(text):
            if self.first <= (token_id := int(word[1])) < self.end:
                ids += [*self.plain.encode(text[done : word.start()]), token_id]
                done = word.end()
        return ids + self.plain.encode(text[done:])


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """For a model of random weights: the byte tokenizer, whose further ids up to `vocab_size` are words like ` w1234`.
    Chats are written out plainly, so that all routes can be measured."""
    plain = byte_tokenizer()
    words = tuple(f" w{token_id}".encode() for token_id in range(plain.vocab_size, vocab_size))
    return replace(
        plain,
        encoder=_WordEncoder(plain.encoder, plain.vocab_size, vocab_size),
        token_bytes=(*plain.token_bytes, *words),
        chat_template=PLAIN_CHAT,
    )
