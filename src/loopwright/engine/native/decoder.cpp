// A decoder's layers over a flat batch of tokens, and its head: two calls a step, no memory of their own but scratch.
//
// Called by native/decoder.py through ctypes; the structs here are mirrored in native/structs.py. Tokens of any number
// of rows lie one after the other; what a token is computed with is its own row's KV and nothing of another row.
#include <algorithm>
#include <vector>

#include "choosing.h"
#include "slices.h"
#include "workspace.h"

using namespace loopwright;

namespace {

float inverse_norm(const float* vector, int size, float epsilon) {
    Floats squares = {};
    int i = 0;
    for (; i + kLanes <= size; i += kLanes) squares += load(vector + i) * load(vector + i);
    float sum = sum_of(squares);
    for (; i < size; i++) sum += vector[i] * vector[i];
    return 1 / std::sqrt(sum / size + epsilon);
}

void normalize(const float* vector, const float* weight, int size, float epsilon, bf16* to) {
    float inverse = inverse_norm(vector, size, epsilon);
    for (int i = 0; i < size; i += kLanes) store_bf16(to + i, load(vector + i) * inverse * load(weight + i));
}

void add_normalized(const float* vector, const float* weight, int size, float epsilon, float* to) {
    float inverse = inverse_norm(vector, size, epsilon);
    for (int i = 0; i < size; i += kLanes) store(to + i, load(to + i) + load(vector + i) * inverse * load(weight + i));
}

// A head normalised where the model has norms, turned pair by pair, scaled.
void rotate(const float* head, const float* norm, float epsilon, const float* turns, int head_dim, float scale, float* to) {
    float inverse = norm ? inverse_norm(head, head_dim, epsilon) : 1;
    for (int i = 0; i < head_dim; i += 2) {
        float real = head[i], imaginary = head[i + 1], cosine = turns[i], sine = turns[i + 1];
        if (norm) real = real * inverse * norm[i], imaginary = imaginary * inverse * norm[i + 1];
        to[i] = (real * cosine - imaginary * sine) * scale;
        to[i + 1] = (real * sine + imaginary * cosine) * scale;
    }
}

// Whether they still are after rounding to bf16. In bits, because compilers may skip arithmetic on what is not.
bool are_finite(const float* vector, int size) {
    Words found = {};
    for (int i = 0; i < size; i += kLanes) {
        Words exponents = (Words)widen(narrow(load(vector + i))) & 0x7f800000;
        found |= (Words)(exponents == 0x7f800000);
    }
    for (int lane = 0; lane < kLanes; lane++)
        if (found[lane]) return false;
    return true;
}

// The outputs of a panel to their places in a vector of `width`; padding goes nowhere.
void write_panel(float* vector, int panel, int width, Floats low, Floats high) {
    int left = width - panel * kPanel;
    float* to = vector + panel * kPanel;
    if (left >= kPanel) {
        store(to, low);
        store(to + kLanes, high);
    } else {
        float both[kPanel];
        store(both, low);
        store(both + kLanes, high);
        memcpy(to, both, sizeof(float) * left);
    }
}

Floats silu(Floats x) { return x / (1.0f + exp_of(-x)); }

Floats gelu(Floats x) {
    Floats inner = 0.797884561f * (x + 0.044715f * x * x * x);
    Floats power = exp_of(-2.0f * inner);  // tanh(y) = (1 - e^-2y) / (1 + e^-2y)
    return 0.5f * x * (1.0f + (1.0f - power) / (1.0f + power));
}

class StepRun {
   public:
    StepRun(const Model& model, const Step& step, float* hidden, Workspace& space)
        : model_(model),
          step_(step),
          hidden_(hidden),
          team_(space.team),
          slicer_(model, step, space.max_bytes, space.team.num_threads()),
          slices_(slicer_.slices()) {
        shared_ = model.num_heads / model.num_kv_heads;
        heads_width_ = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
        const int attended = model.num_heads * model.head_dim;
        size_t num_tokens = 0, num_partial = 0;  // of the slice with the most
        for (const Slice& slice : slices_) {
            num_tokens = std::max(num_tokens, (size_t)slice.count);
            num_partial = std::max(num_partial, (size_t)slice.count * model.num_heads * slice.num_parts);
        }
        inputs_ = space.inputs(num_tokens, std::max({model.hidden, model.intermediate, attended}));
        middle_ = inputs_;
        middle_.values = space.middle.at_least(num_tokens * model.intermediate);
        heads_ = space.heads.at_least(num_tokens * heads_width_);
        added_ = space.added.at_least(num_tokens * model.hidden);
        queries_ = space.queries.at_least(num_tokens * attended);
        sums_ = space.sums.at_least(num_partial * model.head_dim);
        tops_ = space.tops.at_least(num_partial);
        totals_ = space.totals.at_least(num_partial);
        find_turns();
    }

