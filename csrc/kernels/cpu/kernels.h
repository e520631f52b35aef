#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

// The arithmetic of the CPU path. Every function gives the same bits for every instruction set,
// alignment, thread count and caller's floating-point mode; any NaN equals any NaN, and a NaN in a
// bfloat16 output is written as 0x7fff. Pointers may have any alignment. Inputs must not change
// during a call and must not overlap the output; only rank_reduce may write exactly over a source.
// `threads` is how many threads may be used; small calls use fewer. Wrong arguments throw
// InvalidArgument before anything is written.
namespace symmoe::kernels {

// Per token: acc = the first present term, then acc = fma(weight, element, acc) in fp32 over the
// present slots in order (acc + element without weights); +0 if no slot is present; times scale;
// one rounding to the output type.
struct TopkReduceArgs {
  const void* input = nullptr;    // [tokens, slots, hidden]; with index: [pairs, hidden]
  const void* weights = nullptr;  // [tokens, slots], or nullptr: a plain sum
  const void* index = nullptr;    // [tokens, slots], row of input, -1 = slot absent; or nullptr
  void* output = nullptr;         // [tokens, hidden]
  int64_t tokens = 0;
  int64_t slots = 0;
  int64_t hidden = 0;
  int64_t pairs = 0;
  float scale = 1.0f;
  bool has_scale = false;
  DType input_type = DType::kBFloat16;
  DType output_type = DType::kBFloat16;
  DType weights_type = DType::kFloat32;  // fp32 or the input's
  bool index_is_64bit = false;
  bool output_is_shared = false;  // other processors read it; a matter of speed only
  // [tokens], or nullptr. Only tokens whose mask has `bit` are written, the others' rows left
  // alone.
  const uint64_t* masks = nullptr;
  uint64_t bit = 0;
};
void topk_reduce(const TopkReduceArgs& args, int threads);

// The two halves of it, for a sum whose rows are not all wanted at the same time: what can be wrong
// with the arguments, then the rows of tokens begin..end-1 of checked ones.
void check_topk_reduce(const TopkReduceArgs& args);
void topk_reduce_rows(const TopkReduceArgs& args, int64_t begin, int64_t end, int threads);

// output[i] = round(sources[0][i] + sources[1][i] + ...), added in fp32 in this order.
struct RankReduceArgs {
  const void* const* sources = nullptr;
  int ranks = 0;
  void* output = nullptr;
  int64_t count = 0;
  DType type = DType::kBFloat16;
};
void rank_reduce(const RankReduceArgs& args, int threads);

void copy(void* destination, const void* source, size_t bytes, int threads);

// The instruction set in use: "avx512bf16", "avx512", "avx2" or "plain". Chosen at the first use:
// SYMMOE_ISA if set (InvalidArgument if this machine cannot run it), else the best one.
const char* isa_name();
// Best first; always ends with "plain".
std::vector<std::string> available_isas();
// For tests and measurements; not to be called while a kernel runs.
void set_isa(std::string_view name);

}  // namespace symmoe::kernels
