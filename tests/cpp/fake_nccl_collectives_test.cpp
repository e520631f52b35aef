// The fake's collectives and messages, between threads, against references.
// tsan

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels_reference.h"
#include "nccl_ranks.h"

namespace symmoe {
namespace {

using namespace check;

using Bytes = std::vector<char>;
using AllReduce = NcclResult(const void*, void*, size_t, NcclDataType, NcclRedOp, NcclComm,
                             NcclStream);

constexpr int kWorld = 3;

struct ElementType {
  NcclDataType type;
  size_t bytes;
};
constexpr ElementType kTypes[] = {
    {kNcclInt8, 1},   {kNcclUint8, 1},   {kNcclInt32, 4},   {kNcclUint32, 4},  {kNcclInt64, 8},
    {kNcclUint64, 8}, {kNcclFloat16, 2}, {kNcclFloat32, 4}, {kNcclFloat64, 8}, {kNcclBfloat16, 2}};

// Small whole numbers, which every type holds and adds exactly.
int value_of(int rank, size_t index) {
  return static_cast<int>((index * 7 + static_cast<size_t>(rank) * 5) % 11);
}

template <typename T>
void put_as(char* to, int value) {
  const T typed = static_cast<T>(value);
  std::memcpy(to, &typed, sizeof(typed));
}

void put(NcclDataType type, char* to, int value) {
  switch (type) {
    case kNcclInt8:
    case kNcclUint8:
      return put_as<int8_t>(to, value);
    case kNcclInt32:
    case kNcclUint32:
      return put_as<int32_t>(to, value);
    case kNcclInt64:
    case kNcclUint64:
      return put_as<int64_t>(to, value);
    case kNcclFloat64:
      return put_as<double>(to, value);
    case kNcclFloat32:
      return put_as<float>(to, value);
    case kNcclFloat16:
      return reference::encode(DType::kFloat16, static_cast<float>(value), to);
    case kNcclBfloat16:
      return reference::encode(DType::kBFloat16, static_cast<float>(value), to);
  }
}

// `count` elements, by a function of the index.
template <typename Value>
Bytes elements(const ElementType& type, size_t count, Value&& value) {
  Bytes bytes(count * type.bytes);
  for (size_t i = 0; i < count; ++i) put(type.type, bytes.data() + i * type.bytes, value(i));
  return bytes;
}

int sum_at(size_t index) {
  int sum = 0;
  for (int rank = 0; rank < kWorld; ++rank) sum += value_of(rank, index);
  return sum;
}

Bytes own_elements(const ElementType& type, int rank, size_t count) {
  return elements(type, count, [&](size_t i) { return value_of(rank, i); });
}

// The last one is more than one piece of scratch (1 MiB); one type is enough for that.
std::vector<size_t> counts_for(const ElementType& type) {
  std::vector<size_t> counts = {0, 1, 5, 4099};
  if (type.type == kNcclFloat32) counts.push_back(300'001);
  return counts;
}

TEST(reduce_scatter_adds_every_type) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    const auto rank = static_cast<size_t>(self.rank());
    for (const ElementType& type : kTypes) {
      for (const size_t count : counts_for(type)) {
        const Bytes send = own_elements(type, self.rank(), count * kWorld);
        Bytes out(count * type.bytes);
        CHECK_EQ(
            self.functions().reduce_scatter(send.data(), out.data(), count, type.type, kNcclSum,
                                            self.communicator->handle(), self.stream.handle()),
            kNcclSuccess);
        self.settle();
        CHECK(out == elements(type, count, [&](size_t i) { return sum_at(rank * count + i); }));
      }
    }
  });
}