    void run() {
        const int num_phases = 1 + kPhases * model_.num_layers * (int)slices_.size();
        team_.run(num_phases, [this](int, Team::Phases& phases) {
            phases.run(step_.num_tokens, [&](int token) { make_turns(token); });
            for (int i = 0; i < model_.num_layers; i++)
                for (const Slice& slice : slices_) run_layer(model_.layers[i], turn_of_layer_[i], slice, phases);
        });
    }

   private:
    static constexpr int kPhases = 12;

    // Which sets of frequencies the layers use.
    void find_turns() {
        for (int i = 0; i < model_.num_layers; i++) {
            const Layer& layer = model_.layers[i];
            int known = 0, count = (int)turns_.size();
            while (known < count && (turns_[known].frequencies != layer.frequencies || turns_[known].magnitude != layer.magnitude))
                known++;
            turn_of_layer_.push_back(known);
            if (known == count)
                turns_.push_back({layer.frequencies, layer.magnitude,
                                  std::vector<float>((size_t)step_.num_tokens * model_.head_dim)});
        }
    }

    // cos and sin of the token's angles, for each set.
    void make_turns(int token) {
        for (Turns& turns : turns_) {
            float* to = turns.values.data() + (size_t)token * model_.head_dim;
            for (int pair = 0; pair < model_.head_dim / 2; pair++) {
                float angle = (float)step_.token_positions[token] * turns.frequencies[pair];
                *to++ = (float)(std::cos((double)angle)) * turns.magnitude;
                *to++ = (float)(std::sin((double)angle)) * turns.magnitude;
            }
        }
    }

    // Inside a slice tokens have numbers of their own, from 0; those of the step begin at its `first`.
    void run_layer(const Layer& layer, int turn, const Slice& slice, Team::Phases& phases) {
        const int count = slice.count;
        float* hidden = hidden_ + (size_t)slice.first * model_.hidden;
        const float* turns = turns_[turn].values.data();
        phases.run(count, [&](int token) { read_hidden(hidden, token, layer.attention_norm, layer.qkv.kind); });
        phases.run(layer.qkv.num_panels(), [&](int panel) {
            times_panel(layer.qkv, panel, team_.num_threads(), inputs_, 0, count, [&](int token, Floats low, Floats high) {
                write_panel(heads_ + (size_t)token * heads_width_, panel, heads_width_, low, high);
            });
        });
        phases.run(count, [&](int token) { write_kv(slice.first + token, token, layer, turns); });
        // Head by head and part by part, so that a part's keys and values stay close while all its tiles read them.
        const int num_items = (int)slice.items.size();
        phases.run(num_items * model_.num_kv_heads,
                   [&](int number) { attend(slice, slice.items[number % num_items], number / num_items, layer); });
        phases.run(count, [&](int token) { read_attended(slice, token, layer.output.kind); });
        project(layer.output, inputs_, layer.attention_post_norm, hidden, count, phases);
        phases.run(count, [&](int token) { read_hidden(hidden, token, layer.mlp_norm, layer.gate_up.kind); });
        phases.run(layer.gate_up.num_panels(), [&](int panel) {
            times_panel(layer.gate_up, panel, team_.num_threads(), inputs_, 0, count, [&](int token, Floats gate, Floats up) {
                Floats gated = (model_.is_gelu ? gelu(gate) : silu(gate)) * up;
                store_bf16(middle_.values + (size_t)token * model_.intermediate + panel * kLanes, gated);
            });
        });
        if (layer.down.kind != kBf16)
            phases.run(count, [&](int token) { to_levels(middle_, token, model_.intermediate); });
        project(layer.down, middle_, layer.mlp_post_norm, hidden, count, phases);
    }

    // hidden += matrix · inputs, normalised first where the model does that.
    void project(const Matrix& matrix, const Inputs& inputs, const float* post_norm, float* hidden, int count,
                 Team::Phases& phases) {
        float* target = post_norm ? added_ : hidden;
        phases.run(matrix.num_panels(), [&](int panel) {
            times_panel(matrix, panel, team_.num_threads(), inputs, 0, count, [&](int token, Floats low, Floats high) {
                float* to = target + (size_t)token * model_.hidden + panel * kPanel;
                bool is_whole = (panel + 1) * kPanel <= model_.hidden;
                if (!post_norm) low += load(to), high = is_whole ? high + load(to + kLanes) : high;
                store(to, low);
                if (is_whole) store(to + kLanes, high);
            });
        });
        if (post_norm)
            phases.run(count, [&](int token) {
                size_t at = (size_t)token * model_.hidden;
                add_normalized(added_ + at, post_norm, model_.hidden, model_.epsilon, hidden + at);
            });
    }

