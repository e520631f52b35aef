// How close the kernels come to the machine's limit. Not a test: prints tables.
//   kernels_speed [topk] [rank] [copy] [small]      (no argument: everything)
// topk: bytes read and written per second, and the ratio to a stream that reads the same number of
// bytes sequentially per byte written, does one operation per vector, and has the better of both
// kinds of stores. rank: the sources were written by another thread just before.

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace symmoe {
namespace {

struct Memory {
  explicit Memory(size_t bytes) : data(new (std::align_val_t{4096}) char[bytes]) {
    std::memset(data, 0x3f, bytes);
  }
  ~Memory() { ::operator delete[](data, std::align_val_t{4096}); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* data;
};

// Other processes only add time, so the lower quartile is nearer to the truth than the median.
double lower_quartile(std::vector<double> values) {
  const auto at = static_cast<std::ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

// The calling thread's own time: where one thread works, being preempted does not count.
int64_t thread_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Seconds of each of several competitors that take turns, so that a noisy machine slows all.
std::vector<double> race(const std::vector<std::function<void()>>& competitors, int rounds,
                         int64_t (*clock)() = now_ns) {
  std::vector<std::vector<double>> times(competitors.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < competitors.size(); ++i) {
      const int64_t start = clock();
      competitors[i]();
      const int64_t end = clock();
      if (round > 0) times[i].push_back(static_cast<double>(end - start) * 1e-9);
    }
  }
  std::vector<double> seconds;
  for (auto& each : times) seconds.push_back(lower_quartile(each));
  return seconds;
}

// Where the machine has two processors, keeps the calling thread on the given one.
void stay_on(int processor) {
  if (std::thread::hardware_concurrency() < 2) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

#if defined(__x86_64__)
template <bool kStream>
__attribute__((target("avx512f"))) void stream_avx512(char* to, const char* from, int64_t bytes,
                                                      int64_t reads) {
  for (int64_t at = 0; at < bytes; at += 256) {
    __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                      _mm512_setzero_si512()};
    const char* next = from + at * reads;
    for (int64_t read = 0; read < reads; ++read, next += 256) {
      for (int v = 0; v < 4; ++v) {
        sum[v] = _mm512_xor_si512(sum[v], _mm512_loadu_si512(next + v * 64));
      }
    }
    for (int v = 0; v < 4; ++v) {
      if constexpr (kStream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + v * 64), sum[v]);
      } else {
        _mm512_storeu_si512(to + at + v * 64, sum[v]);
      }
    }
  }
  _mm_sfence();
}
#endif

void stream_any(char* to, const char* from, int64_t bytes, int64_t reads) {
  for (int64_t at = 0; at < bytes; at += 256) {
    uint64_t sum[32] = {};
    for (int64_t read = 0; read < reads; ++read) {
      uint64_t next[32];
      std::memcpy(next, from + at * reads + read * 256, sizeof next);
      for (int i = 0; i < 32; ++i) sum[i] ^= next[i];
    }
    std::memcpy(to + at, sum, sizeof sum);
  }
}

// Writes `bytes` (a multiple of 256) and reads `reads` times as many, on `threads` threads.
void plain_stream(char* to, const char* from, int64_t bytes, int64_t reads, bool non_temporal) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    return non_temporal ? stream_avx512<true>(to, from, bytes, reads)
                        : stream_avx512<false>(to, from, bytes, reads);
  }
#endif
  (void)non_temporal;
  stream_any(to, from, bytes, reads);
}

// A second thread that runs what it is given, with a spinning hand-over.
class Partner {
 public:
  Partner() : thread_([this] { serve(); }) {}
  ~Partner() {
    start([] {});
    wait();
    stop_ = true;
    thread_.join();
  }
  void start(std::function<void()> work) {
    work_ = std::move(work);
    busy_.store(true, std::memory_order_release);
  }
  void wait() const {
    while (busy_.load(std::memory_order_acquire)) {
    }
  }
  void run(std::function<void()> work) {
    start(std::move(work));
    wait();
  }

 private:
  void serve() {
    stay_on(1);
    while (!stop_) {
      if (!busy_.load(std::memory_order_acquire)) continue;
      work_();
      busy_.store(false, std::memory_order_release);
    }
  }
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::function<void()> work_;
  std::thread thread_;
};

