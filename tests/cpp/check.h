#pragma once

// Checks for the standalone test executables. A test is TEST(name) { ... }; the file ends with
// `int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }`.
// A failed check prints where and what and ends its test by an exception; the runner goes on with
// the next test and returns 1. Arguments select the tests whose names contain one of them.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace symmoe::check {

struct Failure {};

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline bool add(const char* name, void (*body)()) {
  tests().push_back({name, body});
  return true;
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  throw Failure{};
}

// Character types print as numbers; enums as their underlying value.
template <typename T>
std::string show(const T& value) {
  std::ostringstream text;
  if constexpr (std::is_enum_v<T>) {
    text << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    text << +value;
  } else if constexpr (requires { text << value; }) {
    text << value;
  } else {
    text << "<" << sizeof(T) << " bytes>";
  }
  return text.str();
}

inline int run_all(int argc, char** argv) {
  const pid_t runner = getpid();
  int failed = 0;
  int ran = 0;
  for (const Test& test : tests()) {
    bool wanted = argc <= 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    ++ran;
    bool ok = false;
    try {
      test.body();
      ok = true;
    } catch (const Failure&) {
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: unexpected exception: %s\n", test.name, error.what());
    }
    // A child that a test forked must not run the remaining tests after a failed check.
    if (getpid() != runner) _exit(ok ? 0 : 1);
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", test.name);
    std::fflush(stdout);
    failed += ok ? 0 : 1;
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed == 0 && ran > 0 ? 0 : 1;
}

}  // namespace symmoe::check

#define TEST(name)                                                                               \
  static void test_##name();                                                                     \
  [[maybe_unused]] static const bool registered_##name = symmoe::check::add(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) symmoe::check::fail(__FILE__, __LINE__, "CHECK(" #condition ")"); \
  } while (false)

// Like CHECK, with a std::string that describes the case at hand.
#define CHECK_MSG(condition, message)                                                            \
  do {                                                                                           \
    if (!(condition))                                                                            \
      symmoe::check::fail(__FILE__, __LINE__, "CHECK(" #condition "): " + std::string(message)); \
  } while (false)

#define CHECK_EQ(left, right)                                                                     \
  do {                                                                                            \
    const auto& check_left = (left);                                                              \
    const auto& check_right = (right);                                                            \
    if (!(check_left == check_right))                                                             \
      symmoe::check::fail(__FILE__, __LINE__,                                                     \
                          "CHECK_EQ(" #left ", " #right "): " + symmoe::check::show(check_left) + \
                              " != " + symmoe::check::show(check_right));                         \
  } while (false)

// The expression throws exactly this kind of exception (or one derived from it).
#define CHECK_THROWS(expression, Type) CHECK_THROWS_WITH(expression, Type, "")

// ... and its message contains `part`.
#define CHECK_THROWS_WITH(expression, Type, part)                                      \
  do {                                                                                 \
    bool check_thrown = false;                                                         \
    try {                                                                              \
      (void)(expression);                                                              \
    } catch (const Type& check_error) {                                                \
      check_thrown = true;                                                             \
      if (std::string(check_error.what()).find(part) == std::string::npos)             \
        symmoe::check::fail(__FILE__, __LINE__,                                        \
                            #expression " threw: " + std::string(check_error.what())); \
    }                                                                                  \
    if (!check_thrown)                                                                 \
      symmoe::check::fail(__FILE__, __LINE__, #expression " did not throw " #Type);    \
  } while (false)