    void read_hidden(const float* hidden, int token, const float* norm, Kind kind) {
        size_t at = (size_t)token * model_.hidden;
        normalize(hidden + at, norm, model_.hidden, model_.epsilon, inputs_.values + at);
        if (kind != kBf16) to_levels(inputs_, token, model_.hidden);
    }

    // Rotated queries to their place, rotated keys and values to the cache. `in_step` is the token's number there.
    void write_kv(int in_step, int token, const Layer& layer, const float* turns) {
        const int dim = model_.head_dim, place = step_.places[in_step], offset = place % kBlock;
        const float* heads = heads_ + (size_t)token * heads_width_;
        const float* turn = turns + (size_t)in_step * dim;
        alignas(64) float turned[kMaxHeadDim];
        for (int head = 0; head < model_.num_heads; head++, heads += dim) {
            rotate(heads, layer.query_norm, model_.epsilon, turn, dim, model_.query_scale, turned);
            bf16* to = queries_ + ((size_t)token * model_.num_heads + head) * dim;
            for (int i = 0; i < dim; i += kLanes) store_bf16(to + i, load(turned + i));
        }
        const size_t block = (place / kBlock) * model_.block_stride;
        const float* values = heads + model_.num_kv_heads * dim;
        for (int head = 0; head < model_.num_kv_heads; head++, heads += dim, values += dim) {
            rotate(heads, layer.key_norm, model_.epsilon, turn, dim, 1, turned);
            if (!are_finite(values, dim)) std::fill(turned, turned + dim, NAN);
            bf16 key[kMaxHeadDim], value[kMaxHeadDim];
            for (int i = 0; i < dim; i += kLanes) {
                store_bf16(key + i, load(turned + i));
                store_bf16(value + i, turned[0] == turned[0] ? load(values + i) : Floats{});
            }
            bf16* keys_at = layer.keys + block + head * kBlock * dim + 2 * offset;
            for (int pair = 0; pair < dim / 2; pair++) memcpy(keys_at + pair * 2 * kBlock, key + 2 * pair, 4);
            bf16* values_at = layer.values + block + head * kBlock * dim + (offset / 2) * 2 * dim + offset % 2;
            for (int i = 0; i < dim; i++) values_at[2 * i] = value[i];
        }
    }

    // Of query q of the slice and part p: sums_[(q · num_parts + p) · head_dim], tops_ and totals_ alike.
    void attend(const Slice& slice, const Item& item, int kv_head, const Layer& layer) {
        const int dim = model_.head_dim;
        const size_t stride = (size_t)kBlock * dim;
        HeadCache cache{layer.keys + kv_head * stride, layer.values + kv_head * stride, model_.positions,
                        model_.block_stride, dim};
        const float scale = (float)M_LOG2E / std::sqrt((float)dim);  // scores are logarithms to base 2
        Query queries[kTileQueries];
        Reader readers[kTileQueries];
        float *sums[kTileQueries], tops[kTileQueries], totals[kTileQueries];
        size_t at[kTileQueries];
        int num_queries = 0, num_readers = 0;
        auto attend_these = [&] {
            QueryTile tile{queries, readers, num_queries, num_readers, num_readers > 1 ? item.common : readers[0].last};
            attend_part(cache, tile, item.part, layer.window, scale, sums, tops, totals);
            for (int i = 0; i < num_queries; i++) tops_[at[i]] = tops[i], totals_[at[i]] = totals[i];
            num_queries = num_readers = 0;
        };
        for (int i = 0; i < item.num_tiles; i++) {
            const Tile& tile = slice.tiles[slice.order[item.first + i]];
            for (int start = 0; start < tile.count * shared_; start += kTileQueries) {  // only a tile alone has more
                int count = std::min(tile.count * shared_ - start, kTileQueries);
                if (start) attend_these();
                readers[num_readers++] = {slicer_.blocks(tile), num_queries, count, slicer_.last_block(tile, item.part)};
                for (int one = start; one < start + count; one++, num_queries++) {
                    int token = tile.first + one / shared_, head = kv_head * shared_ + one % shared_;
                    size_t query = (size_t)(token - slice.first) * model_.num_heads + head;
                    bool is_masked = step_.shown_starts && step_.shown_starts[token] >= 0;
                    queries[num_queries] = {queries_ + query * dim, step_.own_places[token], step_.token_positions[token],
                                            is_masked ? step_.shown + step_.shown_starts[token] : nullptr};
                    at[num_queries] = query * slice.num_parts + item.part;
                    sums[num_queries] = sums_ + at[num_queries] * dim;
                }
            }
        }
        attend_these();
    }

    void read_attended(const Slice& slice, int token, Kind kind) {
        const int dim = model_.head_dim, width = model_.num_heads * dim;
        const int num_parts = step_.own_places[slice.first + token] / kPart + 1;
        for (int head = 0; head < model_.num_heads; head++) {
            size_t at = ((size_t)token * model_.num_heads + head) * slice.num_parts;
            merge(sums_ + at * dim, tops_ + at, totals_ + at, num_parts, dim, inputs_.values + (size_t)token * width + head * dim);
        }
        if (kind != kBf16) to_levels(inputs_, token, width);
    }

