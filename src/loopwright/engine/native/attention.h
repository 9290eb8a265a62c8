// Attention of one query tile over part of a row's paged KV. The part is cut by place, never by what else runs, so the
// sums of a token run in one order whatever its neighbours; parts are put together in order by `merge`.
#pragma once
#include "vectors.h"

namespace loopwright {

constexpr int kBlock = 16;        // places of a block: the lanes of a vector of scores
constexpr int kPart = 512;        // places of a part
constexpr int kTileQueries = 12;  // query heads that read the same keys together

// One KV head's part of one layer's cache.
//   keys    of a block: [num_kv_heads][head_dim / 2][16 places][2]: a pair of one place is a lane, so scores of a
//           block come out as a vector
//   values  of a block: [num_kv_heads][8 pairs of places][head_dim][2]: always finite. A token whose values are not gets
//           keys of NaN in their place: who sees it gets NaN, and who does not adds 0 · 0
//   positions [num_blocks · 16]: of the tokens whose KV the places hold
struct HeadCache {
    const bf16 *keys, *values;
    const int32_t* positions;
    size_t block_stride;  // elements from one block to the next
    int head_dim;
    const bf16* block_keys(int32_t block) const { return keys + block * block_stride; }
    const bf16* block_values(int32_t block) const { return values + block * block_stride; }
};

// What one query sees.
struct Query {
    const bf16* vector;     // [head_dim], rotated
    int32_t own_place;      // it sees places up to its own
    int32_t position;
    const uint16_t* shown;  // by block, bit i for place i; null: all
};

// `after` is the block that comes next: its keys are fetched while these are used.
template <int Q>
static inline void score_block(const HeadCache& cache, int32_t block, int32_t after, const Query* queries, Floats* scores) {
    const bf16 *keys = cache.block_keys(block), *next = cache.block_keys(after);
    Floats sums[Q] = {};
    for (int pair = 0; pair < cache.head_dim / 2; pair++) {
        __builtin_prefetch(next + pair * 2 * kBlock);
        Words column = load_words(keys + pair * 2 * kBlock);
        for (int q = 0; q < Q; q++)
            sums[q] = dot_pairs(sums[q], column, all_words(word_at(queries[q].vector + 2 * pair)));
    }
    for (int q = 0; q < Q; q++) scores[q] = sums[q];
}

static inline void score_block(const HeadCache& cache, int32_t block, int32_t after, const Query* queries, int count,
                               Floats* scores) {
    switch (count) {
        case 1: return score_block<1>(cache, block, after, queries, scores);
        case 2: return score_block<2>(cache, block, after, queries, scores);
        case 3: return score_block<3>(cache, block, after, queries, scores);
        case 4: return score_block<4>(cache, block, after, queries, scores);
        case 5: return score_block<5>(cache, block, after, queries, scores);
        default: return score_block<6>(cache, block, after, queries, scores);
    }
}

// Lanes that a query does not see become -infinity.
static inline Floats hide(Floats scores, const Query& query, const HeadCache& cache, int index, int32_t block, int window) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Floats hidden = all(-INFINITY);
    int last = query.own_place - index * kBlock;
    if (last < kBlock - 1) scores = lanes <= last ? scores : hidden;
    if (query.shown) {
        Ints is_shown = ((Ints{} + query.shown[index]) >> lanes) & 1;
        scores = is_shown != 0 ? scores : hidden;
    }
    if (window) {
        Ints age = query.position - *(const IntsAt*)(cache.positions + (size_t)block * kBlock);
        scores = age < window ? scores : hidden;
    }
    return scores;
}

// sums[q] += weights · values of a block, weights of two places at a time; `next` is fetched meanwhile.
template <int Q, int V>
static inline void add_values(const bf16* values, const bf16* next, int head_dim, const bf16* const* weights,
                              float* const* sums) {
    Floats mine[Q][V];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) mine[q][v] = load(sums[q] + v * kLanes);
    for (int pair = 0; pair < kBlock / 2; pair++) {
        Words row[V];
        for (int v = 0; v < V; v++) {
            size_t at = ((size_t)pair * head_dim + v * kLanes) * 2;
            __builtin_prefetch(next + at);
            row[v] = load_words(values + at);
        }
        for (int q = 0; q < Q; q++) {
            Words both = all_words(word_at(weights[q] + 2 * pair));
            for (int v = 0; v < V; v++) mine[q][v] = dot_pairs(mine[q][v], row[v], both);
        }
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) store(sums[q] + v * kLanes, mine[q][v]);
}

