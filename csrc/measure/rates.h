#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "measure/lines.h"
#include "measure/start_line.h"

namespace symmoe::measure {

struct Segment {
  const void* data;
  size_t bytes;
};

// Each waits at the start line, so that all processors do the same at once, and returns how long
// this one took, in ns.
int64_t time_read(StartLine& line, const std::vector<Segment>& segments);
int64_t time_write(StartLine& line, void* data, size_t bytes, Store store);
int64_t time_stream(StartLine& line, const void* in, void* out, size_t out_bytes, size_t mix,
                    Store store);

// For each target in turn: out = xor of its sources, all of the same size.
struct Gather {
  std::vector<const void*> sources;
  void* out;
};
int64_t time_gather(StartLine& line, const std::vector<Gather>& targets, size_t bytes, Store store);

// The mean of `rounds` rounds of the barrier itself, in ns.
double time_barrier(StartLine& line, int rounds);

}  // namespace symmoe::measure
