#include "backends/host/graph.h"

#include <algorithm>
#include <utility>

namespace symmoe::host {

Graph::Graph(std::vector<Node> nodes, size_t lanes, std::vector<size_t> ends)
    : nodes_(std::move(nodes)), ends_(std::move(ends)) {
  for (size_t lane = 1; lane < lanes; ++lane) branches_.push_back(std::make_shared<Worker>());
}

Graph::~Graph() {
  for (const std::shared_ptr<Worker>& branch : branches_) branch->close();
}

void Graph::launch(Worker& stream) {
  const std::lock_guard lock(mutex_);
  const auto begin = std::make_shared<Point>();
  stream.push({.wait_for = last_launch_, .work = nullptr, .reach = begin});
  for (const std::shared_ptr<Worker>& branch : branches_) {
    branch->push({.wait_for = begin, .work = nullptr, .reach = nullptr});
  }

  // The order of the nodes is one in which every node comes after those that it waits for.
  std::vector<std::shared_ptr<Point>> reached;
  reached.reserve(nodes_.size());
  for (const Node& node : nodes_) {
    Worker& worker = node.lane == 0 ? stream : *branches_[node.lane - 1];
    for (const size_t before : node.after) {
      if (nodes_[before].lane == node.lane) continue;
      worker.push({.wait_for = reached[before], .work = nullptr, .reach = nullptr});
    }
    reached.push_back(std::make_shared<Point>());
    worker.push({.wait_for = nullptr, .work = node.work, .reach = reached.back()});
  }

  for (const size_t end : ends_) {
    stream.push({.wait_for = reached[end], .work = nullptr, .reach = nullptr});
  }
  last_launch_ = std::make_shared<Point>();
  stream.push({.wait_for = nullptr, .work = nullptr, .reach = last_launch_});
}

bool all_lead_to(const std::vector<Node>& nodes, const std::vector<size_t>& ends) {
  std::vector<bool> joined(nodes.size(), false);
  for (const size_t end : ends) joined[end] = true;
  for (size_t node = nodes.size(); node-- > 0;) {
    if (!joined[node]) return false;
    for (const size_t before : nodes[node].after) joined[before] = true;
  }
  return true;
}

}  // namespace symmoe::host
