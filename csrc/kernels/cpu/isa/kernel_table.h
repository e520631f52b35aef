#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/epilogue_numbers.h"

// What one instruction set provides. This header and the others in this folder are seen by files
// that are compiled for different instruction sets, so they hold no function that a linker could
// merge across files (no inline function with external linkage, no standard templates): it might
// keep the AVX-512 copy for everybody.
#define SYMMOE_INLINE inline __attribute__((always_inline))

namespace symmoe::kernels {

// One present slot of a token.
struct Term {
  const void* row;
  float weight;
};

// How to move the data of a topk_row; neither changes a bit of the result.
struct TopkStyle {
  bool stream;      // non-temporal stores
  bool sequential;  // the rows come from memory, not from the caches
};

// The kernel may prefetch the rows of this many terms behind the last one of its token.
constexpr int kTermsAhead = 2;

// Writes one row of `hidden` elements: the weighted sum of `count` terms, times *scale unless null.
// terms[count] ... terms[count + kTermsAhead - 1] exist as well; their rows are only prefetched.
using TopkRow = void (*)(const Term* terms, int64_t count, void* output, int64_t hidden,
                         const float* scale, TopkStyle style);

// Elements [begin, end) of the sum over `ranks` sources.
using RankRange = void (*)(const void* const* sources, int ranks, void* output, int64_t begin,
                           int64_t end, bool stream);

// One row to sum: where it is at `ranks` ranks, at least one, and where a row is that will be asked
// for later, at `ahead_ranks`, which is only prefetched.
struct RankRow {
  const void* const* sources;
  int ranks;
  const void* const* ahead;
  int ahead_ranks;
  void* output;
};

// Sums `hidden` elements. Who has streamed has to finish the streams.
using RankRowSum = void (*)(const RankRow& row, int64_t hidden, bool stream);

// The sum of a row, and what comes behind it up to its norm: times *scale unless null, plus
// `shared` unless null (in this order, or with scale_shared in the other), plus `residual` unless
// null. After every step the row is rounded to its type.
struct RowSteps {
  const void* const* sources;  // of `ranks`, at least one
  int ranks;
  const void* shared;
  const void* residual;
  const float* scale;
  bool scale_shared;
  void* output;              // may be exactly `residual` or a source
  const void* const* ahead;  // rows that will be asked for later, only prefetched
  int ahead_rows;
};

// Returns the sum of squares of what it has written, see kSquareLanes.
using RowStepsRun = float (*)(const RowSteps& steps, int64_t hidden);

// output[i] = round(row[i] * factor * weight[i]); `output` may be exactly `row`.
struct NormedRow {
  const void* row;
  const void* weight;
  float factor;
  void* output;
};
using NormRow = void (*)(const NormedRow& norm, int64_t hidden, bool stream);

// Writes round(row[i] / scale), one byte each, and returns the scale: the largest magnitude / the
// largest number of the format, but no subnormal. Of a row that is not finite: NaN, and zeros.
using QuantizeRow = float (*)(const void* row, void* output, int64_t hidden);

// A copy by non-temporal stores.
using StreamCopy = void (*)(void* destination, const void* source, size_t bytes);

struct KernelTable {
  const char* name;
  TopkRow topk_row[kDTypes][kDTypes][2];  // [input type][output type][weighted], by DType's value
  RankRange rank_range[kDTypes];
  RankRowSum rank_row[kDTypes];
  RowStepsRun row_steps[kDTypes];
  NormRow norm_row[kDTypes][2];  // [type][weights are fp32]
  QuantizeRow quantize_row[kDTypes][kQuantized];
  StreamCopy stream_copy;
  void (*finish_stream)();
};

namespace plain {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512bf16 {
extern const KernelTable kTable;
}
#endif

}  // namespace symmoe::kernels
