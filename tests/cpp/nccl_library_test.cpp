// Finding and opening an NCCL library.

#include "runtime/nccl/library.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "runtime/nccl/capabilities.h"

namespace symmoe {
namespace {

std::string refusal(const std::vector<NcclLibrary::Candidate>& candidates) {
  try {
    NcclLibrary::open(candidates);
  } catch (const Unavailable& error) {
    return error.what();
  }
  check::fail(__FILE__, __LINE__, "a library was opened");
}

TEST(the_places_are_looked_at_in_order) {
  const auto candidates = NcclLibrary::usual_candidates("", {"/wheels/a.so", "/wheels/b.so"});
  std::vector<std::string> order;
  for (const auto& candidate : candidates) {
    order.push_back(candidate.origin + " " + candidate.path +
                    (candidate.only_if_loaded ? " if loaded" : ""));
  }
  const std::vector<std::string> expected = {"this process libnccl.so.2 if loaded",
                                             "this process librccl.so.1 if loaded",
                                             "pip /wheels/a.so",
                                             "pip /wheels/b.so",
                                             "system libnccl.so.2",
                                             "system librccl.so.1"};
  CHECK(order == expected);
}

// Whoever names a library does not want another one.
TEST(a_setting_is_the_only_place) {
  const auto candidates = NcclLibrary::usual_candidates("/chosen/libnccl.so", {"/wheels/a.so"});
  CHECK_EQ(candidates.size(), size_t{1});
  CHECK_EQ(candidates[0].path, "/chosen/libnccl.so");
  CHECK_EQ(candidates[0].origin, "SYMMOE_NCCL_LIB");
  CHECK(!candidates[0].only_if_loaded);
}

TEST(each_failure_is_named) {
  const std::string text = refusal({{"libnccl-of-nobody.so.2", true, "this process"},
                                    {"/nowhere/libnccl.so.2", false, "SYMMOE_NCCL_LIB"},
                                    {"libm.so.6", false, "system"}});
  for (const char* part :
       {"libnccl-of-nobody.so.2 (this process): not loaded in this process",
        "/nowhere/libnccl.so.2 (SYMMOE_NCCL_LIB): ", "cannot open shared object file",
        "libm.so.6 (system): it has no ncclGetVersion"}) {
    CHECK_MSG(text.find(part) != std::string::npos, text);
  }
  CHECK(refusal({}).find("nowhere to look") != std::string::npos);
}

TEST(the_first_that_opens_is_taken) {
  const auto library = NcclLibrary::open({{"/nowhere/libnccl.so.2", false, "first"},
                                          {SYMMOE_FAKE_NCCL_LIBRARY, false, "second"},
                                          {SYMMOE_OLD_NCCL_LIBRARY, false, "third"}});
  CHECK_EQ(library->origin(), "second");
  CHECK_EQ(library->path(), SYMMOE_FAKE_NCCL_LIBRARY);
  CHECK_EQ(library->version(), 23007);
  const NcclFunctions& functions = library->functions();
  CHECK(functions.get_last_error != nullptr);
  CHECK(functions.mem_alloc != nullptr);
  CHECK(functions.get_lsa_device_pointer != nullptr);
  CHECK(capabilities_of(library->version(), functions, false).direct);

  // From now on it is in the process.
  const auto again = NcclLibrary::open({{SYMMOE_FAKE_NCCL_LIBRARY, true, "this process"}});
  CHECK(again->functions().reduce_scatter == functions.reduce_scatter);
}

TEST(an_old_library_opens_without_the_newer_functions) {
  const auto library = NcclLibrary::open({{SYMMOE_OLD_NCCL_LIBRARY, false, "test"}});
  CHECK_EQ(library->version(), 21803);
  const NcclFunctions& functions = library->functions();
  CHECK(functions.reduce_scatter != nullptr);
  CHECK(functions.get_last_error == nullptr);
  CHECK(functions.mem_alloc == nullptr);
  CHECK(functions.mem_free == nullptr);
  CHECK(functions.window_register == nullptr);
  CHECK(functions.window_deregister == nullptr);
  CHECK(functions.get_lsa_device_pointer == nullptr);
  const NcclCapabilities found = capabilities_of(library->version(), functions, true);
  CHECK(!found.windows);
  CHECK(!found.direct);
  // As if only its version were new.
  CHECK_EQ(capabilities_of(23007, functions, true).no_windows,
           "this build of NCCL 2.30.7 has no ncclMemAlloc");
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
