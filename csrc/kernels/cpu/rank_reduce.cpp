#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/cpu/float_env.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/thresholds.h"

namespace symmoe::kernels {
namespace {

struct Job {
  const RankReduceArgs* args;
  RankRange kernel;
  int parts;
  bool stream;
};

void run_part(void* context, int part) {
  const Job& job = *static_cast<const Job*>(context);
  const RankReduceArgs& args = *job.args;
  // Whole cache lines per part, so that no two threads write the same line.
  constexpr int64_t kLine = 64;
  const int64_t lines = (args.count + kLine - 1) / kLine;
  const int64_t begin = lines * part / job.parts * kLine;
  const int64_t end = std::min(args.count, lines * (part + 1) / job.parts * kLine);
  const FloatEnv env;
  job.kernel(args.sources, args.ranks, args.output, begin, end, job.stream);
}

void validate(const RankReduceArgs& args) {
  const auto wrong = [](const std::string& what) { throw InvalidArgument("rank_reduce: " + what); };
  if (args.ranks < 1) wrong("ranks is " + std::to_string(args.ranks) + ", must be at least 1");
  if (args.count < 0) wrong("count is " + std::to_string(args.count) + ", must not be negative");
  if (args.count == 0) return;
  if (args.output == nullptr) wrong("output is null");
  if (args.sources == nullptr) wrong("sources is null");
  for (int rank = 0; rank < args.ranks; ++rank) {
    if (args.sources[rank] == nullptr) wrong("source of rank " + std::to_string(rank) + " is null");
  }
}

}  // namespace

void rank_reduce(const RankReduceArgs& args, int threads) {
  validate(args);
  if (args.count == 0) return;
  const KernelTable& table = kernel_table();
  const int64_t bytes = args.count * static_cast<int64_t>(size_of(args.type));
  Job job{&args, table.rank_range[static_cast<int>(args.type)], 1, bytes >= kStreamBytes};
  if (threads > 1) job.parts = useful_threads(threads, bytes * (args.ranks + 1));
  if (job.parts == 1) return run_part(&job, 0);
  run_parts(job.parts, run_part, &job);
}

}  // namespace symmoe::kernels
