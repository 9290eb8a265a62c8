// Matrices times vectors: weights packed in panels of 32 outputs, sums in one order whatever the number of vectors.
//
// A lane is an output, so no sum runs across lanes; products are added in the order of the inputs. Therefore a vector's
// result has the same bits alone and among others: what is computed together is only ever a matter of speed.
#pragma once
#include "vectors.h"

namespace loopwright {

constexpr int kPanel = 32;  // outputs of a panel: two vectors
constexpr int kGroup = 32;  // inputs that share a scale
constexpr int kStepBytes = 4 * kPanel;  // of weights, in a step of inputs
constexpr int kFetchedAhead = 4096;     // bytes

enum Kind : int32_t { kBf16 = 0, kBytes = 1, kNibbles = 2 };

// weights: [num_outputs / 32][steps of inputs][32 outputs][inputs of a step], padded with zeros to whole panels.
//   kBf16     2 inputs a step, bf16
//   kBytes    4 inputs a step, a byte each: 128 + level; value = scale · level
//   kNibbles  8 inputs a step, 4 bytes: inputs 0 … 3 in the low nibbles, 4 … 7 in the high; value = scale · level + offset
// scales, offsets: float16 [num_outputs / 32][num_inputs / 32][32 outputs].
struct Matrix {
    Kind kind;
    int32_t num_outputs, num_inputs;
    const void* weights;
    const uint16_t* scales;
    const uint16_t* offsets;
    const float* bias;  // [num_outputs, padded], or null
    int num_panels() const { return (num_outputs + kPanel - 1) / kPanel; }
    size_t panel_bytes() const { return (size_t)num_inputs * kPanel * 2 >> kind; }
};

// Vectors as a matrix wants them: bf16, or bytes with a scale and a sum of levels for each group of 32.
struct Inputs {
    bf16* values;     // [num_vectors][num_inputs]
    int8_t* levels;   // [num_vectors][num_inputs]
    float* scales;    // [num_vectors][num_inputs / 32]
    int32_t* sums;    // [num_vectors][num_inputs / 32]
};

// Levels of -127 … 127, to nearest, by the largest of each group.
static inline void to_levels(const Inputs& inputs, int vector, int num_inputs) {
    const bf16* values = inputs.values + (size_t)vector * num_inputs;
    int8_t* levels = inputs.levels + (size_t)vector * num_inputs;
    int num_groups = num_inputs / kGroup;
    for (int group = 0; group < num_groups; group++) {
        Floats low = load_bf16(values + group * kGroup), high = load_bf16(values + group * kGroup + kLanes);
        float largest = max_of(max(max(low, -low), max(high, -high)));
        float inverse = largest > 0 ? 127.0f / largest : 0.0f;
        Ints sum = {};
        for (int i = 0; i < 2; i++) {
            Floats scaled = (i ? high : low) * inverse + 12582912.0f;  // 1.5 · 2^23: rounded in its last bits
            Ints whole = (Ints)scaled - 0x4b400000;
            store_bytes(levels + group * kGroup + i * kLanes, whole);
            sum += whole;
        }
        inputs.scales[(size_t)vector * num_groups + group] = largest / 127.0f;
        inputs.sums[(size_t)vector * num_groups + group] = sum_of(sum);
    }
}

// Weights that a thread will multiply with soon. They are fetched from memory while it multiplies others, `pace` bytes for each
// step of inputs: so memory works while many vectors keep the multipliers busy, and not in turns with them.
struct Ahead {
    const char* from;
    int pace;
    void fetch() {
        __builtin_prefetch(from, 0, 2);  // to the second-level cache
        __builtin_prefetch(from + 64, 0, 2);
        from += pace;
    }
};

// A tile's sums, [vectors][halves of a panel]. Each of the products below is a function of its own that takes and gives them
// back, so that they stay in registers, whatever it is called from.
template <int N, int M>
struct Sums {
    Floats of[M][N];
};

template <int N, int M>
static __attribute__((noinline)) void times_bf16(const Matrix& matrix, int panel, int part, const Inputs& inputs, int first,
                                               Ahead ahead, Sums<N, M>& kept) {
    Sums<N, M> sums = kept;
    const int num_steps = matrix.num_inputs / 2;
    const uint32_t* weights = (const uint32_t*)matrix.weights + (size_t)panel * num_steps * kPanel + part * kLanes;
    const bf16* values = inputs.values + (size_t)first * matrix.num_inputs;
    for (int step = 0; step < num_steps; step++, weights += kPanel) {
        ahead.fetch();
        Words columns[N];
        for (int n = 0; n < N; n++) columns[n] = load_words(weights + n * kLanes);
        for (int m = 0; m < M; m++) {
            Words pair = all_words(word_at(values + (size_t)m * matrix.num_inputs + 2 * step));
            for (int n = 0; n < N; n++) sums.of[m][n] = dot_pairs(sums.of[m][n], columns[n], pair);
        }
    }
    kept = sums;
}

template <int N, int M>
static __attribute__((noinline)) void times_bytes(const Matrix& matrix, int panel, int part, const Inputs& inputs, int first,
                                               Ahead ahead, Sums<N, M>& kept) {
    Sums<N, M> sums = kept;
    const int num_groups = matrix.num_inputs / kGroup, width = matrix.num_inputs;
    const uint32_t* weights = (const uint32_t*)matrix.weights + (size_t)panel * (width / 4) * kPanel + part * kLanes;
    const uint16_t* scales = matrix.scales + (size_t)panel * num_groups * kPanel + part * kLanes;
    for (int group = 0; group < num_groups; group++, scales += kPanel) {
        Ints levels[M][N];
        for (int m = 0; m < M; m++) {
            Ints offset = Ints{} - 128 * inputs.sums[(size_t)(first + m) * num_groups + group];
            for (int n = 0; n < N; n++) levels[m][n] = offset;
        }
        for (int step = 0; step < kGroup / 4; step++, weights += kPanel) {
            ahead.fetch();
            for (int n = 0; n < N; n++) {
                Words column = load_words(weights + n * kLanes);
                for (int m = 0; m < M; m++) {
                    const int8_t* four = inputs.levels + (size_t)(first + m) * width + group * kGroup + 4 * step;
                    levels[m][n] = dot_bytes(levels[m][n], column, all_words(word_at(four)));
                }
            }
        }
        for (int n = 0; n < N; n++) {
            Floats scale = load_fp16(scales + n * kLanes);
            for (int m = 0; m < M; m++)
                sums.of[m][n] += converted<Floats>(levels[m][n]) *
                              (scale * inputs.scales[(size_t)(first + m) * num_groups + group]);
        }
    }
    kept = sums;
}

template <int N, int M>
static __attribute__((noinline)) void times_nibbles(const Matrix& matrix, int panel, int part, const Inputs& inputs, int first,
                                               Ahead ahead, Sums<N, M>& kept) {
    Sums<N, M> sums = kept;
    const int num_groups = matrix.num_inputs / kGroup, width = matrix.num_inputs;
    const uint32_t* weights = (const uint32_t*)matrix.weights + (size_t)panel * (width / 8) * kPanel + part * kLanes;
    const size_t at = (size_t)panel * num_groups * kPanel + part * kLanes;
    const uint16_t *scales = matrix.scales + at, *offsets = matrix.offsets + at;
    for (int group = 0; group < num_groups; group++, scales += kPanel, offsets += kPanel) {
        Ints levels[M][N];
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) levels[m][n] = Ints{};
        for (int step = 0; step < kGroup / 8; step++, weights += kPanel) {
            ahead.fetch();
            for (int n = 0; n < N; n++) {
                Words both = load_words(weights + n * kLanes);
                Words low = both & 0x0f0f0f0f, high = (both >> 4) & 0x0f0f0f0f;
                for (int m = 0; m < M; m++) {
                    const int8_t* eight = inputs.levels + (size_t)(first + m) * width + group * kGroup + 8 * step;
                    levels[m][n] = dot_bytes(levels[m][n], low, all_words(word_at(eight)));
                    levels[m][n] = dot_bytes(levels[m][n], high, all_words(word_at(eight + 4)));
                }
            }
        }
        for (int n = 0; n < N; n++) {
            Floats scale = load_fp16(scales + n * kLanes), offset = load_fp16(offsets + n * kLanes);
            for (int m = 0; m < M; m++) {
                size_t place = (size_t)(first + m) * num_groups + group;
                Floats dot = converted<Floats>(levels[m][n]) * scale;
                sums.of[m][n] += (dot + offset * (float)inputs.sums[place]) * inputs.scales[place];
            }
        }
    }
    kept = sums;
}

