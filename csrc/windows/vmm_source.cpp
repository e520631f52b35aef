#include "windows/vmm_source.h"

#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "runtime/stream.h"
#include "windows/host_identity.h"
#include "windows/listener.h"
#include "windows/random_hex.h"

namespace symmoe {
namespace {

// What a rank tells the others of itself before they are connected.
struct Introduction {
  std::string address;  // of its listener
  std::string host;
  std::string bus_id;
  std::string token;  // of the group, rank 0's counts
};

constexpr char kSeparator = '\t';

std::string written(const Introduction& introduction) {
  return introduction.address + kSeparator + introduction.host + kSeparator + introduction.bus_id +
         kSeparator + introduction.token;
}

Introduction read(const std::string& text) {
  std::istringstream stream(text);
  Introduction introduction;
  for (std::string* const field :
       {&introduction.address, &introduction.host, &introduction.bus_id, &introduction.token}) {
    std::getline(stream, *field, kSeparator);
  }
  return introduction;
}

void require_one_host(const std::vector<Introduction>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].host == ranks[0].host) continue;
    throw Unavailable("own windows: ranks 0 and " + std::to_string(rank) +
                      " are not on one host, in one network name space and of one user (" +
                      ranks[0].host + "; " + ranks[rank].host + ")");
  }
}

// Of this rank's device with all others'.
std::string unreached(const Device& device, const std::vector<Introduction>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string refusal = device.shared_refusal(ranks[rank].bus_id);
    if (!refusal.empty()) return refusal + ", which is rank " + std::to_string(rank) + "'s";
  }
  return "";
}

// What `body` throws, as the words for an agreement.
template <typename Body>
std::string failure_of(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {  // peers wait for the words, whatever it was
    return error.what();
  }
}

}  // namespace

std::unique_ptr<VmmSource> VmmSource::connect(const std::shared_ptr<Device>& device,
                                              Agreement& agreement, int rank, int world,
                                              int64_t timeout_ns) {
  const RelaxedCapture relaxed(*device);
  const auto require_all = [&](const std::string& request, const std::string& failure,
                               const std::string& detail = "") {
    Answers answers = agree(agreement, rank, request, failure, detail);
    if (!answers.failures.empty()) throw Unavailable("own windows: " + answers.failures);
    return answers.details;
  };

  std::unique_ptr<Listener> listener;
  Introduction own;
  own.host = host_identity();
  own.bus_id = device->properties().bus_id;
  std::string failure = failure_of([&] {
    listener = std::make_unique<Listener>();
    own.address = listener->address();
    if (rank == 0) own.token = random_hex(Mesh::kTokenBytes / 2);
    return device->shared_refusal();
  });
  std::vector<Introduction> ranks;
  std::vector<std::string> addresses;
  for (const std::string& text : require_all("vmm introduction", failure, written(own))) {
    ranks.push_back(read(text));
    addresses.push_back(ranks.back().address);
  }
  require_one_host(ranks);

  std::unique_ptr<Mesh> mesh;
  require_all("vmm reach", failure_of([&] { return unreached(*device, ranks); }));
  failure = failure_of([&] {
    mesh = std::make_unique<Mesh>(rank, world, addresses, ranks[0].token, std::move(*listener),
                                  now_ns() + timeout_ns);
    return std::string();
  });
  require_all("vmm connected", failure);
  return std::unique_ptr<VmmSource>(new VmmSource(device, std::move(mesh), agreement, timeout_ns));
}

VmmSource::VmmSource(std::shared_ptr<Device> device, std::unique_ptr<Mesh> mesh,
                     Agreement& agreement, int64_t timeout_ns)
    : device_(std::move(device)),
      mesh_(std::move(mesh)),
      agreement_(agreement),
      timeout_ns_(timeout_ns) {}

VmmSource::~VmmSource() { shut(); }

