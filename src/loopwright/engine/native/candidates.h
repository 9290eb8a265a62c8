// The highest of a row of logits, and what can be drawn from it. A row is read once for the maximum of each group of 64
// and then mostly by these; nothing here knows why somebody asks.
#pragma once
#include <algorithm>
#include <vector>

#include "vectors.h"

namespace loopwright {

constexpr int kMaximaGroup = 64;  // values that have a maximum together

template <class Value>
static inline size_t bytes_of(const std::vector<Value>& values) {
    return values.capacity() * sizeof(Value);
}

// The vector at `from`, of which only `count` values are there: -infinity beyond them.
static inline Floats load_some(const float* from, int count) {
    if (count >= kLanes) return load(from);
    float padded[kLanes];
    for (int i = 0; i < kLanes; i++) padded[i] = i < count ? from[i] : -INFINITY;
    return load(padded);
}

// Logits [size], with the maxima of their groups.
struct Row {
    const float* values;
    int size;
    float highest;
    bool is_finite;
    std::vector<float> maxima;

    Floats at(int index) const { return load_some(values + index, size - index); }

    void look_at(const float* from, int count) {
        values = from;
        size = count;
        maxima.resize((count + kMaximaGroup - 1) / kMaximaGroup);
        Floats all_highest = all(-INFINITY), zeros = {};
        for (size_t group = 0; group < maxima.size(); group++) {
            Floats found = all(-INFINITY);
            for (int i = (int)group * kMaximaGroup, end = std::min(count, i + kMaximaGroup); i < end; i += kLanes) {
                Floats mine = at(i);
                found = max(found, mine);
                if (end - i >= kLanes) zeros += mine * 0.0f;  // NaN for what is not finite
            }
            maxima[group] = max_of(found);
            all_highest = max(all_highest, found);
        }
        float rest = sum_of(zeros);
        for (int i = count / kLanes * kLanes; i < count; i++) rest += from[i] * 0.0f;
        highest = max_of(all_highest);
        is_finite = rest == 0;
    }

    // Calls `take(index)` in ascending order where a value is at least `bound`.
    template <class Take>
    void each_from(float bound, Take take) const {
        for (size_t group = 0; group < maxima.size(); group++) {
            if (maxima[group] < bound) continue;
            for (int i = (int)group * kMaximaGroup, end = std::min(size, i + kMaximaGroup); i < end; i += kLanes)
                for (uint32_t bits = bits_of(at(i) >= bound); bits; bits &= bits - 1) take(i + __builtin_ctz(bits));
        }
    }

    // Log of the sum of exponentials, of single floats that are added by the thousand and then in doubles.
    double log_total() const {
        double total = 0;
        for (int i = 0; i < size;) {
            Floats sum = {};
            for (int end = std::min(size, i + 1024); i < end; i += kLanes) sum += exp_of(at(i) - highest);
            total += sum_of(sum);
        }
        return highest + log_of(total);
    }

    // The first of the highest.
    int first_highest() const {
        int group = (int)(std::find(maxima.begin(), maxima.end(), highest) - maxima.begin());
        return (int)(std::find(values + group * kMaximaGroup, values + size, highest) - values);
    }
};

// Calls `take(index, weights, exponents)` for eight values after the other: weights e^((value - highest) / temperature), which
// are 0 behind the end.
template <class Take>
static inline void each_weight(const float* values, int count, double highest, double temperature, Take take) {
    const double inverse = std::min(1 / temperature, __DBL_MAX__);
    for (int i = 0; i < count; i += kLanes / 2) {
        float padded[kLanes / 2];
        bool is_whole = count - i >= kLanes / 2;
        if (!is_whole)
            for (int lane = 0; lane < kLanes / 2; lane++) padded[lane] = i + lane < count ? values[i + lane] : -INFINITY;
        Doubles exponents = (load_doubles(is_whole ? values + i : padded) - highest) * inverse;
        take(i, exp_of(exponents), exponents);
    }
}

// The weights to a place whose room is a multiple of eight. Returns their sum.
static inline double weigh(const float* values, int count, double highest, double temperature, double* to) {
    Doubles sum = {};
    each_weight(values, count, highest, temperature, [&](int i, Doubles weights, Doubles) {
        store_lanes(to + i, weights);
        sum += weights;
    });
    return sum_of(sum);
}

// Some tokens of a row: ids ascending, and in proportion to their probabilities `weights`.
struct Candidates {
    std::vector<int32_t> ids;
    std::vector<float> values;
    std::vector<double> weights;
    std::vector<int32_t> order;  // places, where they are sorted

