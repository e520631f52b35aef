#include <algorithm>
#include <cstring>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/thresholds.h"

namespace symmoe::kernels {
namespace {

struct Job {
  char* destination;
  const char* source;
  int64_t bytes;
  int parts;
  StreamCopy stream_copy;  // nullptr: memcpy
};

// The C library copies up to about the size of the second-level cache by the processor's string
// instruction, which takes lines that a peer has read without fetching them; larger copies by a
// loop of stores, which fetches each: 8 times as long per line.
void copy_in_pieces(char* destination, const char* source, size_t bytes) {
  constexpr size_t kPiece = 256 << 10;
  for (size_t done = 0; done < bytes; done += kPiece) {
    std::memcpy(destination + done, source + done, std::min(kPiece, bytes - done));
  }
}

void run_part(void* context, int part) {
  const Job& job = *static_cast<const Job*>(context);
  constexpr int64_t kLine = 64;
  const int64_t lines = (job.bytes + kLine - 1) / kLine;
  const int64_t begin = lines * part / job.parts * kLine;
  const int64_t end = std::min(job.bytes, lines * (part + 1) / job.parts * kLine);
  const size_t size = static_cast<size_t>(end - begin);
  if (job.stream_copy != nullptr) {
    job.stream_copy(job.destination + begin, job.source + begin, size);
  } else {
    copy_in_pieces(job.destination + begin, job.source + begin, size);
  }
}

}  // namespace

void copy(void* destination, const void* source, size_t bytes, int threads) {
  if (bytes == 0) return;
  const int64_t size = static_cast<int64_t>(bytes);
  Job job{static_cast<char*>(destination), static_cast<const char*>(source), size, 1,
          size >= kStreamBytes ? kernel_table().stream_copy : nullptr};
  if (threads > 1) job.parts = useful_threads(threads, 2 * size);
  if (job.parts == 1) return run_part(&job, 0);
  run_parts(job.parts, run_part, &job);
}

}  // namespace symmoe::kernels
