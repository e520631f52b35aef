#pragma once

#include <cstddef>
#include <memory>

namespace symmoe::emulator {

// The __shared__ variables of one block: each stands alone, so that the address sanitizer sees
// what is written behind it, and begins as NaN and -1, so that reading what nobody wrote shows.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Forgets all variables: a new block begins.
  void clear();

  // The variable that is declared at `site`.
  void* variable(const void* site, size_t bytes);

 private:
  struct Variable {
    const void* site;
    char* memory;
  };

  struct Free {
    void operator()(char* memory) const;
  };

  static constexpr int kMaxVariables = 16;

  std::unique_ptr<char[], Free> memory_;
  Variable variables_[kMaxVariables];  // no container: its code would be watched for races
  int count_ = 0;
  size_t used_ = 0;
};

}  // namespace symmoe::emulator
