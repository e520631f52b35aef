// What each version of NCCL is trusted with.

#include "runtime/nccl/capabilities.h"

#include "check.h"
#include "runtime/nccl/library.h"

namespace symmoe {
namespace {

// A library with every function.
NcclFunctions all_functions() {
  NcclFunctions functions{};
  functions.mem_alloc = [](void**, size_t) { return kNcclSuccess; };
  functions.mem_free = [](void*) { return kNcclSuccess; };
  functions.window_register = [](NcclComm, void*, size_t, NcclWindow*, int) {
    return kNcclSuccess;
  };
  functions.window_deregister = [](NcclComm, NcclWindow) { return kNcclSuccess; };
  functions.get_lsa_device_pointer = [](NcclWindow, size_t, int, void**) { return kNcclSuccess; };
  return functions;
}

struct Expected {
  int version;
  bool windows;
  bool direct;
  bool unsafe_direct;  // with SYMMOE_ALLOW_UNSAFE_NCCL=1
  bool peer_pointers;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(every_version_is_trusted_with_what_it_does_well) {
  const Expected table[] = {
      {2804, false, false, false, false},  // 2.8.4, in the old encoding
      {21803, false, false, false, false}, {21901, false, false, false, false},
      {22702, false, false, false, false}, {22703, true, false, false, false},
      {22809, true, false, false, false},  {22901, true, false, false, false},
      {22902, true, false, true, true},    {22907, true, false, true, true},
      {23003, true, false, true, true},    {23006, true, false, true, true},
      {23007, true, true, true, true},     {23102, true, true, true, true},
      {23203, true, true, true, true},     {30000, true, true, true, true},
  };
  for (const Expected& expected : table) {
    const std::string version = nccl_version_text(expected.version);
    for (const bool unsafe : {false, true}) {
      const NcclCapabilities found = capabilities_of(expected.version, all_functions(), unsafe);
      CHECK_MSG(found.windows == expected.windows, version);
      CHECK_MSG(found.direct == (unsafe ? expected.unsafe_direct : expected.direct), version);
      CHECK_MSG(found.peer_pointers == expected.peer_pointers, version);
      // A reason exactly where the answer is no, and it names the version.
      CHECK_MSG(found.no_windows.empty() == found.windows, found.no_windows);
      CHECK_MSG(found.no_direct.empty() == found.direct, found.no_direct);
      CHECK_MSG(found.no_peer_pointers.empty() == found.peer_pointers, found.no_peer_pointers);
      for (const std::string& reason :
           {found.no_windows, found.no_direct, found.no_peer_pointers}) {
        CHECK_MSG(reason.empty() || contains(reason, version), reason);
      }
    }
  }
}

TEST(the_reason_says_what_is_needed) {
  CHECK(contains(capabilities_of(22702, all_functions(), false).no_windows, "2.27.3"));
  CHECK(contains(capabilities_of(22901, all_functions(), false).no_direct, "2.29.2"));
  CHECK(contains(capabilities_of(22901, all_functions(), false).no_peer_pointers, "2.29.2"));
  const std::string unsafe = capabilities_of(23006, all_functions(), false).no_direct;
  for (const char* part :
       {"2.30.7", "grid-dependency wait", "stale", "graphs", "SYMMOE_ALLOW_UNSAFE_NCCL=1"}) {
    CHECK_MSG(contains(unsafe, part), unsafe);
  }
}

TEST(a_missing_function_is_named) {
  const auto without = [](auto member) {
    NcclFunctions functions = all_functions();
    functions.*member = nullptr;
    return capabilities_of(23007, functions, false);
  };
  const auto check_no_windows = [](const NcclCapabilities& found, const char* symbol) {
    CHECK(!found.windows);
    CHECK(!found.direct);
    CHECK(!found.peer_pointers);
    CHECK_MSG(contains(found.no_windows, symbol), found.no_windows);
    CHECK_EQ(found.no_direct, found.no_windows);
    CHECK_EQ(found.no_peer_pointers, found.no_windows);
  };
  check_no_windows(without(&NcclFunctions::mem_alloc), "ncclMemAlloc");
  check_no_windows(without(&NcclFunctions::mem_free), "ncclMemFree");
  check_no_windows(without(&NcclFunctions::window_register), "ncclCommWindowRegister");
  check_no_windows(without(&NcclFunctions::window_deregister), "ncclCommWindowDeregister");

  const NcclCapabilities found = without(&NcclFunctions::get_lsa_device_pointer);
  CHECK(found.windows);
  CHECK(found.direct);
  CHECK(!found.peer_pointers);
  CHECK(contains(found.no_peer_pointers, "ncclGetLsaDevicePointer"));
}

TEST(versions_read_as_people_write_them) {
  CHECK_EQ(nccl_version_text(23007), "2.30.7");
  CHECK_EQ(nccl_version_text(22003), "2.20.3");
  CHECK_EQ(nccl_version_text(2804), "2.8.4");
  CHECK_EQ(nccl_version(2, 30, 7), 23007);
  CHECK_EQ(nccl_version(2, 8, 4), 2804);
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