    int size() const { return (int)ids.size(); }

    double total() const {
        double sum = 0;
        for (int i = 0; i < size(); i++) sum += weights[i];
        return sum;
    }

    size_t num_bytes() const { return bytes_of(ids) + bytes_of(values) + bytes_of(weights) + bytes_of(order); }

    void take_from(const Row& row, float bound) {
        ids.clear();
        values.clear();
        row.each_from(bound, [&](int id) {
            ids.push_back(id);
            values.push_back(row.values[id]);
        });
    }

    void weigh_by(double highest, double temperature) {
        weights.resize((ids.size() + 7) / 8 * 8);
        weigh(values.data(), size(), highest, temperature, weights.data());
    }

    // Keeps the places for which `is_kept` is true.
    template <class Test>
    void keep(Test is_kept) {
        int kept = 0;
        for (int i = 0; i < size(); i++)
            if (is_kept(i)) ids[kept] = ids[i], values[kept] = values[i], weights[kept] = weights[i], kept++;
        ids.resize(kept);
        values.resize(kept);
    }

    // Makes `order` the places of the `count` highest by `of`, the lowest id first on a tie.
    template <class Number>
    void sort_highest(int count, const std::vector<Number>& of) {
        order.resize(ids.size());
        for (int i = 0; i < size(); i++) order[i] = i;
        auto is_before = [&](int one, int other) { return of[one] > of[other] || (of[one] == of[other] && one < other); };
        count = std::min(count, size());
        std::nth_element(order.begin(), order.begin() + count, order.end(), is_before);
        order.resize(count);
        std::sort(order.begin(), order.end(), is_before);
    }
};

// A bound that at least `count` values of the row reach, and few more where there are more groups than that.
static inline float bound_of_highest(const Row& row, int count, std::vector<float>& space) {
    if (count > (int)row.maxima.size()) return -__FLT_MAX__;  // what a mask hides is lower
    space.assign(row.maxima.begin(), row.maxima.end());
    std::nth_element(space.begin(), space.begin() + count - 1, space.end(), std::greater<float>());
    return std::max(space[count - 1], -__FLT_MAX__);
}

// What answering rows takes on one thread.
struct ChoiceSpace {
    Row raw, seen;                // the model's own logits, and what processing made of them
    std::vector<float> adjusted;  // [vocabulary]
    std::vector<float> floats;
    std::vector<double> sums;      // of weights, by piece
    std::vector<int32_t> counts;   // [vocabulary], zero between two uses
    Candidates left, top;

    size_t num_bytes() const {
        return bytes_of(raw.maxima) + bytes_of(seen.maxima) + bytes_of(adjusted) + bytes_of(floats) + bytes_of(sums) +
               bytes_of(counts) + left.num_bytes() + top.num_bytes();
    }

    // What a row took beyond that is given back: one whose nucleus is the whole vocabulary takes megabytes.
    void shrink_to(size_t bytes) {
        if (num_bytes() > bytes) *this = ChoiceSpace{};
    }

    // Makes `top` hold the `count` highest of a row, in `top.order`.
    void find_top(const Row& row, int count) {
        top.take_from(row, bound_of_highest(row, count, floats));
        top.sort_highest(count, top.values);
    }
};

}  // namespace loopwright
