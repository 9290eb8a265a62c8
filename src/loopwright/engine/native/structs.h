// What native/structs.py fills, field by field, and the calls take. Owns nothing that it points to.
#pragma once
#include "attention.h"
#include "matrices.h"

extern "C" {

struct Layer {
    loopwright::Matrix qkv, output, gate_up, down;  // gate_up: of each panel the first 16 outputs are gates, the others their ups
    const float *attention_norm, *mlp_norm;              // [hidden]
    const float *attention_post_norm, *mlp_post_norm;    // [hidden], or null
    const float *query_norm, *key_norm;                  // [head_dim], or null
    loopwright::bf16 *keys, *values;                     // the layer's cache, see attention.h
    const float* frequencies;                            // [head_dim / 2], radians a position
    float magnitude;                                     // of rotated queries and keys
    int32_t window;                                      // 0: none
};

struct Model {
    int32_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim;
    int32_t is_gelu;    // tanh-approximated gelu in place of silu
    float epsilon;
    float query_scale;  // on queries, beside head_dim ** -0.5 on scores
    const Layer* layers;
    int32_t* positions;   // of the cache's places
    size_t block_stride;  // elements from one block of a layer to the next
};

// The tokens of a step. Row r has blocks[block_starts[r]] …; token t belongs to row rows[t].
struct Step {
    int32_t num_tokens;
    const int32_t *rows, *places, *own_places, *token_positions;  // [num_tokens]
    const int32_t *blocks, *block_starts;
    const int64_t* shown_starts;  // [num_tokens] into `shown`, or -1: all; null: no masks at all
    const uint16_t* shown;        // by block, bit i for place i
};
}