    struct Turns {
        const float* frequencies;
        float magnitude;
        std::vector<float> values;
    };

    const Model& model_;
    const Step& step_;
    float* hidden_;
    Team& team_;
    const Slicer slicer_;
    const std::vector<Slice> slices_;
    int shared_, heads_width_;
    Inputs inputs_, middle_;
    float *heads_, *added_, *sums_, *tops_, *totals_;
    bf16* queries_;
    std::vector<Turns> turns_;
    std::vector<int> turn_of_layer_;
};

}  // namespace

extern "C" {

void* workspace_new(int num_threads, size_t max_bytes) { return new Workspace(num_threads, max_bytes); }

size_t workspace_bytes(const void* space) { return ((const Workspace*)space)->num_bytes(); }

void workspace_free(void* space) { delete (Workspace*)space; }

// All layers: hidden [num_tokens][hidden] in place.
void forward(const Model* model, const Step* step, float* hidden, void* space) {
    for (int token = 0; token < step->num_tokens; token++)
        model->positions[step->places[token]] = step->token_positions[token];
    StepRun(*model, *step, hidden, *(Workspace*)space).run();
}

// Weights of outputs as they were packed in bf16, times `scale`: ids [count] → [count][inputs of the matrix].
void embed(const Matrix* matrix, const int64_t* ids, int count, float scale, float* to) {
    const int num_steps = matrix->num_inputs / 2;
    for (int i = 0; i < count; i++, to += matrix->num_inputs) {
        const bf16* from = (const bf16*)matrix->weights + (ids[i] / kPanel * num_steps * kPanel + ids[i] % kPanel) * 2;
        for (int step = 0; step < num_steps; step++, from += 2 * kPanel)
            to[2 * step] = widen(from[0]) * scale, to[2 * step + 1] = widen(from[1]) * scale;
    }
}

// The final norm: hidden [num_vectors][size] → to.
void normalize_all(const float* hidden, int num_vectors, const float* weight, int size, float epsilon, float* to) {
    for (int vector = 0; vector < num_vectors; vector++, hidden += size, to += size) {
        float inverse = inverse_norm(hidden, size, epsilon);
        for (int i = 0; i < size; i += kLanes) store(to + i, load(hidden + i) * inverse * load(weight + i));
    }
}

// The head: normalized [num_vectors][hidden] → logits [num_vectors][vocabulary].
void logits(const Matrix* head, const float* normalized, int num_vectors, float* to, void* space) {
    Workspace& work = *(Workspace*)space;
    const int width = head->num_inputs;
    Inputs inputs = work.inputs(num_vectors, width);
    work.team.run(2, [&](int, Team::Phases& phases) {
        phases.run(num_vectors, [&](int vector) {
            size_t at = (size_t)vector * width;
            for (int i = 0; i < width; i += kLanes) store_bf16(inputs.values + at + i, load(normalized + at + i));
            if (head->kind != kBf16) to_levels(inputs, vector, width);
        });
        phases.run((head->num_panels() + 7) / 8, [&](int piece) {
            for (int panel = piece * 8; panel < piece * 8 + 8 && panel < head->num_panels(); panel++)
                times_panel(*head, panel, 1, inputs, 0, num_vectors, [&](int vector, Floats low, Floats high) {
                    write_panel(to + (size_t)vector * head->num_outputs, panel, head->num_outputs, low, high);
                });
        });
    });
}

// What is asked of each row of logits [num_rows][vocabulary]. A row's draft decides whether those behind it are answered, so one thread
// takes them all.
void answer_rows(const float* logits, int num_rows, int vocabulary, const Question* asked, Answer* to, void* space) {
    Workspace& work = *(Workspace*)space;
    std::vector<int> firsts;
    for (int row = 0; row < num_rows; row++)
        if (row == 0 || !asked[row - 1].has_draft) firsts.push_back(row);
    auto answer_from = [&](int thread, int row) {
        do answer(logits + (size_t)row * vocabulary, vocabulary, asked[row], work.choices[thread], to[row]);
        while (asked[row].has_draft && to[row].is_finite && to[row].token == asked[row].draft && ++row < num_rows);
    };
    if (firsts.size() == 1) {
        answer_from(0, 0);  // is over before another thread is awake
    } else {
        work.team.run(1, [&](int thread, Team::Phases& phases) {
            phases.run((int)firsts.size(), [&](int number) { answer_from(thread, firsts[number]); });
        });
    }
    for (ChoiceSpace& space : work.choices) space.shrink_to(work.max_bytes / 8 / work.choices.size());
}
}
