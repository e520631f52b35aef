#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/cpu/float_env.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/routing.h"
#include "kernels/cpu/row_sources.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/thresholds.h"

namespace symmoe::kernels {
namespace {

struct ReduceJob {
  const RoutedReduceArgs* args;
  RankRowSum kernel;
  int64_t row_bytes;
  int parts;
  bool stream;
};

void reduce_part(void* context, int part) {
  const ReduceJob& job = *static_cast<const ReduceJob*>(context);
  const RoutedReduceArgs& args = *job.args;
  const int64_t begin = args.rows * part / job.parts;
  const int64_t end = args.rows * (part + 1) / job.parts;
  const FloatEnv env;
  RowSources now;
  RowSources ahead;
  for (int64_t row = begin; row < end; ++row) {
    const uint64_t mask = args.masks[row];
    char* const output = static_cast<char*>(args.output) + row * job.row_bytes;
    if (mask == 0) {
      std::memset(output, 0, static_cast<size_t>(job.row_bytes));
      continue;
    }
    now.set(args.sources, mask, row * job.row_bytes);
    // Where a rank's rows follow each other, the processor goes on reading ahead by itself: telling
    // it to made rows of four ranks a fifth slower.
    const uint64_t begun = row + 1 < end ? args.masks[row + 1] & ~mask : 0;
    ahead.set(args.sources, begun, (row + 1) * job.row_bytes);
    job.kernel({now.at, now.ranks, ahead.at, ahead.ranks, output}, args.hidden, job.stream);
  }
  if (job.stream) kernel_table().finish_stream();
}

void validate(const RoutedReduceArgs& args) {
  const auto wrong = [](const std::string& what) {
    throw InvalidArgument("routed_reduce: " + what);
  };
  if (args.ranks < 1 || args.ranks > kMaskBits) {
    wrong("ranks is " + std::to_string(args.ranks) + ", must be 1 to " + std::to_string(kMaskBits));
  }
  if (args.rows < 0 || args.hidden < 0) wrong("negative size");
  if (args.rows == 0 || args.hidden == 0) return;
  if (args.output == nullptr) wrong("output is null");
  if (args.sources == nullptr) wrong("sources is null");
  if (args.masks == nullptr) wrong("masks is null");
  uint64_t used = 0;
  for (int64_t row = 0; row < args.rows; ++row) used |= args.masks[row];
  for (; used != 0; used &= used - 1) {
    const int rank = std::countr_zero(used);
    if (rank >= args.ranks) {
      wrong("a mask has rank " + std::to_string(rank) + " of " + std::to_string(args.ranks));
    }
    if (args.sources[rank] == nullptr) wrong("source of rank " + std::to_string(rank) + " is null");
  }
}

struct CopyJob {
  char* destination;
  const char* source;
  const uint64_t* masks;
  uint64_t bit;
  int64_t rows;
  size_t row_bytes;
  int parts;
};

void copy_part(void* context, int part) {
  const CopyJob& job = *static_cast<const CopyJob*>(context);
  const int64_t end = job.rows * (part + 1) / job.parts;
  for (int64_t row = job.rows * part / job.parts; row < end; ++row) {
    if ((job.masks[row] & job.bit) == 0) continue;
    const size_t offset = static_cast<size_t>(row) * job.row_bytes;
    std::memcpy(job.destination + offset, job.source + offset, job.row_bytes);
  }
}

int64_t rows_in(const uint64_t* masks, int64_t rows) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) count += std::popcount(masks[row]);
  return count;
}

}  // namespace

void routed_reduce(const RoutedReduceArgs& args, int threads) {
  validate(args);
  if (args.rows == 0 || args.hidden == 0) return;
  const KernelTable& table = kernel_table();
  const int64_t row_bytes = args.hidden * static_cast<int64_t>(size_of(args.type));
  ReduceJob job{&args, table.rank_row[static_cast<int>(args.type)], row_bytes, 1,
                args.rows * row_bytes >= kStreamBytes};
  if (threads > 1) {
    const int64_t moved = (rows_in(args.masks, args.rows) + args.rows) * row_bytes;
    job.parts = static_cast<int>(std::min<int64_t>(args.rows, useful_threads(threads, moved)));
  }
  if (job.parts == 1) return reduce_part(&job, 0);
  run_parts(job.parts, reduce_part, &job);
}

void copy_routed(void* destination, const void* source, const uint64_t* masks, int rank,
                 int64_t rows, size_t row_bytes, int threads) {
  CopyJob job{static_cast<char*>(destination),
              static_cast<const char*>(source),
              masks,
              uint64_t{1} << rank,
              rows,
              row_bytes,
              1};
  if (threads > 1 && rows > 1) {
    const int64_t moved = 2 * rows * static_cast<int64_t>(row_bytes);
    job.parts = static_cast<int>(std::min<int64_t>(rows, useful_threads(threads, moved)));
  }
  if (job.parts == 1) return copy_part(&job, 0);
  run_parts(job.parts, copy_part, &job);
}

}  // namespace symmoe::kernels
