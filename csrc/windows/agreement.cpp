#include "windows/agreement.h"

#include "base/error.h"

namespace symmoe {
namespace {

// A text is the request, the detail and the failure (which may have any form), a line each.
struct Parts {
  std::string request;
  std::string detail;
  std::string failure;
};

Parts split(const std::string& text) {
  const size_t first = text.find('\n');
  const size_t second = first == std::string::npos ? first : text.find('\n', first + 1);
  if (second == std::string::npos) return {text, "", ""};  // no text of ours: a mismatch
  return {text.substr(0, first), text.substr(first + 1, second - first - 1),
          text.substr(second + 1)};
}

}  // namespace

Answers agree(Agreement& agreement, int rank, const std::string& request,
              const std::string& failure, const std::string& detail) {
  const std::string topic = request.substr(0, request.find(' '));
  const auto texts = agreement.gather(topic, request + '\n' + detail + '\n' + failure);
  Answers answers;
  const Parts first = split(texts.front());
  for (size_t other = 0; other < texts.size(); ++other) {
    const Parts parts = split(texts[other]);
    if (parts.request != first.request) {
      throw Mismatch(topic + ", rank " + std::to_string(rank) +
                     ": ranks made different calls. Rank 0: " + first.request + ". Rank " +
                     std::to_string(other) + ": " + parts.request);
    }
    if (!parts.failure.empty()) {
      answers.failures += (answers.failures.empty() ? "rank " : "; rank ") + std::to_string(other) +
                          ": " + parts.failure;
    }
    answers.details.push_back(parts.detail);
  }
  return answers;
}

}  // namespace symmoe
