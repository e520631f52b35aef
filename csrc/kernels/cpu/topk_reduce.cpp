#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/float_env.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa/float16.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/thresholds.h"

namespace symmoe::kernels {
namespace {

template <typename T>
T read(const void* base, int64_t position) {
  T value;  // memcpy, because the address may have any alignment
  std::memcpy(&value, static_cast<const char*>(base) + position * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

int64_t index_at(const TopkReduceArgs& args, int64_t position) {
  return args.index_is_64bit ? read<int64_t>(args.index, position)
                             : read<int32_t>(args.index, position);
}

float weight_at(const TopkReduceArgs& args, int64_t position) {
  switch (args.weights_type) {
    case DType::kBFloat16:
      return plain::bits_as<float>(uint32_t{read<uint16_t>(args.weights, position)} << 16);
    case DType::kFloat16:
      return plain::float_of_float16(read<uint16_t>(args.weights, position));
    case DType::kFloat32:
      break;
  }
  return read<float>(args.weights, position);
}

template <typename T>
bool any_out_of_range(const TopkReduceArgs& args) {
  uint64_t bad = 0;
  const uint64_t most = static_cast<uint64_t>(args.pairs);
  for (int64_t i = 0; i < args.tokens * args.slots; ++i) {
    // -1 becomes 0, and what is below -1 becomes huge.
    bad |= static_cast<uint64_t>(int64_t{read<T>(args.index, i)}) + 1 > most;
  }
  return bad != 0;
}

void check_index(const TopkReduceArgs& args) {
  if (!(args.index_is_64bit ? any_out_of_range<int64_t>(args) : any_out_of_range<int32_t>(args))) {
    return;
  }
  for (int64_t i = 0; i < args.tokens * args.slots; ++i) {
    const int64_t value = index_at(args, i);
    if (value >= -1 && value < args.pairs) continue;
    throw InvalidArgument("topk_reduce: index[" + std::to_string(i / args.slots) + ", " +
                          std::to_string(i % args.slots) + "] is " + std::to_string(value) +
                          ", must be -1 or a row of input (0 to " + std::to_string(args.pairs - 1) +
                          ")");
  }
}

void require_valid(const TopkReduceArgs& args) {
  const auto wrong = [](const std::string& what) { throw InvalidArgument("topk_reduce: " + what); };
  if (args.tokens < 0 || args.slots < 0 || args.hidden < 0 || args.pairs < 0) {
    wrong("negative size: tokens " + std::to_string(args.tokens) + ", slots " +
          std::to_string(args.slots) + ", hidden " + std::to_string(args.hidden) + ", pairs " +
          std::to_string(args.pairs));
  }
  if (args.weights != nullptr && args.weights_type != DType::kFloat32 &&
      args.weights_type != args.input_type) {
    wrong(std::string("weights are ") + name_of(args.weights_type) +
          ", must be float32 or the input's " + name_of(args.input_type));
  }
  if (args.index != nullptr) check_index(args);
  if (args.tokens == 0 || args.hidden == 0) return;
  if (args.output == nullptr) wrong("output is null");
  const int64_t rows = args.index != nullptr ? args.pairs : args.tokens * args.slots;
  if (args.input == nullptr && rows > 0) wrong("input is null");
}

struct Job {
  const TopkReduceArgs* args;
  int64_t begin;  // tokens
  int64_t end;
  TopkRow kernel;
  int parts;
  TopkStyle style;
  bool through_scratch;
  Term* terms;  // terms_per_part for each part
  int64_t terms_per_part;
};

bool is_written(const TopkReduceArgs& args, int64_t token) {
  return args.masks == nullptr || (args.masks[token] & args.bit) != 0;
}

// Appends the present slots of a token, at most `most`, in order; returns how many.
int64_t gather_terms(const TopkReduceArgs& args, int64_t token, Term* terms, int64_t most) {
  const int64_t row_bytes = args.hidden * static_cast<int64_t>(size_of(args.input_type));
  int64_t count = 0;
  for (int64_t position = token * args.slots; position < (token + 1) * args.slots && count < most;
       ++position) {
    const int64_t row = args.index != nullptr ? index_at(args, position) : position;
    if (row < 0) continue;
    terms[count++] = {static_cast<const char*>(args.input) + row * row_bytes,
                      args.weights != nullptr ? weight_at(args, position) : 1.0f};
  }
  return count;
}

// The terms that the kernel may prefetch: those of the next tokens, if a batch has ended because
// the one behind it is not written.
void gather_ahead(const TopkReduceArgs& args, int64_t token, int64_t end, Term* ahead) {
  int64_t count = 0;
  for (; args.masks != nullptr && token < end && count < kTermsAhead; ++token) {
    if (is_written(args, token)) {
      count += gather_terms(args, token, ahead + count, kTermsAhead - count);
    }
  }
  for (; count < kTermsAhead; ++count) ahead[count] = {args.input, 0.0f};
}

// Where rows go on their way to a window: whole lines copied from here by the C library reach it
// without fetching the lines from the peer that read them last. Stores one by one into such lines
// made a top-k sum of 1 MiB (2 ranks, 2 slots) twice as long, reduce included. Small rows wait
// until there is something to copy; longer rows than fit are rare and written directly.
constexpr int64_t kScratchBytes = 64 << 10;
constexpr int64_t kWorthCopying = 16 << 10;

// Sums `tokens` tokens, whose terms stand one behind the other, into consecutive rows.
void sum_tokens(const Job& job, const Term* terms, const int64_t* counts, int64_t tokens,
                char* output) {
  const TopkReduceArgs& args = *job.args;
  const int64_t row_bytes = args.hidden * static_cast<int64_t>(size_of(args.output_type));
  const float* scale = args.has_scale ? &args.scale : nullptr;
  for (int64_t token = 0; token < tokens; ++token) {
    job.kernel(terms, counts[token], output + token * row_bytes, args.hidden, scale, job.style);
    terms += counts[token];
  }
}

// The same by way of scratch memory. Not inlined: only who needs it takes so much of the stack.
[[gnu::noinline]] void sum_through_scratch(const Job& job, const Term* terms, const int64_t* counts,
                                           int64_t tokens, char* output) {
  const int64_t row_bytes = job.args->hidden * static_cast<int64_t>(size_of(job.args->output_type));
  alignas(64) char scratch[kScratchBytes];
  for (int64_t token = 0; token < tokens;) {
    int64_t rows = 0;
    int64_t gathered = 0;
    while (token + rows < tokens && rows * row_bytes < kWorthCopying) {
      gathered += counts[token + rows++];
    }
    sum_tokens(job, terms, counts + token, rows, scratch);
    std::memcpy(output + token * row_bytes, scratch, static_cast<size_t>(rows * row_bytes));
    terms += gathered;
    token += rows;
  }
}

// Tokens are gathered in batches, so that the kernel sees the rows behind those of its token.
constexpr int64_t kBatchTokens = 64;
constexpr int64_t kBatchTerms = 256;

void run_part(void* context, int part) {
  const Job& job = *static_cast<const Job*>(context);
  const TopkReduceArgs& args = *job.args;
  const int64_t row_bytes = args.hidden * static_cast<int64_t>(size_of(args.output_type));
  Term* const terms = job.terms + part * job.terms_per_part;
  const int64_t tokens_in_all = job.end - job.begin;
  const int64_t end = job.begin + tokens_in_all * (part + 1) / job.parts;
  char* output = static_cast<char*>(args.output);
  const FloatEnv env;
  for (int64_t token = job.begin + tokens_in_all * part / job.parts; token < end;) {
    int64_t counts[kBatchTokens];
    int64_t tokens = 0;
    if (!is_written(args, token)) {
      ++token;
      continue;
    }
    Term* last = terms;
    while (tokens < kBatchTokens && token + tokens < end && is_written(args, token + tokens) &&
           last - terms + args.slots + kTermsAhead <= job.terms_per_part) {
      counts[tokens] = gather_terms(args, token + tokens, last, args.slots);
      last += counts[tokens++];
    }
    gather_ahead(args, token + tokens, end, last);
    (job.through_scratch ? sum_through_scratch : sum_tokens)(job, terms, counts, tokens,
                                                             output + token * row_bytes);
    token += tokens;
  }
}

}  // namespace

void check_topk_reduce(const TopkReduceArgs& args) { require_valid(args); }

void topk_reduce(const TopkReduceArgs& args, int threads) {
  require_valid(args);
  topk_reduce_rows(args, 0, args.tokens, threads);
}

void topk_reduce_rows(const TopkReduceArgs& args, int64_t begin, int64_t end, int threads) {
  const int64_t tokens = end - begin;
  if (tokens == 0 || args.hidden == 0) return;
  const KernelTable& table = kernel_table();
  const int64_t elements = tokens * args.hidden;
  const int64_t output_bytes = elements * static_cast<int64_t>(size_of(args.output_type));
  const int64_t input_bytes =
      elements * args.slots * static_cast<int64_t>(size_of(args.input_type));
  Job job{};
  job.args = &args;
  job.begin = begin;
  job.end = end;
  job.kernel = table.topk_row[static_cast<int>(args.input_type)][static_cast<int>(args.output_type)]
                             [args.weights != nullptr];
  job.parts = threads <= 1 ? 1
                           : static_cast<int>(std::min<int64_t>(
                                 tokens, useful_threads(threads, input_bytes + output_bytes)));
  job.style = {output_bytes >= kStreamBytes, input_bytes >= kBeyondPrivateCaches};
  job.through_scratch = args.output_is_shared && !job.style.stream &&
                        output_bytes / tokens <= kScratchBytes - kWorthCopying;

  Term few[kBatchTerms];
  std::vector<Term> many;
  job.terms = few;
  job.terms_per_part = std::max(kBatchTerms, args.slots + kTermsAhead);
  if (job.parts > 1 || job.terms_per_part > kBatchTerms) {
    many.resize(static_cast<size_t>(job.parts * job.terms_per_part));
    job.terms = many.data();
  }
  if (job.parts == 1) return run_part(&job, 0);
  run_parts(job.parts, run_part, &job);
}

}  // namespace symmoe::kernels