#ifdef __AVX512F__
constexpr int kMostTimes = 12, kMostLevelTimes = 6;  // vectors of a tile: what 32 registers hold beside what is loaded
#else
constexpr int kMostTimes = 4, kMostLevelTimes = 4;
#endif

// M vectors from `first` times one panel: write(vector, sums of its first 16 outputs, sums of its other 16).
template <int M, class Write>
static inline void times_tile(const Matrix& matrix, int panel, const Inputs& inputs, int first, Ahead ahead, Write write) {
#ifdef __AVX512F__
    constexpr int N = 2;
#else
    constexpr int N = M > 2 ? 1 : 2;  // half as many registers, of half the width
#endif
    Sums<N, M> sums[2 / N];
    for (int part = 0; part < 2; part += N) {
        Sums<N, M>& mine = sums[part / N];
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++)
                mine.of[m][n] = matrix.bias ? load(matrix.bias + panel * kPanel + (part + n) * kLanes) : Floats{};
        switch (matrix.kind) {
            case kBf16: times_bf16<N, M>(matrix, panel, part, inputs, first, ahead, mine); break;
            default:
                if constexpr (M <= kMostLevelTimes) {
                    if (matrix.kind == kBytes) times_bytes<N, M>(matrix, panel, part, inputs, first, ahead, mine);
                    else times_nibbles<N, M>(matrix, panel, part, inputs, first, ahead, mine);
                }
        }
    }
    for (int m = 0; m < M; m++) write(first + m, sums[0].of[m][0], sums[1 / N].of[m][1 % N]);
}

// All vectors from `first` to before `end` times one panel: in as few tiles as registers allow, as equal as can be, since a small
// tile takes about as long as one that keeps the multipliers busy. The thread's next panel may be that `next` panels on.
template <class Write>
static inline void times_panel(const Matrix& matrix, int panel, int next, const Inputs& inputs, int first, int end,
                               Write write) {
    const int most = matrix.kind == kBf16 ? kMostTimes : kMostLevelTimes, num_tiles = (end - first + most - 1) / most;
    const size_t bytes = matrix.panel_bytes();
    const char* weights = (const char*)matrix.weights + panel * bytes;
    for (int tile = 0; tile < num_tiles; tile++) {
        int num = (end - first + num_tiles - tile - 1) / (num_tiles - tile);
        // One tile alone reads from memory itself. Of several the first does, and they share the fetching of the next panel.
        const char* from = num_tiles == 1 ? weights + kFetchedAhead : weights + next * bytes + bytes / num_tiles * tile;
        Ahead ahead{from, kStepBytes / num_tiles};
        with_count<kMostTimes>(num, [&](auto count) { times_tile<count>(matrix, panel, inputs, first, ahead, write); });
        first += num;
    }
}

}  // namespace loopwright
