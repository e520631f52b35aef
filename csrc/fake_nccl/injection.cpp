#include "fake_nccl/injection.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace symmoe::fake {
namespace {

using Action = Failure::Action;

constexpr int kDeathCode = 77;
constexpr int kAnyRank = -1;

struct Rule {
  std::string call;
  int nth = 0;
  int rank = kAnyRank;
  Failure failure;
  std::map<int, int> calls_by_rank;  // so far
};

struct Rules {
  std::mutex mutex;
  std::vector<Rule> rules;
};

// Never destroyed: streams may still run when the process ends.
Rules& rules() {
  static auto* const all = new Rules;
  return *all;
}

std::atomic<int> rank_of_process = -1;
thread_local int rank_of_thread = -1;

// What comes before the separator; the text goes on behind it.
std::string_view take_until(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  return part;
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<Failure> parse_action(std::string_view text) {
  const std::string_view name = take_until(text, ':');
  static const std::map<std::string_view, Action> actions = {
      {"error", Action::kError}, {"oom", Action::kOom},         {"null", Action::kNull},
      {"async", Action::kAsync}, {"pending", Action::kPending}, {"delay", Action::kDelay},
      {"die", Action::kDie},     {"hang", Action::kHang}};
  const auto found = actions.find(name);
  if (found == actions.end()) return std::nullopt;
  Failure failure{found->second, 0};
  if (failure.action == Action::kDelay) {
    const std::optional<int> milliseconds = number(text);
    if (!milliseconds) return std::nullopt;
    failure.milliseconds = *milliseconds;
  }
  return failure;
}

std::optional<Rule> parse_rule(std::string_view text) {
  std::string_view action = text;
  std::string_view place = take_until(action, '=');
  Rule rule;
  rule.call = take_until(place, ':');
  const std::optional<int> nth = number(take_until(place, ':'));
  const std::optional<int> rank = place.empty() ? kAnyRank : number(place);
  const std::optional<Failure> failure = parse_action(action);
  if (rule.call.empty() || !nth || *nth < 1 || !rank || !failure) return std::nullopt;
  rule.nth = *nth;
  rule.rank = *rank;
  rule.failure = *failure;
  return rule;
}

}  // namespace

bool order_failures(const std::string& text) {
  std::vector<Rule> ordered;
  for (std::string_view rest = text; !rest.empty();) {
    const std::optional<Rule> rule = parse_rule(take_until(rest, ','));
    if (!rule) return false;
    ordered.push_back(*rule);
  }
  Rules& all = rules();
  const std::lock_guard lock(all.mutex);
  all.rules = std::move(ordered);
  return true;
}

Failure next_failure(const char* call, int rank) {
  Rules& all = rules();
  const std::lock_guard lock(all.mutex);
  Failure due;
  for (Rule& rule : all.rules) {
    if (rule.call != call || (rule.rank != kAnyRank && rule.rank != rank)) continue;
    if (++rule.calls_by_rank[rank] == rule.nth) due = rule.failure;
  }
  if (due.action == Action::kDie) _exit(kDeathCode);
  return due;
}

void set_current_rank(int rank) {
  rank_of_thread = rank;
  rank_of_process = rank;
}

int current_rank() { return rank_of_thread >= 0 ? rank_of_thread : rank_of_process.load(); }

}  // namespace symmoe::fake
