// Attention of one tile of queries over a part of their rows' paged KV. The part is cut by place, never by what else runs,
// so the sums of a token run in one order whatever its neighbours; parts are put together in order by `merge`.
#pragma once
#include "vectors.h"

namespace loopwright {

constexpr int kBlock = 16;        // places of a block: the lanes of a vector of scores
constexpr int kPart = 512;        // places of a part
constexpr int kTileQueries = 12;  // query heads that read the same keys together
constexpr int kMaxHeadDim = 512;
constexpr int kValuesAhead = 2;   // blocks of values that are fetched before they are needed
constexpr uint32_t kOnes = 0x3f803f80;  // a pair of ones in bf16

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

// Queries of tokens of one row: `count` from `first`. They see blocks of the row up to before `last`.
struct Reader {
    const int32_t* blocks;
    int first, count, last;
};

// The queries of one tile. Its readers' blocks are the same from the part's first up to before `common`: there each key
// and each value is loaded once for all of them. What a query's sums are does not depend on who shares the loads.
struct QueryTile {
    const Query* queries;
    const Reader* readers;
    int num_queries, num_readers, common;
};

#ifdef __AVX512F__
constexpr int kScoreSums = 24, kMostScored = 12, kMostAdded = 6;  // what 32 registers hold beside what is loaded
#else
constexpr int kScoreSums = 6, kMostScored = 6, kMostAdded = 3;  // half as many registers, of half the width
#endif

// Scores of Q queries and the places of B blocks; `pairs` are the queries' [head_dim / 2][Q]. What lies `ahead` of these
// blocks is fetched meanwhile.
template <int Q, int B>
static inline void score_blocks(const HeadCache& cache, const int32_t* blocks, int ahead, const uint32_t* pairs,
                                Floats (&sums)[Q][B]) {
    const bf16 *keys[B], *next[B];
    for (int b = 0; b < B; b++) keys[b] = cache.block_keys(blocks[b]), next[b] = cache.block_keys(blocks[b + ahead]);
    for (int q = 0; q < Q; q++)
        for (int b = 0; b < B; b++) sums[q][b] = Floats{};
    for (int pair = 0; pair < cache.head_dim / 2; pair++, pairs += Q) {
        Words columns[B];
        for (int b = 0; b < B; b++) {
            __builtin_prefetch(next[b] + pair * 2 * kBlock);
            columns[b] = load_words(keys[b] + pair * 2 * kBlock);
        }
        for (int q = 0; q < Q; q++) {
            Words both = all_words(pairs[q]);
            for (int b = 0; b < B; b++) sums[q][b] = dot_pairs(sums[q][b], columns[b], both);
        }
    }
}

// A tile's scores of a part, [12][512], which become its weights in place: those in bf16 take the first half of a row.
struct Scores {
    alignas(64) float rows[kTileQueries][kPart];
    bf16* weights(int query) { return (bf16*)rows[query]; }
};

// Scores of `count` queries from `first` for the blocks `begin` … `end` - 1 of a row; `start` is the part's first.
static inline void score(const HeadCache& cache, const int32_t* blocks, int start, int begin, int end, const Query* queries,
                         int first, int count, Scores& scores) {
    alignas(64) uint32_t pairs[kMaxHeadDim / 2 * kMostScored];
    for (int done = 0; done < count && begin < end; done += kMostScored) {
        int num = count - done < kMostScored ? count - done : kMostScored;
        float(*rows)[kPart] = scores.rows + first + done;
        for (int q = 0; q < num; q++) {
            const bf16* vector = queries[first + done + q].vector;
            for (int pair = 0; pair < cache.head_dim / 2; pair++) pairs[pair * num + q] = word_at(vector + 2 * pair);
        }
        with_count<kMostScored>(num, [&](auto queries_at_once) {
            constexpr int Q = queries_at_once, B = kScoreSums / Q < 4 ? kScoreSums / Q : 4;
            int index = begin;
            for (; index + B <= end; index += B) {
                Floats found[Q][B];
                score_blocks<Q, B>(cache, blocks + index, index + 2 * B <= end ? B : 0, pairs, found);
                for (int q = 0; q < Q; q++)
                    for (int b = 0; b < B; b++) store(&rows[q][(index - start + b) * kBlock], found[q][b]);
            }
            for (; index < end; index++) {
                Floats found[Q][1];
                score_blocks<Q, 1>(cache, blocks + index, index + 1 < end, pairs, found);
                for (int q = 0; q < Q; q++) store(&rows[q][(index - start) * kBlock], found[q][0]);
            }
        });
    }
}

// Of blocks `start` … `end` - 1, scores of places that the query does not see become -infinity.
static inline void hide(const Query& query, const HeadCache& cache, const int32_t* blocks, int start, int end, int window,
                        float* scores) {
    const Ints lanes = lane_numbers();
    const Floats hidden = all(-INFINITY);
    const int own = query.own_place / kBlock;  // the first block that it may not see wholly
    for (int index = query.shown || window ? start : own > start ? own : start; index < end; index++) {
        Floats seen = load(scores + (index - start) * kBlock);
        seen = select(lanes <= query.own_place - index * kBlock, seen, hidden);
        if (query.shown) {
            Ints is_shown = ((Ints{} + query.shown[index]) >> lanes) & 1;
            seen = select(is_shown != 0, seen, hidden);
        }
        if (window) {
            Ints age = query.position - load_ints(cache.positions + (size_t)blocks[index] * kBlock);
            seen = select(age < window, seen, hidden);
        }
        store(scores + (index - start) * kBlock, seen);
    }
}

// Scores of one query to weights 2^(scale · score - top), in bf16, and their sum. Two chains at a time, so that one operation need
// not wait for the last; the room for scores is a multiple of four blocks, and weights behind the end are 0.
static inline void weigh(Scores& scores, int query, int num_blocks, float scale, float* top, float* total) {
    const float* row = scores.rows[query];
    bf16* weights = scores.weights(query);
    Floats highest = load(row), other = highest;
    int i = 1;
    for (; i + 2 <= num_blocks; i += 2) {
        highest = max(highest, load(row + i * kBlock));
        other = max(other, load(row + (i + 1) * kBlock));
    }
    if (i < num_blocks) highest = max(highest, load(row + i * kBlock));
    *top = max_of(max(highest, other)) * scale;
    const float from = *top == -INFINITY ? 0 : *top;  // nothing seen: weights are 0
    for (i = 0; i < num_blocks; i++)
        store_bf16(weights + i * kBlock, power_of_two(load(row + i * kBlock) * scale - from));
    for (; i % 4; i++) memset(weights + i * kBlock, 0, sizeof(bf16) * kBlock);
    Floats sum = {}, rest = {};
    for (i = 0; i < num_blocks; i += 4) {
        sum = dot_pairs(sum, load_words(weights + i * kBlock), all_words(kOnes));
        rest = dot_pairs(rest, load_words(weights + (i + 2) * kBlock), all_words(kOnes));
    }
    *total = sum_of(sum + rest);
}

// Has the first values of a part on their way while its scores are computed.
static inline void fetch_values(const HeadCache& cache, const int32_t* blocks, int begin, int end) {
    for (int index = begin; index < end && index < begin + kValuesAhead; index++)
        for (int at = 0; at < kBlock * cache.head_dim; at += 32) __builtin_prefetch(cache.block_values(blocks[index]) + at);
}

// sums[q] += weights · values of the blocks `begin` … `end` - 1, for V vectors of columns, weights of two places at a time. Its
// loops are unrolled by hand: left alone, the compiler keeps the sums in memory, at half the speed.
template <int Q, int V>
static inline void add_values(const HeadCache& cache, const int32_t* blocks, int begin, int end, int column,
                              const bf16* const* weights, float* const* sums) {
    Floats mine[Q][V];
#pragma GCC unroll 16
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) mine[q][v] = load(sums[q] + column + v * kLanes);
    for (int index = begin, place = 0; index < end; index++, place += kBlock) {
        const bf16* values = cache.block_values(blocks[index]) + 2 * column;
        const bf16* next = cache.block_values(blocks[index + kValuesAhead < end ? index + kValuesAhead : index]) + 2 * column;
        for (int pair = 0; pair < kBlock / 2; pair++) {
            Words row[V];
#pragma GCC unroll 16
            for (int v = 0; v < V; v++) {
                size_t at = ((size_t)pair * cache.head_dim + v * kLanes) * 2;
                __builtin_prefetch(next + at);
                row[v] = load_words(values + at);
            }
#pragma GCC unroll 16
            for (int q = 0; q < Q; q++) {
                Words both = all_words(word_at(weights[q] + place + 2 * pair));
#pragma GCC unroll 16
                for (int v = 0; v < V; v++) mine[q][v] = dot_pairs(mine[q][v], row[v], both);
            }
        }
    }
#pragma GCC unroll 16
    for (int q = 0; q < Q; q++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) store(sums[q] + column + v * kLanes, mine[q][v]);
}

