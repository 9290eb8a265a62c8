// Memory that calls take again and again, and the threads that they share. It grows to what was needed most and stays.
#pragma once
#include <cstdlib>
#include <vector>

#include "candidates.h"
#include "matrices.h"
#include "team.h"

namespace loopwright {

template <class T>
struct Scratch {
    T* data = nullptr;
    size_t size = 0;
    T* at_least(size_t wanted) {
        if (wanted > size) {
            free(data);
            size = wanted;
            data = (T*)aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64);
        }
        return data;
    }
    size_t bytes() const { return size * sizeof(T); }
    ~Scratch() { free(data); }
};

struct Workspace {
    Team team;
    Scratch<float> heads, added, sums, tops, totals, scales;
    Scratch<bf16> queries, values, middle;
    Scratch<int8_t> levels;
    Scratch<int32_t> level_sums;
    std::vector<ChoiceSpace> choices;  // by thread
    const size_t max_bytes;            // of what a slice takes; a step's hidden states and angles come on top
    Workspace(int num_threads, size_t max_bytes) : team(num_threads), choices(num_threads), max_bytes(max_bytes) {}

    size_t num_bytes() const {
        size_t chosen_from = 0;
        for (const ChoiceSpace& space : choices) chosen_from += space.num_bytes();
        return chosen_from + heads.bytes() + added.bytes() + sums.bytes() + tops.bytes() + totals.bytes() + scales.bytes() +
               queries.bytes() + values.bytes() + middle.bytes() + levels.bytes() + level_sums.bytes();
    }

    Inputs inputs(int num_vectors, int width) {
        size_t size = (size_t)num_vectors * width, num_groups = (size + kGroup - 1) / kGroup;
        return {values.at_least(size), levels.at_least(size), scales.at_least(num_groups), level_sums.at_least(num_groups)};
    }
};

}  // namespace loopwright