void topk_table(int64_t input_bytes, int64_t hidden, int threads) {
  Memory input(static_cast<size_t>(input_bytes) + 65536);
  Memory output(static_cast<size_t>(input_bytes) + 65536);
  std::vector<float> weights(static_cast<size_t>(input_bytes / hidden), 0.125f);
  for (int64_t slots : {1, 2, 8, 22}) {
    kernels::TopkReduceArgs args;
    args.tokens = input_bytes / (slots * hidden * 2);
    args.slots = slots;
    args.hidden = hidden;
    args.input = input.data;
    args.output = output.data;
    args.weights = weights.data();
    const int64_t written = args.tokens * hidden * 2;
    const auto stream = [&](bool non_temporal) {
      const int64_t half = threads == 1 ? written / 256 * 256 : written / 512 * 256;
      if (threads == 1) return plain_stream(output.data, input.data, half, slots, non_temporal);
      std::thread other([&] {
        plain_stream(output.data + half, input.data + half * slots, half, slots, non_temporal);
      });
      plain_stream(output.data, input.data, half, slots, non_temporal);
      other.join();
    };
    const std::vector<double> seconds =
        race({[&] { kernels::topk_reduce(args, threads); }, [&] { stream(false); },
              [&] { stream(true); }},
             input_bytes > (16 << 20) ? 9 : 101, threads == 1 ? thread_ns : now_ns);
    const double moved = static_cast<double>(written * (slots + 1));
    const double best = std::min(seconds[1], seconds[2]);
    std::printf(
        "%8.2f MiB in %8.2f MiB out  H=%lld K=%-2lld threads=%d  topk %7.2f GB/s  "
        "stream %7.2f (cached stores) %7.2f (non-temporal)  ratio %.2f\n",
        static_cast<double>(input_bytes) / (1 << 20), static_cast<double>(written) / (1 << 20),
        static_cast<long long>(hidden), static_cast<long long>(slots), threads,
        moved / seconds[0] * 1e-9, moved / seconds[1] * 1e-9, moved / seconds[2] * 1e-9,
        best / seconds[0]);
  }
}

// One source is this core's own, the others were just written by the partner's core.
void rank_table(DType type, int ranks) {
  Partner partner;
  for (int64_t bytes = 4096; bytes <= (int64_t{32} << 20); bytes *= bytes < (1 << 20) ? 8 : 4) {
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<const void*> sources;
    for (int rank = 0; rank < ranks; ++rank) {
      memory.push_back(std::make_unique<Memory>(static_cast<size_t>(bytes)));
      sources.push_back(memory.back()->data);
    }
    Memory output(static_cast<size_t>(bytes));
    const kernels::RankReduceArgs args{sources.data(), ranks, output.data,
                                       bytes / static_cast<int64_t>(size_of(type)), type};
    std::vector<double> times;
    int fill = 0x3f;
    for (int round = 0; round < (bytes <= (1 << 20) ? 101 : 9); ++round) {
      std::memset(memory[0]->data, fill, static_cast<size_t>(bytes));
      partner.run([&] {
        for (size_t rank = 1; rank < memory.size(); ++rank) {
          std::memset(memory[rank]->data, fill, static_cast<size_t>(bytes));
        }
      });
      fill ^= 1;
      const int64_t start = now_ns();
      kernels::rank_reduce(args, 1);
      times.push_back(static_cast<double>(now_ns() - start) * 1e-9);
    }
    const double seconds = lower_quartile(times);
    std::printf("%-8s %2d ranks %9lld bytes out  %9.2f us  %7.2f GB/s read and written\n",
                name_of(type), ranks, static_cast<long long>(bytes), seconds * 1e6,
                static_cast<double>(bytes * (ranks + 1)) / seconds * 1e-9);
  }
}

void copy_table() {
  for (int64_t bytes = 4096; bytes <= (int64_t{64} << 20); bytes *= 4) {
    Memory from(static_cast<size_t>(bytes));
    Memory to(static_cast<size_t>(bytes));
    const auto size = static_cast<size_t>(bytes);
    const std::vector<double> seconds = race({[&] { kernels::copy(to.data, from.data, size, 1); },
                                              [&] { std::memcpy(to.data, from.data, size); },
                                              [&] { kernels::copy(to.data, from.data, size, 2); }},
                                             bytes <= (1 << 20) ? 201 : 15);
    std::printf("copy %9lld bytes  %9.2f us  memcpy %9.2f us  two threads %9.2f us\n",
                static_cast<long long>(bytes), seconds[0] * 1e6, seconds[1] * 1e6,
                seconds[2] * 1e6);
  }
}

// Per call, with everything in the first-level cache: what a call costs beside the memory.
void small_table() {
  Memory a(8192);
  Memory b(8192);
  Memory output(8192);
  const void* sources[] = {a.data, b.data};
  constexpr int kCalls = 20'000;
  for (int64_t count : {1, 64, 2048}) {
    const kernels::RankReduceArgs args{sources, 2, output.data, count, DType::kBFloat16};
    const std::vector<double> seconds = race({[&] {
                                               for (int i = 0; i < kCalls; ++i) {
                                                 kernels::rank_reduce(args, 1);
                                               }
                                             }},
                                             9);
    std::printf("rank_reduce of 2 x %lld bf16: %.1f ns per call\n", static_cast<long long>(count),
                seconds[0] / kCalls * 1e9);
  }
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) {
  using namespace symmoe;
  const auto wanted = [&](const char* name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* argument) {
             return std::strcmp(argument, name) == 0;
           });
  };
  std::printf("instruction set: %s\n", kernels::isa_name());
  if (wanted("small")) small_table();
  if (wanted("copy")) copy_table();
  if (wanted("topk")) {
    for (int64_t hidden : {4096, 2880}) {
      for (int threads : {1, 2}) topk_table(int64_t{64} << 20, hidden, threads);
    }
    topk_table(1 << 20, 4096, 1);
  }
  if (wanted("rank")) {
    stay_on(0);
    for (int ranks : {2, 4, 8}) rank_table(DType::kBFloat16, ranks);
    rank_table(DType::kFloat32, 2);
  }
  return 0;
}
