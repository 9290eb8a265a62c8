// What is asked of rows of logits: the next token, the most probable ones, distributions. engine/sampler.py defines all of it,
// and docs/sampling.md the order in which it acts; here is the same for one row at a time, which nothing but the row decides.
#pragma once
#include "candidates.h"
#include "structs.h"

namespace loopwright {

constexpr int kPieceWeights = 512;  // that are summed together
constexpr float kMaxLogit = 1e30f;

static inline uint64_t mixed(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

// As engine/draws.py.
static inline double uniform(uint64_t seed, int64_t position) {
    return (double)(mixed(mixed(seed) + ((uint64_t)position + 1) * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

// -infinity where a bit of `allowed` is not set. It has a bit for each value and as many more as make whole vectors.
static inline void mask(float* values, int size, const uint8_t* allowed) {
    const Ints lanes = lane_numbers();
    for (int i = 0; i < size; i += kLanes) {
        Ints is_allowed = ((Ints{} + (allowed[i / 8] | allowed[i / 8 + 1] << 8)) >> lanes) & 1;
        if (size - i >= kLanes)
            store(values + i, select(is_allowed != 0, load(values + i), all(-INFINITY)));
        else
            for (int lane = 0; lane < size - i; lane++)
                if (!is_allowed[lane]) values[i + lane] = -INFINITY;
    }
}

// `logits` after penalties, bias and mask, in the thread's memory.
static inline const float* adjust(const float* logits, int size, const Question& asked, ChoiceSpace& space) {
    space.adjusted.assign(logits, logits + size);
    float* adjusted = space.adjusted.data();
    const Tokens written[] = {asked.generated, asked.sampled};
    if (asked.repetition_penalty != 1)
        for (const Tokens& tokens : {asked.seen, asked.generated, asked.sampled})
            for (int i = 0; i < tokens.count; i++) {  // from the logit itself, so that twice is once
                double wide = logits[tokens.ids[i]];
                wide = wide < 0 ? wide * asked.repetition_penalty : wide / asked.repetition_penalty;
                adjusted[tokens.ids[i]] = (float)std::min(std::max(wide, (double)-kMaxLogit), (double)kMaxLogit);
            }
    if (asked.presence_penalty != 0 || asked.frequency_penalty != 0) {
        space.counts.resize(size);
        for (const Tokens& tokens : written)
            for (int i = 0; i < tokens.count; i++) space.counts[tokens.ids[i]]++;
        for (const Tokens& tokens : written)
            for (int i = 0; i < tokens.count; i++) {
                int& count = space.counts[tokens.ids[i]];
                if (!count) continue;
                adjusted[tokens.ids[i]] -= (float)(asked.presence_penalty + asked.frequency_penalty * count);
                count = 0;
            }
    }
    for (int i = 0; i < asked.num_biases; i++) adjusted[asked.biased[i]] += (float)asked.biases[i];
    if (asked.allowed) mask(adjusted, size, asked.allowed);
    return adjusted;
}

// A token, its weight among those that it was drawn from, and the sum of theirs.
struct Drawn {
    int token;
    double weight, total;
};

// The first of all values of the row whose cumulative weight exceeds `number` of the sum. Weights are summed by pieces; only
// those of one piece are looked at again.
static inline Drawn draw_from_all(const Row& row, double temperature, double number, std::vector<double>& sums) {
    double weights[kPieceWeights], total = 0, before = 0;
    const int num_pieces = (row.size + kPieceWeights - 1) / kPieceWeights;
    auto count_of = [&](int piece) { return std::min(kPieceWeights, row.size - piece * kPieceWeights); };
    auto weigh_piece = [&](int piece) {
        return weigh(row.values + piece * kPieceWeights, count_of(piece), row.highest, temperature, weights);
    };
    sums.resize(num_pieces);
    for (int piece = 0; piece < num_pieces; piece++) total += sums[piece] = weigh_piece(piece);
    const double target = number * total;
    Drawn last{0, 0, total};  // that has weight: where rounding leaves all below the target
    for (int piece = 0; piece < num_pieces; before += sums[piece++]) {
        if (before + sums[piece] <= target && piece < num_pieces - 1) continue;
        double sum = before;
        weigh_piece(piece);
        for (int i = 0; i < count_of(piece); i++) {
            sum += weights[i];
            if (weights[i] > 0) last = {piece * kPieceWeights + i, weights[i], total};
            if (sum > target) return last;
        }
    }
    return last;
}

static inline Drawn draw_from(const Candidates& left, double number) {
    const double total = left.total(), target = number * total;
    double sum = 0;
    Drawn last{left.ids[0], left.weights[0], total};
    for (int i = 0; i < left.size() && sum <= target; i++) {
        sum += left.weights[i];
        if (left.weights[i] > 0) last = {left.ids[i], left.weights[i], total};
    }
    return last;
}

// Keeps the smallest set of the heaviest with at least `target` of the mass, the lowest ids first on a tie; at least one.
static inline void keep_nucleus(Candidates& left, double target) {
    left.sort_highest(left.size(), left.weights);
    double mass = 0;
    int count = 0;
    while (count < left.size() && mass < target) mass += left.weights[left.order[count++]];
    left.order.resize(std::max(count, 1));
    std::sort(left.order.begin(), left.order.end());
    int next = 0;
    left.keep([&](int place) { return next < (int)left.order.size() && left.order[next] == place && ++next; });
}

// All that the nucleus of a row with `total` weight may be among: those within a distance of the highest that is enough.
static inline void take_nucleus(const Row& row, const Question& asked, double target, Candidates& left) {
    for (double reach = 6; ; reach *= 1.5) {
        left.take_from(row, std::max((float)(row.highest - asked.temperature * reach), -__FLT_MAX__));
        left.weigh_by(row.highest, asked.temperature);
        if (left.total() >= target || reach > 800) return keep_nucleus(left, target);
    }
}

// The token that temperature, filters and one draw take from a row. Makes `space.left` what it was drawn from, if filters left
// less than all, and `is_filtered` whether they did.
static inline Drawn draw(const Row& row, const Question& asked, ChoiceSpace& space, bool& is_filtered) {
    const double number = uniform(asked.seed, asked.position);
    Candidates& left = space.left;
    const bool has_top_k = asked.top_k > 0 && asked.top_k < row.size;
    is_filtered = has_top_k || asked.top_p < 1 || asked.min_p > 0;
    if (!is_filtered) return draw_from_all(row, asked.temperature, number, space.sums);
    if (has_top_k) {
        space.find_top(row, asked.top_k);  // all that tie with the last of them are kept
        left.take_from(row, space.top.values[space.top.order.back()]);
        left.weigh_by(row.highest, asked.temperature);
        if (asked.top_p < 1) keep_nucleus(left, asked.top_p * left.total());
    } else if (asked.top_p < 1) {
        double total = draw_from_all(row, asked.temperature, 0, space.sums).total;
        take_nucleus(row, asked, asked.top_p * total, left);
    } else {
        double bound = row.highest + asked.temperature * (log_of(asked.min_p) - 1e-3) - 1e-3;
        left.take_from(row, std::max((float)bound, -__FLT_MAX__));
        left.weigh_by(row.highest, asked.temperature);
    }
    if (asked.min_p > 0) left.keep([&](int place) { return left.weights[place] >= asked.min_p; });  // the highest weighs 1
    return draw_from(left, number);
}

// The most probable of what was drawn from, with their log-probabilities there; none without weight.
static inline void list_processed(const Row& row, const Question& asked, const Drawn& drawn, bool is_filtered, ChoiceSpace& space,
                                  Answer& to) {
    Candidates& from = is_filtered ? space.left : space.top;
    if (is_filtered) {
        from.sort_highest(asked.num_top, from.weights);
    } else {
        space.find_top(row, asked.num_top);
        from.weigh_by(row.highest, asked.temperature);
    }
    for (int place : from.order) {
        if (from.weights[place] <= 0) break;
        to.top_ids[to.num_top] = from.ids[place];
        to.top_logprobs[to.num_top++] = log_of(from.weights[place] / drawn.total);
    }
}

static inline void choose(const float* logits, const Question& asked, ChoiceSpace& space, Answer& to) {
    const Row* row = &space.raw;
    if (asked.is_adjusted) {
        space.seen.look_at(adjust(logits, space.raw.size, asked, space), space.raw.size);
        row = &space.seen;
    }
    Drawn drawn{0, 1, 1};
    bool is_filtered = false;
    if (asked.temperature == 0)
        drawn.token = row->first_highest();
    else
        drawn = draw(*row, asked, space, is_filtered);
    to.token = drawn.token;
    to.logprob = asked.is_processed ? log_of(drawn.weight / drawn.total) : std::min(0.0, logits[drawn.token] - to.normalizer);
    if (!asked.num_top) return;
    if (!asked.is_processed) {
        space.find_top(space.raw, asked.num_top);
        for (int place : space.top.order) {
            to.top_ids[to.num_top] = space.top.ids[place];
            to.top_logprobs[to.num_top++] = space.top.values[place] - to.normalizer;
        }
    } else if (asked.temperature == 0) {
        to.num_top = 1;
        to.top_ids[0] = drawn.token;
        to.top_logprobs[0] = 0;
    } else {
        list_processed(*row, asked, drawn, is_filtered, space, to);
    }
}

// In nats.
static inline double entropy(const Row& row) {
    Doubles total = {}, sum = {};
    each_weight(row.values, row.size, row.highest, 1, [&](int, Doubles weights, Doubles exponents) {
        total += weights;
        sum += select(weights > 0, weights * exponents, Doubles{});
    });
    return log_of(sum_of(total)) - sum_of(sum) / sum_of(total);
}

static inline void list(const float* logits, double normalizer, Listing& to, ChoiceSpace& space) {
    const Row* row = &space.raw;
    to.normalizer = normalizer;
    if (to.allowed) {
        space.adjusted.assign(logits, logits + row->size);
        mask(space.adjusted.data(), row->size, to.allowed);
        space.seen.look_at(space.adjusted.data(), row->size);
        row = &space.seen;
        to.normalizer = row->log_total();
    }
    space.find_top(*row, to.count);
    to.count = (int)space.top.order.size();
    for (int i = 0; i < to.count; i++) {
        to.ids[i] = space.top.ids[space.top.order[i]];
        to.logprobs[i] = (float)(space.top.values[space.top.order[i]] - to.normalizer);
    }
    if (to.has_entropy) to.entropy = entropy(*row);
}

// One row of logits [size].
static inline void answer(const float* logits, int size, const Question& asked, ChoiceSpace& space, Answer& to) {
    space.raw.look_at(logits, size);
    to.is_answered = 1;
    to.is_finite = space.raw.is_finite;
    if (!to.is_finite) return;
    to.normalizer = space.raw.log_total();
    if (asked.is_sampled) choose(logits, asked, space, to);
    for (int i = 0; i < asked.num_listings; i++) list(logits, to.normalizer, asked.listings[i], space);
}

}  // namespace loopwright