TEST(all_reduce_knows_sum_max_min_and_average) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    auto* const all_reduce = fake_function<AllReduce>("ncclAllReduce");
    const auto reduce = [&](const ElementType& type, NcclRedOp op, const Bytes& send) {
      Bytes out(send.size());
      CHECK_EQ(all_reduce(send.data(), out.data(), send.size() / type.bytes, type.type, op,
                          self.communicator->handle(), self.stream.handle()),
               kNcclSuccess);
      self.settle();
      return out;
    };
    constexpr size_t kCount = 1000;
    for (const ElementType& type : kTypes) {
      const Bytes send = own_elements(type, self.rank(), kCount);
      CHECK(reduce(type, kNcclSum, send) == elements(type, kCount, sum_at));
      const auto extreme = [](size_t i, bool largest) {
        int found = value_of(0, i);
        for (int rank = 1; rank < kWorld; ++rank) {
          const int value = value_of(rank, i);
          if (largest ? value > found : value < found) found = value;
        }
        return found;
      };
      CHECK(reduce(type, kNcclMax, send) ==
            elements(type, kCount, [&](size_t i) { return extreme(i, true); }));
      CHECK(reduce(type, kNcclMin, send) ==
            elements(type, kCount, [&](size_t i) { return extreme(i, false); }));
      // Every rank gives three times the same, so that the average is a whole number.
      const Bytes same = elements(type, kCount, [](size_t i) { return static_cast<int>(i % 9); });
      CHECK(reduce(type, kNcclAvg, same) == same);
    }
  });
}

TEST(gathers_broadcasts_and_reductions_to_each_root) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    const NcclFunctions& nccl = self.functions();
    const NcclComm comm = self.communicator->handle();
    void* const stream = self.stream.handle();
    for (const ElementType& type : kTypes) {
      for (const size_t count : counts_for(type)) {
        const Bytes send = own_elements(type, self.rank(), count);
        Bytes gathered(count * type.bytes * kWorld);
        CHECK_EQ(nccl.all_gather(send.data(), gathered.data(), count, type.type, comm, stream),
                 kNcclSuccess);
        self.settle();
        CHECK(gathered == elements(type, count * kWorld, [&](size_t i) {
                return value_of(static_cast<int>(i / count), i % count);
              }));
        for (int root = 0; root < kWorld; ++root) {
          Bytes received(count * type.bytes);
          CHECK_EQ(
              nccl.broadcast(send.data(), received.data(), count, type.type, root, comm, stream),
              kNcclSuccess);
          Bytes reduced(count * type.bytes);
          CHECK_EQ(nccl.reduce(send.data(), reduced.data(), count, type.type, kNcclSum, root, comm,
                               stream),
                   kNcclSuccess);
          self.settle();
          CHECK(received == own_elements(type, root, count));
          const Bytes untouched(count * type.bytes);
          CHECK(reduced == (self.rank() == root ? elements(type, count, sum_at) : untouched));
        }
      }
    }
  });
}

TEST(collectives_work_in_place) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    constexpr size_t kCount = 300'000;  // several pieces
    const ElementType type{kNcclFloat32, 4};
    const size_t own = static_cast<size_t>(self.rank()) * kCount;
    Bytes rows = own_elements(type, self.rank(), kCount * kWorld);
    self.communicator->reduce_scatter(rows.data(), rows.data() + own * 4, kCount, DType::kFloat32,
                                      self.stream.handle());
    self.settle();
    const Bytes expected = elements(type, kCount, [&](size_t i) { return sum_at(own + i); });
    CHECK(std::memcmp(rows.data() + own * 4, expected.data(), expected.size()) == 0);

    self.communicator->all_gather(rows.data() + own * 4, rows.data(), kCount, DType::kFloat32,
                                  self.stream.handle());
    self.settle();
    CHECK(rows == elements(type, kCount * kWorld, sum_at));
  });
}

