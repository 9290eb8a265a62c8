// Which tokens of a step go through a layer together, and which of their queries read keys together. A plan: it computes
// nothing, and no bit of a result depends on it. Made once a step by decoder.cpp.
#pragma once
#include <algorithm>
#include <vector>

#include "structs.h"

namespace loopwright {

constexpr int kSliceTokens = 264;    // their inputs stay in a core's second-level cache; whole tiles of twelve

// Tokens of one row that follow one another, whose query heads of one KV head fit in a tile of queries.
struct Tile {
    int first, count;
};

// One part of tiles that read it together: `tiles[first] …` of the order of its slice. They share blocks up to `common`.
struct Item {
    int first, num_tiles, part, common;
};

// Consecutive tokens. Their partial sums of attention have room for `num_parts` parts each.
struct Slice {
    int first, count, num_parts;
    std::vector<Tile> tiles;
    std::vector<int> order;  // tile numbers, by item
    std::vector<Item> items;
};

class Slicer {
   public:
    // Of `scratch_bytes` one half is for the vectors of a slice's tokens, the other for their partial sums, which grow with
    // the context. A single token takes what it needs.
    Slicer(const Model& model, const Step& step, size_t scratch_bytes, int num_threads)
        : model_(model),
          step_(step),
          scratch_bytes_(scratch_bytes),
          num_threads_(num_threads),
          shared_(model.num_heads / model.num_kv_heads) {}

    std::vector<Slice> slices() const {
        std::vector<Slice> found;
        int num_slices = (step_.num_tokens + kSliceTokens - 1) / kSliceTokens;
        int wanted = num_slices ? (step_.num_tokens / num_slices + kTileQueries) / kTileQueries * kTileQueries : 0;
        for (int first = 0; first < step_.num_tokens; first += found.back().count) {
            int count = std::min({wanted, kSliceTokens, step_.num_tokens - first});
            while (count > 1 && count * std::max(vector_bytes(), partial_bytes(num_parts(first, count))) > scratch_bytes_ / 2)
                count -= count > kTileQueries ? kTileQueries : 1;
            found.push_back({first, count, num_parts(first, count), {}, {}, {}});
            make_tiles(found.back());
            for (int part = 0; part < found.back().num_parts; part++) make_items(found.back(), part);
        }
        return found;
    }

   private:
    int num_parts(int first, int count) const {
        return *std::max_element(step_.own_places + first, step_.own_places + first + count) / kPart + 1;
    }

    // Of one token, as StepRun lays them out.
    size_t vector_bytes() const {
        const size_t attended = (size_t)model_.num_heads * model_.head_dim, width = attended / shared_ * (shared_ + 2);
        const size_t widest = std::max({(size_t)model_.hidden, (size_t)model_.intermediate, attended});
        return (width + model_.hidden) * sizeof(float) + (attended + model_.intermediate + 2 * widest) * sizeof(bf16);
    }

    size_t partial_bytes(int parts) const {
        return (size_t)model_.num_heads * parts * (model_.head_dim + 2) * sizeof(float);
    }

    void make_tiles(Slice& slice) const {
        const int most = std::max(kTileQueries / shared_, 1), end = slice.first + slice.count;
        for (int token = slice.first; token < end; token += slice.tiles.back().count) {
            int count = 1;
            while (count < most && token + count < end && step_.rows[token + count] == step_.rows[token]) count++;
            slice.tiles.push_back({token, count});
        }
    }

    // Tiles that have the part, those with the same blocks beside one another, and as many together as a tile of queries
    // has room for.
    void make_items(Slice& slice, int part) const {
        const int before = (int)slice.order.size();
        for (int tile = 0; tile < (int)slice.tiles.size(); tile++)
            if (last_block(slice.tiles[tile], part) > first_block(part)) slice.order.push_back(tile);
        std::stable_sort(slice.order.begin() + before, slice.order.end(), [&](int left, int right) {
            const Tile &one = slice.tiles[left], &other = slice.tiles[right];
            return std::lexicographical_compare(blocks(one) + first_block(part), blocks(one) + last_block(one, part),
                                                blocks(other) + first_block(part), blocks(other) + last_block(other, part));
        });
        for (int first = before; first < (int)slice.order.size(); first += slice.items.back().num_tiles)
            slice.items.push_back(item(slice, part, first));
    }

    Item item(const Slice& slice, int part, int first) const {
        const Tile& begin = slice.tiles[slice.order[first]];
        Item found{first, 1, part, last_block(begin, part)};
        int num_queries = begin.count * shared_;
        // However much they share, every thread should find something to do.
        int most = (int)slice.tiles.size() * slice.num_parts * model_.num_kv_heads / (2 * num_threads_);
        for (int next = first + 1; next < (int)slice.order.size() && found.num_tiles < most; next++) {
            const Tile& one = slice.tiles[slice.order[next]];
            num_queries += one.count * shared_;
            int common = num_queries > kTileQueries ? 0 : num_common(begin, found.common, one, part);
            if (common == 0) break;
            found.common = first_block(part) + common;
            found.num_tiles++;
        }
        return found;
    }

    // How many of the part's blocks, from its first up to before `end`, are the same for both.
    int num_common(const Tile& one, int end, const Tile& other, int part) const {
        const int32_t* from = blocks(one) + first_block(part);
        const int32_t* to = blocks(other) + first_block(part);
        return (int)(std::mismatch(from, blocks(one) + end, to, blocks(other) + last_block(other, part)).first - from);
    }

    static int first_block(int part) { return part * (kPart / kBlock); }

   public:
    const int32_t* blocks(const Tile& tile) const { return step_.blocks + step_.block_starts[step_.rows[tile.first]]; }

    // Before which block the part ends for the tile's tokens.
    int last_block(const Tile& tile, int part) const {
        int end = step_.own_places[tile.first + tile.count - 1] / kBlock + 1;
        return std::min(end, first_block(part + 1));
    }

   private:
    const Model& model_;
    const Step& step_;
    size_t scratch_bytes_;
    int num_threads_, shared_;
};

}  // namespace loopwright
