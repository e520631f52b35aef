// The benchmark's instruments: the loops do what they say on each instruction set, and the start
// line lets nobody go before all are there.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "measure/lines.h"
#include "measure/rates.h"
#include "measure/start_line.h"

namespace symmoe::measure {
namespace {

constexpr size_t kWordsPerLine = kLineBytes / sizeof(uint64_t);

struct alignas(kLineBytes) Line {
  uint64_t words[kWordsPerLine];
};

std::vector<Line> make_lines(size_t count, uint64_t seed) {
  std::vector<Line> lines(count);
  for (Line& line : lines) {
    for (uint64_t& word : line.words)
      word = seed = seed * 6364136223846793005 + 1442695040888963407;
  }
  return lines;
}

// The start line's page, as the coordinator makes it.
class Page {
 public:
  explicit Page(int ranks) : descriptor_(memfd_create("measure_test", MFD_CLOEXEC)) {
    CHECK(descriptor_ >= 0);
    CHECK_EQ(ftruncate(descriptor_, static_cast<off_t>(StartLine::bytes_for(ranks))), 0);
  }
  ~Page() { close(descriptor_); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

std::vector<const LineLoops*> all_loops() {
  std::vector<const LineLoops*> found;
  for (const LineLoops* loops : {plain_loops(), avx2_loops(), avx512_loops()}) {
    if (loops != nullptr) found.push_back(loops);
  }
  return found;
}

TEST(loops_agree_on_every_instruction_set) {
  for (const size_t count : {size_t{1}, size_t{3}, size_t{4}, size_t{37}}) {
    const std::vector<Line> first = make_lines(count * 3, 1), second = make_lines(count, 2);
    uint64_t sum = 0;
    for (const Line& line : second) {
      for (const uint64_t word : line.words) sum ^= word;
    }
    for (const LineLoops* loops : all_loops()) {
      for (const Store store : {Store::kCached, Store::kNonTemporal}) {
        CHECK_EQ(loops->read(second.data(), count * kLineBytes), sum);
        std::vector<Line> out = make_lines(count, 3);
        loops->write(out.data(), count * kLineBytes, store);
        for (const Line& line : out) CHECK_EQ(line.words[5], uint64_t{0});
        loops->stream(first.data(), out.data(), count * kLineBytes, 3, store);
        for (size_t i = 0; i < count; ++i) {
          const uint64_t wanted =
              first[3 * i].words[2] ^ first[3 * i + 1].words[2] ^ first[3 * i + 2].words[2];
          CHECK_EQ(out[i].words[2], wanted);
        }
        const void* sources[] = {first.data(), second.data()};
        loops->gather(sources, 2, out.data(), count * kLineBytes, store);
        for (size_t i = 0; i < count; ++i) {
          CHECK_EQ(out[i].words[7], first[i].words[7] ^ second[i].words[7]);
        }
      }
    }
  }
}

TEST(rewrite_keeps_values_at_any_alignment) {
  std::vector<Line> lines = make_lines(5, 4);
  const std::vector<Line> before = lines;
  auto* bytes = reinterpret_cast<char*>(lines.data());
  for (const size_t offset : {0, 1, 63}) {
    for (const size_t size : {0, 1, 64, 200}) rewrite_lines(bytes + offset, size);
  }
  for (size_t i = 0; i < lines.size(); ++i) CHECK_EQ(lines[i].words[0], before[i].words[0]);
}

TEST(nobody_leaves_the_start_line_before_all_are_there) {
  constexpr int kRanks = 3;
  constexpr int kRounds = 200;
  const Page page(kRanks);
  std::atomic<int> arrived{0};
  std::atomic<int> early{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      StartLine line(page.path(), kRanks, rank, 60'000'000'000);
      for (int round = 1; round <= kRounds; ++round) {
        arrived.fetch_add(1);
        // One rank is late now and then, so that the others fall asleep.
        if (rank == 1 && round % 50 == 0) usleep(2000);
        line.start();
        if (arrived.load() < round * kRanks) early.fetch_add(1);
      }
      CHECK(time_barrier(line, 10) > 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(early.load(), 0);
}

TEST(a_missing_rank_is_named) {
  const Page page(2);
  StartLine line(page.path(), 2, 0, 5'000'000);
  CHECK_THROWS(line.start(), DeadlineExceeded);
}

TEST(senseless_arguments_are_refused) {
  const Page page(1);
  CHECK_THROWS(StartLine(page.path(), 2, 2, 1), InvalidArgument);
  CHECK_THROWS(StartLine("/nowhere/at/all", 1, 0, 1), SystemError);
  StartLine line(page.path(), 1, 0, 1'000'000'000);
  std::vector<Line> lines = make_lines(2, 5);
  CHECK_THROWS(time_write(line, lines.data(), 65, Store::kCached), InvalidArgument);
  CHECK_THROWS(time_read(line, {{lines[0].words + 1, 64}}), InvalidArgument);
  CHECK_THROWS(time_stream(line, lines.data(), lines.data(), 64, 0, Store::kCached),
               InvalidArgument);
  CHECK_THROWS(time_gather(line, {{{}, lines.data()}}, 64, Store::kCached), InvalidArgument);
  CHECK(time_read(line, {{lines.data(), 128}}) >= 0);
}

}  // namespace
}  // namespace symmoe::measure

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