static inline void add_values(const HeadCache& cache, const int32_t* blocks, int start, int begin, int end, int first,
                              int count, Scores& scores, float* const* sums) {
    if (begin == end) return;
    for (int done = 0; done < count; done += kMostAdded) {
        int num = count - done < kMostAdded ? count - done : kMostAdded;
        const bf16* weights[kMostAdded];
        for (int q = 0; q < num; q++) weights[q] = scores.weights(first + done + q) + (begin - start) * kBlock;
        float* const* targets = sums + first + done;
        with_count<kMostAdded>(num, [&](auto queries_at_once) {
            constexpr int Q = queries_at_once;
            int column = 0;
#ifdef __AVX512F__
            for (; cache.head_dim - column >= 64; column += 64)
                add_values<Q, 4>(cache, blocks, begin, end, column, weights, targets);
            for (; cache.head_dim - column >= 32; column += 32)
                add_values<Q, 2>(cache, blocks, begin, end, column, weights, targets);
#endif
            for (; column < cache.head_dim; column += 16)
                add_values<Q, 1>(cache, blocks, begin, end, column, weights, targets);
        });
    }
}

// Part `part` for the queries of a tile. Of query q: `sums[q]` [head_dim] is Σ 2^(score - top) · value, `tops[q]` the
// highest score (-infinity: nothing seen), `totals[q]` Σ 2^(score - top), all with weights in bf16.
static inline void attend_part(const HeadCache& cache, const QueryTile& tile, int part, int window, float scale,
                               float* const* sums, float* tops, float* totals) {
    Scores scores;
    const int start = part * (kPart / kBlock), num = tile.num_queries;
    const int32_t* shared = tile.readers[0].blocks;
    fetch_values(cache, shared, start, tile.readers[0].last);
    score(cache, shared, start, start, tile.common, tile.queries, 0, num, scores);
    for (int i = 0; i < tile.num_readers; i++) {
        const Reader& one = tile.readers[i];
        score(cache, one.blocks, start, tile.common, one.last, tile.queries, one.first, one.count, scores);
        for (int q = one.first; q < one.first + one.count; q++) {
            hide(tile.queries[q], cache, one.blocks, start, one.last, window, scores.rows[q]);
            weigh(scores, q, one.last - start, scale, &tops[q], &totals[q]);
            memset(sums[q], 0, sizeof(float) * cache.head_dim);
        }
    }
    add_values(cache, shared, start, start, tile.common, 0, num, scores, sums);
    for (int i = 0; i < tile.num_readers; i++) {
        const Reader& one = tile.readers[i];
        add_values(cache, one.blocks, start, tile.common, one.last, one.first, one.count, scores, sums);
    }
}

// Puts the parts of one query together: sums [num_parts][head_dim], tops and totals [num_parts] → bf16 [head_dim].
static inline void merge(const float* sums, const float* tops, const float* totals, int num_parts, int head_dim, bf16* to) {
    float top = -INFINITY, total = 0;
    for (int part = 0; part < num_parts; part++) top = tops[part] > top ? tops[part] : top;
    float shares[1024];  // of parts; a context has at most 1024 · 512 places
    for (int part = 0; part < num_parts; part++) {
        shares[part] = top == -INFINITY ? 0 : power_of_two(all(tops[part] - top))[0];
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
