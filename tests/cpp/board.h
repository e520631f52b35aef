#pragma once

// How the ranks of a test agree, be they threads or processes: texts in memory that all of them
// share.

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "rank_processes.h"
#include "windows/agreement.h"

namespace symmoe::check {

class Board {
 public:
  Board() {
    void* const memory =
        mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    state_ = new (memory) State;
  }
  ~Board() { munmap(state_, sizeof(State)); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // From now on nobody waits for the rank.
  void leave(int rank) const { state_->gone[static_cast<size_t>(rank)].store(true); }

 private:
  friend class BoardAgreement;
  // Of two turns: nobody is further ahead than the turn that all others have yet to read.
  struct State {
    std::array<std::atomic<uint64_t>, kMaxRanks> turns{};
    std::array<std::atomic<bool>, kMaxRanks> gone{};
    std::array<std::array<std::array<char, 2048>, kMaxRanks>, 2> texts{};
  };
  State* state_;
};

class BoardAgreement : public Agreement {
 public:
  BoardAgreement(const Board& board, int rank, int world)
      : state_(*board.state_), rank_(rank), world_(world) {}

  std::vector<std::string> gather(const std::string& topic, const std::string& text) override {
    if (before) before(topic);
    const std::string said = change ? change(text) : text;
    auto& texts = state_.texts[turn_ % 2];
    auto& own = texts[static_cast<size_t>(rank_)];
    CHECK(said.size() < own.size());
    std::memcpy(own.data(), said.c_str(), said.size() + 1);
    ++turn_;
    state_.turns[static_cast<size_t>(rank_)].store(turn_);
    topics.push_back(topic);
    std::vector<std::string> all;
    for (int other = 0; other < world_; ++other) {
      const auto index = static_cast<size_t>(other);
      wait_until([&] {
        if (state_.turns[index].load() >= turn_) return true;
        if (state_.gone[index].load()) throw PeerLost("rank " + std::to_string(other) + " ended");
        return false;
      });
      all.emplace_back(texts[index].data());
    }
    return all;
  }

  std::vector<std::string> topics;                             // of all calls so far
  std::function<void(const std::string& topic)> before;        // what happens at the next calls
  std::function<std::string(const std::string& text)> change;  // what this rank says instead

 private:
  Board::State& state_;
  const int rank_;
  const int world_;
  uint64_t turn_ = 0;
};

}  // namespace symmoe::check
