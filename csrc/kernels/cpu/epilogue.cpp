#include "kernels/cpu/epilogue.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "kernels/cpu/float_env.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/row_sources.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/thresholds.h"

namespace symmoe::kernels {
namespace {

constexpr int64_t kLine = 64;

struct Job {
  const EpilogueReduceArgs* args;
  const KernelTable* table;
  int64_t row_bytes;
  int64_t output_row_bytes;
  int parts;
  bool stream;
  // One row per part: what a step hands on to the next stays in the first-level cache.
  char* work;
  int64_t work_bytes;

  uint64_t mask_of(int64_t row) const {
    return args->masks != nullptr ? args->masks[row] : ~uint64_t{0} >> (kMaskBits - args->ranks);
  }
};

// `work`: memory for one row.
void reduce_row(const Job& job, int64_t row, const RowSources& sources, const RowSources& ahead,
                char* work) {
  const EpilogueReduceArgs& args = *job.args;
  const Epilogue& steps = args.steps;
  const int type = static_cast<int>(args.type);
  const bool quantizes = steps.quantized != Quantized::kNone;
  const int64_t at = row * job.row_bytes;
  char* const output = static_cast<char*>(args.output) + row * job.output_row_bytes;
  char* const residual =
      steps.residual == nullptr ? nullptr : static_cast<char*>(steps.residual) + at;
  const bool ends_here = steps.norm_weight == nullptr && !quantizes;
  char* x = residual != nullptr ? residual : ends_here ? output : work;
  const RowSteps first{
      .sources = sources.at,
      .ranks = sources.ranks,
      .shared = steps.shared == nullptr ? nullptr : static_cast<const char*>(steps.shared) + at,
      .residual = residual,
      .scale = steps.has_scale ? &steps.scale : nullptr,
      .scale_shared = steps.scale_shared,
      .output = x,
      .ahead = ahead.at,
      .ahead_rows = ahead.ranks};
  const float squares = job.table->row_steps[type](first, args.hidden);
  if (steps.norm_weight != nullptr) {
    const float mean = squares / static_cast<float>(args.hidden);
    const NormedRow norm{x, steps.norm_weight, 1.0f / std::sqrt(mean + steps.eps),
                         quantizes ? work : output};
    const bool wide = steps.weight_type == DType::kFloat32;
    job.table->norm_row[type][wide ? 1 : 0](norm, args.hidden, job.stream);
    x = static_cast<char*>(norm.output);
  } else if (ends_here && residual != nullptr) {
    std::memcpy(output, residual, static_cast<size_t>(job.row_bytes));
  }
  if (quantizes) {
    const int to = static_cast<int>(steps.quantized);
    const float scale = job.table->quantize_row[type][to](x, output, args.hidden);
    std::memcpy(steps.scales + row, &scale, sizeof scale);
  }
}

void run_part(void* context, int part) {
  const Job& job = *static_cast<const Job*>(context);
  const EpilogueReduceArgs& args = *job.args;
  const int64_t end = args.rows * (part + 1) / job.parts;
  int64_t row = args.rows * part / job.parts;
  if (row == end) return;
  const FloatEnv env;
  char* const work = job.work + part * job.work_bytes;
  const RowSources nothing{};
  RowSources sources[2];
  sources[row % 2].set(args.sources, job.mask_of(row), row * job.row_bytes);
  for (; row < end; ++row) {
    RowSources& now = sources[row % 2];
    RowSources& next = sources[(row + 1) % 2];
    next.set(args.sources, row + 1 < end ? job.mask_of(row + 1) : 0, (row + 1) * job.row_bytes);
    if (now.ranks == 0) {
      std::memset(work, 0, static_cast<size_t>(job.row_bytes));
      now.at[0] = work;
      now.ranks = 1;
    }
    // Rows of a dense call lie one behind the other, as the processor's own prefetch expects.
    reduce_row(job, row, now, args.masks != nullptr ? next : nothing, work);
  }
  if (job.stream) job.table->finish_stream();
}

void validate(const EpilogueReduceArgs& args) {
  const auto wrong = [](const std::string& what) {
    throw InvalidArgument("reduce_with_epilogue: " + what);
  };
  if (args.ranks < 1 || args.ranks > kMaskBits) {
    wrong("ranks is " + std::to_string(args.ranks) + ", must be 1 to " + std::to_string(kMaskBits));
  }
  if (args.rows < 0 || args.hidden < 0) wrong("negative size");
  check_epilogue(args.steps, args.type, args.hidden == 0 ? 0 : args.rows);
  if (args.rows == 0 || args.hidden == 0) return;
  if (args.output == nullptr) wrong("output is null");
  if (args.sources == nullptr) wrong("sources is null");
  uint64_t used = args.masks == nullptr ? ~uint64_t{0} >> (kMaskBits - args.ranks) : 0;
  for (int64_t row = 0; args.masks != nullptr && row < args.rows; ++row) used |= args.masks[row];
  for (; used != 0; used &= used - 1) {
    const int rank = std::countr_zero(used);
    if (rank >= args.ranks) {
      wrong("a mask has rank " + std::to_string(rank) + " of " + std::to_string(args.ranks));
    }
    if (args.sources[rank] == nullptr) wrong("source of rank " + std::to_string(rank) + " is null");
  }
}

// Rows read and written in all, as far as they are as wide as the sum.
int64_t rows_moved(const EpilogueReduceArgs& args) {
  int64_t rows = args.rows;
  if (args.masks == nullptr) {
    rows += args.rows * args.ranks;
  } else {
    for (int64_t row = 0; row < args.rows; ++row) rows += std::popcount(args.masks[row]);
  }
  if (args.steps.shared != nullptr) rows += args.rows;
  if (args.steps.residual != nullptr) rows += 2 * args.rows;
  return rows;
}

}  // namespace

void check_epilogue(const Epilogue& steps, DType type, int64_t rows) {
  const auto wrong = [](const std::string& what) { throw InvalidArgument("epilogue: " + what); };
  if (steps.norm_weight != nullptr) {
    if (steps.weight_type != type && steps.weight_type != DType::kFloat32) {
      wrong(std::string("norm_weight is ") + name_of(steps.weight_type) + " for rows of " +
            name_of(type));
    }
    if (!(steps.eps >= 0.0f) || std::isinf(steps.eps)) {
      wrong("eps is " + std::to_string(steps.eps) + ", must be finite and not negative");
    }
  }
  if (rows > 0 && steps.quantized != Quantized::kNone && steps.scales == nullptr) {
    wrong("quantised, and scales is null");
  }
}

void reduce_with_epilogue(const EpilogueReduceArgs& args, int threads) {
  validate(args);
  if (args.rows == 0 || args.hidden == 0) return;
  Job job{};
  job.args = &args;
  job.table = &kernel_table();
  job.row_bytes = args.hidden * static_cast<int64_t>(size_of(args.type));
  job.output_row_bytes = args.hidden * static_cast<int64_t>(args.steps.output_size(args.type));
  job.parts = 1;
  job.stream =
      args.rows * job.output_row_bytes >= kStreamBytes && args.steps.quantized == Quantized::kNone;
  if (threads > 1) {
    const int64_t moved = rows_moved(args) * job.row_bytes;
    job.parts = static_cast<int>(std::min<int64_t>(args.rows, useful_threads(threads, moved)));
  }
  job.work_bytes = (job.row_bytes + kLine - 1) / kLine * kLine;
  const auto bytes = static_cast<size_t>(job.parts * job.work_bytes + kLine);
  const auto memory = std::make_unique_for_overwrite<char[]>(bytes);
  void* aligned = memory.get();
  size_t space = bytes;
  job.work = static_cast<char*>(std::align(kLine, bytes - kLine, aligned, space));
  if (job.parts == 1) return run_part(&job, 0);
  run_parts(job.parts, run_part, &job);
}

}  // namespace symmoe::kernels
