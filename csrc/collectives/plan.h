#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "pool/buffer.h"

namespace symmoe {

// One call's geometry: made and checked once, used for many calls. `rows` partial rows of `hidden`
// elements; rank r owns `counts[r]` of them, from row `begins[r]` on.
struct Plan {
  enum class Kind : uint8_t { kReduceScatter = 0, kAllGather = 1 };
  static constexpr int kKinds = 2;

  Kind kind = Kind::kReduceScatter;
  Role role = Role::kCombine;
  int lane = 0;
  DType dtype = DType::kBFloat16;
  int64_t hidden = 0;
  int64_t rows = 0;
  std::vector<int64_t> begins;
  std::vector<int64_t> counts;
  // How many rows each rank has is only known on the device: `counts` says how many it may have.
  bool device_sizes = false;
  int64_t padded_to = 0;  // of such sizes: rows between two ranks' first ones; 0: packed
  int rank = 0;
  bool routed = false;     // each call brings a Routing, and moves only the rows that it names
  std::string text;        // the call in words: all that must be equal on all ranks
  uint64_t signature = 0;  // hash of text

  size_t row_bytes() const { return static_cast<size_t>(hidden) * size_of(dtype); }
  size_t bytes_of(int64_t some_rows) const { return static_cast<size_t>(some_rows) * row_bytes(); }
  int64_t own_begin() const { return begins[static_cast<size_t>(rank)]; }
  int64_t own_count() const { return counts[static_cast<size_t>(rank)]; }

  // What a rank offers in its window: partial rows of everybody, or its own rows to gather.
  size_t input_bytes() const { return bytes_of(kind == Kind::kReduceScatter ? rows : own_count()); }
  // What a rank gets.
  size_t output_bytes() const {
    return bytes_of(kind == Kind::kReduceScatter ? own_count() : rows);
  }
  const char* operation() const { return name_of(kind); }
  // Whether some rows may be nobody's.
  bool has_padding() const;

  static constexpr const char* name_of(Kind kind) {
    return kind == Kind::kReduceScatter ? "reduce_scatter" : "all_gather";
  }

  // Throws InvalidArgument unless every rank's rows lie within `rows`, none before those of the
  // rank in front, and sets `signature`.
  void seal();
};

// FNV-1a, 64 bit; never 0, which stands for "no call yet".
uint64_t signature_of(std::string_view text);

}  // namespace symmoe
