#include "measure/rates.h"

#include <string>

#include "base/clock.h"
#include "base/error.h"

namespace symmoe::measure {
namespace {

void check_lines(const char* what, const void* data, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(data) % kLineBytes != 0 || bytes % kLineBytes != 0) {
    throw InvalidArgument(std::string(what) + ": address " +
                          std::to_string(reinterpret_cast<uintptr_t>(data)) + " and size " +
                          std::to_string(bytes) + " must be multiples of " +
                          std::to_string(kLineBytes) + " bytes");
  }
}

}  // namespace

int64_t time_read(StartLine& line, const std::vector<Segment>& segments) {
  for (const Segment& segment : segments) check_lines("time_read", segment.data, segment.bytes);
  const LineLoops& loops = line_loops();
  const int64_t begin = line.start();
  uint64_t sum = 0;
  for (const Segment& segment : segments) sum ^= loops.read(segment.data, segment.bytes);
  asm volatile("" : : "r"(sum) : "memory");
  return now_ns() - begin;
}

int64_t time_write(StartLine& line, void* data, size_t bytes, Store store) {
  check_lines("time_write", data, bytes);
  const LineLoops& loops = line_loops();
  const int64_t begin = line.start();
  loops.write(data, bytes, store);
  asm volatile("" : : "r"(data) : "memory");
  return now_ns() - begin;
}

int64_t time_stream(StartLine& line, const void* in, void* out, size_t out_bytes, size_t mix,
                    Store store) {
  check_lines("time_stream (input)", in, out_bytes);
  check_lines("time_stream (output)", out, out_bytes);
  if (mix == 0) throw InvalidArgument("time_stream: mix is 0, must be at least 1");
  const LineLoops& loops = line_loops();
  const int64_t begin = line.start();
  loops.stream(in, out, out_bytes, mix, store);
  asm volatile("" : : "r"(out) : "memory");
  return now_ns() - begin;
}

int64_t time_gather(StartLine& line, const std::vector<Gather>& targets, size_t bytes,
                    Store store) {
  for (const Gather& target : targets) {
    if (target.sources.empty()) throw InvalidArgument("time_gather: a target without sources");
    check_lines("time_gather (output)", target.out, bytes);
    for (const void* source : target.sources) check_lines("time_gather (input)", source, bytes);
  }
  const LineLoops& loops = line_loops();
  const int64_t begin = line.start();
  for (const Gather& target : targets) {
    loops.gather(target.sources.data(), target.sources.size(), target.out, bytes, store);
  }
  asm volatile("" : : "r"(targets.data()) : "memory");
  return now_ns() - begin;
}

double time_barrier(StartLine& line, int rounds) {
  if (rounds < 1) throw InvalidArgument("time_barrier: " + std::to_string(rounds) + " rounds");
  const int64_t begin = line.start();
  for (int round = 0; round < rounds; ++round) line.cross();
  return static_cast<double>(now_ns() - begin) / rounds;
}

}  // namespace symmoe::measure
