"""The structs of decoder.cpp, field by field. Never owns the memory they point to. Filled by packing and decoder."""

import ctypes
from ctypes import Structure, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, ClassVar, Literal, TypeAlias

WeightType: TypeAlias = Literal["bf16", "q8", "q4", "q4_0"]
"""q4 has an offset for each group, as GGUF's Q4_1; q4_0 has that of Q4_0, eight levels below zero."""

KINDS: dict[WeightType, int] = {"bf16": 0, "q8": 1, "q4": 2, "q4_0": 2}


class Matrix(Structure):
    """`Matrix` of matrices.h: addresses of packed weights."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("kind", c_int32),
        ("num_outputs", c_int32),
        ("num_inputs", c_int32),
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("bias", c_void_p),
    ]


class Layer(Structure):
    """`Layer` of decoder.cpp."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm")),
        *((name, c_void_p) for name in ("query_norm", "key_norm", "keys", "values", "frequencies")),
        ("magnitude", c_float),
        ("window", c_int32),
    ]


class Model(Structure):
    """`Model` of decoder.cpp."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *(
            (name, c_int32)
            for name in ("num_layers", "hidden", "intermediate", "num_heads", "num_kv_heads", "head_dim")
        ),
        ("is_gelu", c_int32),
        ("epsilon", c_float),
        ("query_scale", c_float),
        ("layers", ctypes.POINTER(Layer)),
        ("positions", c_void_p),
        ("block_stride", c_size_t),
    ]


class Step(Structure):
    """`Step` of decoder.cpp."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("num_tokens", c_int32),
        *((name, c_void_p) for name in ("rows", "places", "own_places", "token_positions")),
        *((name, c_void_p) for name in ("blocks", "block_starts", "shown_starts", "shown")),
    ]


class Tokens(Structure):
    """`Tokens` of structs.h: an address of int32, and how many."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [("ids", c_void_p), ("count", c_int32)]


class Listing(Structure):
    """`Listing` of structs.h."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        ("count", c_int32),
        ("has_entropy", c_int32),
        *((name, c_void_p) for name in ("allowed", "ids", "logprobs")),
        ("normalizer", c_double),
        ("entropy", c_double),
    ]


class Question(Structure):
    """`Question` of structs.h."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_int32) for name in ("is_sampled", "is_adjusted", "is_processed", "num_top", "top_k")),
        *((name, c_double) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")),
        *((name, c_double) for name in ("temperature", "top_p", "min_p")),
        ("seed", c_uint64),
        ("position", c_int64),
        *((name, Tokens) for name in ("seen", "generated", "sampled")),
        ("biased", c_void_p),
        ("biases", c_void_p),
        ("num_biases", c_int32),
        ("allowed", c_void_p),
        ("listings", c_void_p),
        *((name, c_int32) for name in ("num_listings", "has_draft", "draft")),
    ]


class Answer(Structure):
    """`Answer` of structs.h."""

    _fields_: ClassVar[list[tuple[str, Any]]] = [
        *((name, c_int32) for name in ("is_answered", "is_finite", "token", "num_top")),
        ("normalizer", c_double),
        ("logprob", c_double),
        ("top_ids", c_int32 * 20),
        ("top_logprobs", c_double * 20),
    ]