// Nobody may take the ordinary kernel's sums for sums in a fixed order.
TEST(ordinary_sums_are_rounded_at_every_hop_of_a_ring) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    constexpr size_t kCount = 512;
    const auto input = [](int rank, size_t i) {
      return std::ldexp(static_cast<float>((i * 37 + static_cast<size_t>(rank) * 101) % 255 + 1),
                        static_cast<int>((i + static_cast<size_t>(rank)) % 5));
    };
    for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
      Bytes send(kCount * kWorld * 2);
      for (size_t i = 0; i < kCount * kWorld; ++i) {
        reference::encode(type, input(self.rank(), i), send.data() + i * 2);
      }
      Bytes out(kCount * 2);
      self.communicator->reduce_scatter(send.data(), out.data(), kCount, type,
                                        self.stream.handle());
      self.settle();
      Bytes expected(kCount * 2);
      for (size_t i = 0; i < kCount; ++i) {
        const size_t at = static_cast<size_t>(self.rank()) * kCount + i;
        char* const to = expected.data() + i * 2;
        const auto stored = [&](int rank) {
          char bits[4];
          reference::encode(type, input(rank % kWorld, at), bits);
          return reference::decode(type, bits);
        };
        reference::encode(type, stored(self.rank() + 1), to);
        for (int hop = 2; hop <= kWorld; ++hop) {
          reference::encode(type, reference::decode(type, to) + stored(self.rank() + hop), to);
        }
      }
      CHECK(out == expected);
    }
  });
}

TEST(messages_of_a_group_may_come_in_any_order) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    // The sizes cross the size of a slot, and of all slots of a mailbox.
    for (const size_t count : {1UL, 16'384UL, 16'385UL, 200'003UL}) {
      const ElementType type{kNcclFloat32, 4};
      const Bytes send = own_elements(type, self.rank(), count);
      std::vector<Bytes> received(kWorld, Bytes(count * 4));
      std::vector<Bytes> second(kWorld, Bytes(4));
      Communicator::Batch batch(*self.communicator);
      for (int step = 0; step < kWorld; ++step) {
        const int to = (self.rank() + step) % kWorld;
        const int from = (self.rank() + 2 * step) % kWorld;  // another order, itself included
        self.communicator->send(send.data(), count, DType::kFloat32, to, self.stream.handle());
        self.communicator->receive(received[static_cast<size_t>(from)].data(), count,
                                   DType::kFloat32, from, self.stream.handle());
      }
      // Two messages between the same ranks stay in order.
      for (int peer = 0; peer < kWorld; ++peer) {
        self.communicator->receive(second[static_cast<size_t>(peer)].data(), 1, DType::kFloat32,
                                   peer, self.stream.handle());
        self.communicator->send(send.data(), 1, DType::kFloat32, peer, self.stream.handle());
      }
      batch.end();
      self.settle();
      for (int from = 0; from < kWorld; ++from) {
        CHECK(received[static_cast<size_t>(from)] == own_elements(type, from, count));
        CHECK(second[static_cast<size_t>(from)] == own_elements(type, from, 1));
      }
    }
  });
}

TEST(a_group_holds_several_collectives_and_messages) {
  const FakeSettings settings;
  run_nccl_threads(kWorld, [](NcclRank& self) {
    const ElementType type{kNcclFloat32, 4};
    constexpr size_t kSizes[kWorld] = {3, 0, 7};  // uneven rows: one reduction per root
    const Bytes send = own_elements(type, self.rank(), 10);
    Bytes own(kSizes[self.rank()] * 4);
    Bytes message(12);
    Communicator::Batch batch(*self.communicator);
    size_t at = 0;
    for (int root = 0; root < kWorld; ++root) {
      self.communicator->reduce(send.data() + at * 4, own.data(), kSizes[root], DType::kFloat32,
                                root, self.stream.handle());
      at += kSizes[root];
    }
    self.communicator->send(send.data(), 3, DType::kFloat32, (self.rank() + 1) % kWorld,
                            self.stream.handle());
    self.communicator->receive(message.data(), 3, DType::kFloat32,
                               (self.rank() + kWorld - 1) % kWorld, self.stream.handle());
    batch.end();
    self.settle();
    const size_t first = self.rank() == 2 ? 3 : 0;
    CHECK(own == elements(type, kSizes[self.rank()], [&](size_t i) { return sum_at(first + i); }));
    CHECK(message == own_elements(type, (self.rank() + kWorld - 1) % kWorld, 3));
  });
}

