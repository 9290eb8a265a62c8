"""The door to a model's Tokenizer: from GGUF metadata, from a Hugging Face folder, or the byte model's.

Never guesses: a tokenizer that none of the three knows is refused by name. Called by compose.
"""

from loopwright.text.byte_tokenizer import BYTE_MODEL_CONTROLS, byte_tokenizer
from loopwright.text.folder_tokenizer import tokenizer_from_folder
from loopwright.text.gguf_tokenizer import tokenizer_from_gguf

__all__ = ["BYTE_MODEL_CONTROLS", "byte_tokenizer", "tokenizer_from_folder", "tokenizer_from_gguf"]
