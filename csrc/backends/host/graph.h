#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/host/worker.h"

namespace symmoe::host {

// What was captured: nodes in the order of their capture. A lane is what one captured stream did;
// its nodes follow each other. Lane 0 is the stream in which the capture began and ended.
struct Node {
  std::shared_ptr<Work> work;
  size_t lane = 0;
  std::vector<size_t> after;  // nodes of any lane that come before this one
};

// A graph that can be launched. Its launches follow one another, also on different streams. Each
// lane but the first has a thread of its own, so lanes that wait for each other's peers may do so.
class Graph {
 public:
  // `ends`: the nodes after which lane 0 has nothing left to do or to wait for.
  Graph(std::vector<Node> nodes, size_t lanes, std::vector<size_t> ends);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(Worker& stream);

 private:
  std::mutex mutex_;
  std::vector<Node> nodes_;
  std::vector<size_t> ends_;
  std::vector<std::shared_ptr<Worker>> branches_;  // of lanes 1, 2, ...
  std::shared_ptr<Point> last_launch_;
};

// Whether every node lies before one of `ends`, or is one.
bool all_lead_to(const std::vector<Node>& nodes, const std::vector<size_t>& ends);

}  // namespace symmoe::host