Window VmmSource::create(size_t bytes) {
  const std::lock_guard lock(mutex_);
  mesh_->require_usable();
  const int rank = mesh_->rank();
  const std::string name =
      "window ordinal=" + std::to_string(last_ordinal_ + 1) + " bytes=" + std::to_string(bytes);

  Mapped made;
  Descriptor descriptor;
  std::string failure = failure_of([&] {
    int exported = -1;
    made.own =
        std::make_shared<SharedDeviceMemory>(SharedDeviceMemory::create(device_, bytes, &exported));
    descriptor = Descriptor(exported);
    return std::string();
  });
  const std::string shortage = agree(agreement_, rank, name, failure).failures;
  if (!shortage.empty()) throw OutOfMemory(shortage);

  const uint32_t ordinal = ++last_ordinal_;
  failure = exchange(ordinal, bytes, descriptor.get(), &made.peers);
  const std::string refusal = agree(agreement_, rank, name + " mapped", failure).failures;
  if (!refusal.empty()) throw Unavailable(refusal);

  Window window;
  window.ordinal = ordinal;
  window.base = static_cast<std::byte*>(made.own->get());
  window.bytes = bytes;
  window.memory = made.own;
  windows_.emplace(ordinal, std::move(made));
  return window;
}

// Gives this rank's descriptor to all peers, takes theirs and maps them. A rank whose part goes
// wrong, which it returns in words, carries on all the same: the others wait for its messages.
// Throws where they will not get them.
std::string VmmSource::exchange(uint32_t ordinal, size_t bytes, int descriptor,
                                std::vector<SharedDeviceMemory>* peers) {
  const int64_t deadline_ns = now_ns() + timeout_ns_;
  std::string failure;
  const auto note = [&](int peer, const Error& error) {
    if (failure.empty()) failure = "rank " + std::to_string(peer) + "'s part: " + error.what();
  };
  const auto send = [&](int peer, uint64_t announced, int sent) {
    mesh_->send(peer, {Message::Kind::kNew, ordinal, announced}, sent, deadline_ns, [] {});
  };
  for (int peer = 0; peer < mesh_->world(); ++peer) {
    if (peer == mesh_->rank()) continue;
    try {
      send(peer, bytes, descriptor);
    } catch (const SystemError& error) {
      note(peer, error);
      send(peer, 0, -1);
    }
  }
  peers->resize(static_cast<size_t>(mesh_->world()));
  for (int peer = 0; peer < mesh_->world(); ++peer) {
    if (peer == mesh_->rank()) continue;
    try {
      const Incoming incoming = mesh_->expect(peer, "window", deadline_ns);
      const Message& message = incoming.message;
      if (message.kind != Message::Kind::kNew || message.ordinal != ordinal ||
          message.bytes != bytes || !incoming.descriptor) {
        throw SystemError("it announced window " + std::to_string(message.ordinal) + " of " +
                          std::to_string(message.bytes) + " bytes" +
                          (incoming.descriptor ? "" : ", without a descriptor"));
      }
      (*peers)[static_cast<size_t>(peer)] =
          SharedDeviceMemory::attach(device_, incoming.descriptor.get(), bytes);
    } catch (const PeerLost&) {
      throw;
    } catch (const DeadlineExceeded&) {
      throw;
    } catch (const Error& error) {
      note(peer, error);
    }
  }
  return failure;
}

void VmmSource::drop(const Window& window) {
  Mapped dropped;
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find(window.ordinal);
  if (found == windows_.end()) return;
  dropped = std::move(found->second);
  windows_.erase(found);
}

const std::byte* VmmSource::address(int rank, uint32_t ordinal) {
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find(ordinal);
  if (found == windows_.end() || rank < 0 || rank >= mesh_->world()) {
    throw InvalidArgument("there is no window " + std::to_string(ordinal) + " of rank " +
                          std::to_string(rank) + " here");
  }
  const Mapped& mapped = found->second;
  const void* const base =
      rank == mesh_->rank() ? mapped.own->get() : mapped.peers[static_cast<size_t>(rank)].get();
  return static_cast<const std::byte*>(base);
}

size_t VmmSource::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const auto& [ordinal, mapped] : windows_) {
    for (const SharedDeviceMemory& peer : mapped.peers) total += peer.bytes();
  }
  return total;
}

void VmmSource::shut() noexcept {
  const std::lock_guard lock(mutex_);
  windows_.clear();
  mesh_->close();
}

}  // namespace symmoe
