#pragma once

// Calls on a group of threads with rows whose sums are known exactly: small whole numbers, which
// every dtype holds.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "collectives/engine.h"
#include "thread_ranks.h"

namespace symmoe::check {

// Which rows belong to whom.
struct Shape {
  std::vector<int64_t> begins;
  std::vector<int64_t> counts;
  int64_t rows = 0;
  int64_t hidden = 0;

  static Shape packed(std::vector<int64_t> counts, int64_t hidden) {
    Shape shape{{}, std::move(counts), 0, hidden};
    for (const int64_t count : shape.counts) {
      shape.begins.push_back(shape.rows);
      shape.rows += count;
    }
    return shape;
  }
  static Shape even(int world, int64_t count, int64_t hidden) {
    return packed(std::vector<int64_t>(static_cast<size_t>(world), count), hidden);
  }
  // Rank r's rows start at r * stride.
  static Shape padded(std::vector<int64_t> counts, int64_t stride, int64_t hidden) {
    Shape shape{{}, std::move(counts), 0, hidden};
    for (size_t rank = 0; rank < shape.counts.size(); ++rank) {
      shape.begins.push_back(static_cast<int64_t>(rank) * stride);
    }
    shape.rows = static_cast<int64_t>(shape.counts.size()) * stride;
    return shape;
  }
};

struct Where {
  Role role = Role::kCombine;
  int lane = 0;
};

inline Plan make_plan(Plan::Kind kind, const Shape& shape, int rank, DType dtype,
                      Where where = {}) {
  Plan plan;
  plan.kind = kind;
  plan.role = where.role;
  plan.lane = where.lane;
  plan.dtype = dtype;
  plan.hidden = shape.hidden;
  plan.rows = shape.rows;
  plan.begins = shape.begins;
  plan.counts = shape.counts;
  plan.rank = rank;
  plan.text = std::string(plan.operation()) + " " + name_of(where.role) +
              " lane=" + std::to_string(where.lane) + " dtype=" + name_of(dtype) +
              " hidden=" + std::to_string(shape.hidden) + " counts=";
  for (const int64_t count : shape.counts) plan.text += std::to_string(count) + ",";
  plan.seal();
  return plan;
}

inline Plan reduce_plan(const Shape& shape, int rank, DType dtype = DType::kFloat32,
                        Where where = {}) {
  return make_plan(Plan::Kind::kReduceScatter, shape, rank, dtype, where);
}
inline Plan gather_plan(const Shape& shape, int rank, DType dtype = DType::kFloat32,
                        Where where = {}) {
  return make_plan(Plan::Kind::kAllGather, shape, rank, dtype, where);
}

// What `rank` contributes: at most 14, so that eight ranks' sum still is exact in bfloat16.
inline int value(int rank, int64_t row, int64_t column, int call) {
  return static_cast<int>((7 * rank + 3 * row + column + 5 * int64_t{call}) % 29) - 14;
}

inline void put(void* memory, DType dtype, int64_t index, int number) {
  const float wide = static_cast<float>(number);
  auto* const bytes =
      static_cast<std::byte*>(memory) + index * static_cast<int64_t>(size_of(dtype));
  if (dtype == DType::kFloat32) {
    std::memcpy(bytes, &wide, sizeof(wide));
  } else {
    uint32_t bits = 0;
    std::memcpy(&bits, &wide, sizeof(bits));
    const auto half = static_cast<uint16_t>(bits >> 16);  // exact: bfloat16 is the upper half
    std::memcpy(bytes, &half, sizeof(half));
  }
}

inline float get(const void* memory, DType dtype, int64_t index) {
  const auto* const bytes =
      static_cast<const std::byte*>(memory) + index * static_cast<int64_t>(size_of(dtype));
  float wide = 0;
  if (dtype == DType::kFloat32) {
    std::memcpy(&wide, bytes, sizeof(wide));
  } else {
    uint16_t half = 0;
    std::memcpy(&half, bytes, sizeof(half));
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(&wide, &bits, sizeof(wide));
  }
  return wide;
}

// A rank's input of a call. Padding rows hold numbers that must not show up anywhere.
inline void fill(void* memory, const Plan& plan, int call) {
  const bool reduce = plan.kind == Plan::Kind::kReduceScatter;
  const int64_t rows = reduce ? plan.rows : plan.own_count();
  const int64_t first = reduce ? 0 : plan.own_begin();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < plan.hidden; ++column) {
      put(memory, plan.dtype, row * plan.hidden + column,
          value(plan.rank, first + row, column, call));
    }
  }
}

// The output of a reduce-scatter or an all-gather: every element, exactly.
inline void check_output(const void* output, const Plan& plan, int call) {
  const int world = static_cast<int>(plan.counts.size());
  const bool reduce = plan.kind == Plan::Kind::kReduceScatter;
  for (int owner = 0; owner < world; ++owner) {
    if (reduce && owner != plan.rank) continue;
    const int64_t begin = plan.begins[static_cast<size_t>(owner)];
    for (int64_t row = 0; row < plan.counts[static_cast<size_t>(owner)]; ++row) {
      for (int64_t column = 0; column < plan.hidden; ++column) {
        int expected = 0;
        for (int rank = 0; rank < world; ++rank) {
          if (reduce || rank == owner) expected += value(rank, begin + row, column, call);
        }
        const int64_t at = (reduce ? row : begin + row) * plan.hidden + column;
        CHECK_MSG(get(output, plan.dtype, at) == static_cast<float>(expected),
                  plan.text + ": rank " + std::to_string(plan.rank) + ", call " +
                      std::to_string(call) + ", row " + std::to_string(row) + " of rank " +
                      std::to_string(owner) + ", column " + std::to_string(column) + ": " +
                      std::to_string(get(output, plan.dtype, at)) +
                      " != " + std::to_string(expected));
      }
    }
  }
}

// Exactly as large as the call needs, so that a sanitizer sees the first byte too many.
class Memory {
 public:
  explicit Memory(size_t bytes) : memory_(make_memory(bytes)) {}
  void* get() const { return memory_.get(); }

 private:
  std::shared_ptr<void> memory_;
};

enum class Path { kPool, kStaged };

// Runs `plan` with the operation that its kind names.
inline bool run_from_pool(Engine& engine, const Plan& plan, Buffer& buffer, void* output,
                          size_t offset = 0) {
  return plan.kind == Plan::Kind::kReduceScatter
             ? engine.reduce_scatter(plan, buffer, offset, output, 1)
             : engine.all_gather(plan, buffer, offset, output, 1);
}
inline bool run_staged(Engine& engine, const Plan& plan, const void* input, void* output) {
  return plan.kind == Plan::Kind::kReduceScatter
             ? engine.reduce_scatter_staged(plan, input, output, 1)
             : engine.all_gather_staged(plan, input, output, 1);
}

// One whole call on one rank, from writing the input to checking every element of the output.
inline void do_call(Engine& engine, const Plan& plan, Path path, int call) {
  const Memory output(plan.output_bytes());
  if (path == Path::kPool) {
    const auto buffer = engine.acquire(plan.role, plan.lane, plan.input_bytes());
    CHECK(buffer != nullptr);
    fill(buffer->window.base, plan, call);
    CHECK(run_from_pool(engine, plan, *buffer, output.get()));
  } else {
    const Memory input(plan.input_bytes());
    fill(input.get(), plan, call);
    CHECK(run_staged(engine, plan, input.get(), output.get()));
  }
  check_output(output.get(), plan, call);
}

}  // namespace symmoe::check
