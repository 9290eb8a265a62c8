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

struct Tokens {
    const int32_t* ids;
    int32_t count;
};

// The `count` most probable tokens of a row, of those that `allowed` has bits for, into ids and logprobs.
struct Listing {
    int32_t count, has_entropy;
    const uint8_t* allowed;  // or null
    int32_t* ids;
    float* logprobs;
    double normalizer, entropy;  // written: of the allowed tokens
};

// What is asked of one row of logits. From the penalties to min_p they are the fields of core.calls.Sampling.
struct Question {
    int32_t is_sampled, is_adjusted, is_processed, num_top, top_k;  // adjusted: it has penalties, biases or `allowed`
    double repetition_penalty, presence_penalty, frequency_penalty, temperature, top_p, min_p;
    uint64_t seed;
    int64_t position;
    Tokens seen, generated, sampled;  // `sampled` counts as generated too
    const int32_t* biased;
    const double* biases;
    int32_t num_biases;
    const uint8_t* allowed;  // bits of the vocabulary, or null
    Listing* listings;
    int32_t num_listings;
    int32_t has_draft, draft;  // rows behind it, up to one without a draft, are only answered if this is the row's token
};

struct Answer {
    int32_t is_answered, is_finite, token, num_top;
    double normalizer, logprob;
    int32_t top_ids[20];
    double top_logprobs[20];
};
}