template <int V>
static inline void add_values(const bf16* values, const bf16* next, int head_dim, int count,
                              const bf16* const* weights, float* const* sums) {
    switch (count) {
        case 1: return add_values<1, V>(values, next, head_dim, weights, sums);
        case 2: return add_values<2, V>(values, next, head_dim, weights, sums);
        case 3: return add_values<3, V>(values, next, head_dim, weights, sums);
        case 4: return add_values<4, V>(values, next, head_dim, weights, sums);
        case 5: return add_values<5, V>(values, next, head_dim, weights, sums);
        default: return add_values<6, V>(values, next, head_dim, weights, sums);
    }
}

// Part `part` of `blocks` for `count` ≤ 12 queries. Of query q: `sums[q]` [head_dim] is Σ e^(score - top) · value,
// `tops[q]` the highest score (-infinity: nothing seen), `totals[q]` Σ e^(score - top), all with weights in bf16.
static inline void attend_part(const HeadCache& cache, const int32_t* blocks, int part, const Query* queries, int count,
                               int window, float scale, float* const* sums, float* tops, float* totals) {
    alignas(64) float scores[kTileQueries][kPart];
    alignas(64) bf16 shares[kTileQueries][kPart];
    int end = 0;  // places that any query may see, from the part's first
    for (int q = 0; q < count; q++) end = queries[q].own_place + 1 > end ? queries[q].own_place + 1 : end;
    int first = part * (kPart / kBlock), last = (end + kBlock - 1) / kBlock;
    if (last > first + kPart / kBlock) last = first + kPart / kBlock;
    for (int start = 0; start < count; start += 6) {
        int num = count - start < 6 ? count - start : 6;
        for (int index = first; index < last; index++) {
            Floats found[6];
            int32_t after = blocks[index + 1 < last ? index + 1 : index];
            score_block(cache, blocks[index], after, queries + start, num, found);
            for (int q = 0; q < num; q++)
                store(&scores[start + q][(index - first) * kBlock],
                      hide(found[q] * scale, queries[start + q], cache, index, blocks[index], window));
        }
    }
    int num_blocks = last - first;
    for (int q = 0; q < count; q++) {
        Floats highest = all(-INFINITY);
        for (int i = 0; i < num_blocks; i++) highest = max(highest, load(&scores[q][i * kBlock]));
        float top = max_of(highest);
        Floats total = {};
        for (int i = 0; i < num_blocks; i++) {
            Floats seen = load(&scores[q][i * kBlock]);
            Halves weight = narrow(top == -INFINITY ? Floats{} : exp_of(seen - top));
            total += widen(weight);
            *(HalvesAt*)&shares[q][i * kBlock] = weight;
        }
        tops[q] = top;
        totals[q] = sum_of(total);
        memset(sums[q], 0, sizeof(float) * cache.head_dim);
    }
    for (int column = 0; column < cache.head_dim;) {
        int left = cache.head_dim - column, width = left >= 64 ? 64 : left >= 32 ? 32 : 16;
        for (int start = 0; start < count; start += 6) {
            int num = count - start < 6 ? count - start : 6;
            for (int i = 0; i < num_blocks; i++) {
                const bf16* values = cache.block_values(blocks[first + i]) + 2 * column;
                const bf16* next = cache.block_values(blocks[first + (i + 1 < num_blocks ? i + 1 : i)]) + 2 * column;
                const bf16* weights[6];
                float* targets[6];
                for (int q = 0; q < num; q++) {
                    weights[q] = &shares[start + q][i * kBlock];
                    targets[q] = sums[start + q] + column;
                }
                if (width == 64) add_values<4>(values, next, cache.head_dim, num, weights, targets);
                else if (width == 32) add_values<2>(values, next, cache.head_dim, num, weights, targets);
                else add_values<1>(values, next, cache.head_dim, num, weights, targets);
            }
        }
        column += width;
    }
}

// Puts the parts of one query together: sums [num_parts][head_dim], tops and totals [num_parts] → bf16 [head_dim].
static inline void merge(const float* sums, const float* tops, const float* totals, int num_parts, int head_dim, bf16* to) {
    float top = -INFINITY, total = 0;
    for (int part = 0; part < num_parts; part++) top = tops[part] > top ? tops[part] : top;
    float shares[1024];  // of parts; a context has at most 1024 · 512 places
    for (int part = 0; part < num_parts; part++) {
        shares[part] = top == -INFINITY ? 0 : exp_of(all(tops[part] - top))[0];
        total += shares[part] * totals[part];
    }
    float inverse = total > 0 || total != total ? 1 / total : 0;
    for (int column = 0; column < head_dim; column += kLanes) {
        Floats sum = {};
        for (int part = 0; part < num_parts; part++)
            if (shares[part] != 0) sum += shares[part] * load(sums + (size_t)part * head_dim + column);
        store_bf16(to + column, sum * inverse);
    }
}

}  // namespace loopwright
