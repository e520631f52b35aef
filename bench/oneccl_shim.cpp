// What the benchmark calls of oneCCL, with C linkage. Built by install_peers.sh.
#include <cstring>
#include <memory>
#include <oneapi/ccl.hpp>
#include <string>

namespace {

std::shared_ptr<ccl::kvs> meeting_point;
std::unique_ptr<ccl::communicator> communicator;
std::string error;

template <typename Call>
int guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& exception) {
    error = exception.what();
    return -1;
  }
}

ccl::datatype datatype_from(int number) {
  constexpr ccl::datatype kTypes[] = {ccl::datatype::float32, ccl::datatype::bfloat16,
                                      ccl::datatype::float16};
  return kTypes[number];
}

}  // namespace

extern "C" {

const char* symmoe_ccl_error() { return error.c_str(); }

// Rank 0 only: writes the address that the other ranks connect with; returns its size.
int symmoe_ccl_address(void* address, size_t capacity) {
  return guarded([&] {
    ccl::init();
    meeting_point = ccl::create_main_kvs();
    const auto bytes = meeting_point->get_address();
    if (bytes.size() > capacity) throw std::runtime_error("the address is too long");
    std::memcpy(address, bytes.data(), bytes.size());
    return static_cast<int>(bytes.size());
  });
}

int symmoe_ccl_connect(int rank, int world, const void* address) {
  return guarded([&] {
    ccl::init();
    if (rank != 0) {
      ccl::kvs::address_type bytes;
      std::memcpy(bytes.data(), address, bytes.size());
      meeting_point = ccl::create_kvs(bytes);
    }
    communicator =
        std::make_unique<ccl::communicator>(ccl::create_communicator(world, rank, meeting_point));
    return 0;
  });
}

int symmoe_ccl_reduce_scatter(const void* rows, void* out, size_t count, int type) {
  return guarded([&] {
    ccl::reduce_scatter(rows, out, count, datatype_from(type), ccl::reduction::sum, *communicator)
        .wait();
    return 0;
  });
}

}  // extern "C"