TEST(work_runs_in_stream_order_behind_the_call) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    Gate gate;
    gate.close(self.stream.handle());
    float send[2] = {0, 0};
    float out = -1;
    self.communicator->reduce_scatter(send, &out, 1, DType::kFloat32, self.stream.handle());
    CHECK_EQ(out, -1.0f);  // nothing has run yet, so there is still time to change the input
    send[0] = 1;
    send[1] = 2;
    gate.open();
    self.settle();
    CHECK_EQ(out, self.rank() == 0 ? 2.0f : 4.0f);
  });
}

// Two communicators between the same ranks, and two streams: nothing mixes.
TEST(several_communicators_at_once) {
  const FakeSettings settings;
  const Communicator::Id second_id = Communicator::make_id(*fake_library());
  run_nccl_threads(2, [&](NcclRank& self) {
    Communicator second(self.library, self.device, second_id, self.rank(), 2);
    Stream other(self.device);
    std::vector<float> send(2000);
    std::iota(send.begin(), send.end(), static_cast<float>(self.rank()));
    std::vector<float> out(1000);
    std::vector<float> gathered(4000);
    for (int round = 0; round < 20; ++round) {
      // In different orders on the two ranks, which only different streams allow.
      if (self.rank() == 0)
        second.all_gather(send.data(), gathered.data(), 2000, DType::kFloat32, other.handle());
      self.communicator->reduce_scatter(send.data(), out.data(), 1000, DType::kFloat32,
                                        self.stream.handle());
      if (self.rank() == 1)
        second.all_gather(send.data(), gathered.data(), 2000, DType::kFloat32, other.handle());
    }
    self.settle();
    other.synchronize();
    second.check();
    CHECK_EQ(out[3], static_cast<float>(2 * (self.rank() * 1000 + 3) + 1));
    CHECK_EQ(gathered[2000], 1.0f);

    const std::vector<FakeNcclCall> scatters = fake_calls("ncclReduceScatter", self.rank());
    const std::vector<FakeNcclCall> gathers = fake_calls("ncclAllGather", self.rank());
    CHECK_EQ(scatters.size(), size_t{20});
    CHECK_EQ(gathers.size(), size_t{20});
    CHECK(scatters[0].communicator != gathers[0].communicator);
    CHECK_EQ(scatters[0].stream, self.stream.handle());
    CHECK_EQ(gathers[0].stream, other.handle());
    CHECK_EQ(scatters[0].count, uint64_t{1000});
    CHECK_EQ(scatters[0].type, int32_t{kNcclFloat32});
    CHECK_EQ(scatters[0].kernel, int32_t{kFakeNcclOrdinary});
    CHECK_EQ(scatters[0].captured, 0);
  });
}

TEST(one_communicator_on_two_streams_keeps_the_hosts_order) {
  const FakeSettings settings;
  run_nccl_threads(2, [](NcclRank& self) {
    Stream other(self.device);
    if (self.rank() == 0) host().delay(self.stream.handle(), 20'000);
    const float send[2] = {static_cast<float>(self.rank()), 10};
    float gathered[2] = {0, 0};
    float all_gathered[4] = {0, 0, 0, 0};
    self.communicator->all_gather(send, gathered, 1, DType::kFloat32, self.stream.handle());
    // Would otherwise overtake the first one on rank 0, and meet it on rank 1.
    self.communicator->all_gather(send, all_gathered, 2, DType::kFloat32, other.handle());
    self.settle();
    other.synchronize();
    self.communicator->check();
    CHECK_EQ(gathered[1], 1.0f);
    CHECK_EQ(all_gathered[2], 1.0f);
    CHECK_EQ(all_gathered[3], 10.0f);
  });
}

}  // namespace
}  // namespace symmoe

int main(int argc, char** argv) { return symmoe::check::run_all(argc, argv); }
