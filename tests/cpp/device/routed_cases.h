#pragma once

// A batch's experts and who holds them, and what a top-k sum makes of that.

#include "peer_ranks.h"

namespace symmoe::device_tests {

struct Routed {
  RouteMaskLaunch launch;
  Bytes ids;
  std::vector<int32_t> expert_to_rank;
  std::vector<uint64_t> masks;
  std::vector<bool> owned;  // rows that are not padding; all at first
  std::vector<int32_t> sizes;
  MaskHash hash{};
  Fault fault{};

  Routed(int64_t rows, int64_t slots, int64_t experts, int world, bool wide, std::mt19937& random)
      : ids(rows * slots * (wide ? 8 : 4)),
        masks(static_cast<size_t>(rows), ~uint64_t{0}),
        owned(static_cast<size_t>(rows), true) {
    launch.shares.counts[0] = rows;
    launch.rows = rows;
    launch.slots = slots;
    launch.experts = experts;
    launch.world = world;
    launch.ids_are_64bit = wide;
    launch.fault = &fault;
    for (int64_t i = 0; i < experts; ++i) {
      const auto rank = static_cast<int32_t>(random() % static_cast<uint32_t>(world + 1));
      expert_to_rank.push_back(rank - 1);
    }
    for (int64_t i = 0; i < rows * slots; ++i) {
      // Padding of either kind among them.
      set_id(i, static_cast<int64_t>(random() % static_cast<uint32_t>(experts + 4)) - 2);
    }
  }

  // Of the kernel, that of a rank.
  void share(const Shares& shares, int rank) {
    sizes = shares.sizes;
    launch.shares = shares.for_kernel(rank);
    if (launch.shares.sizes != nullptr) launch.shares.sizes = sizes.data();
    owned = shares.owned();
  }

  void set_id(int64_t position, int64_t id) const {
    const auto narrow = static_cast<int32_t>(id);
    const int64_t size = launch.ids_are_64bit ? 8 : 4;
    std::memcpy(ids.data() + position * size,
                launch.ids_are_64bit ? static_cast<const void*>(&id) : &narrow,
                static_cast<size_t>(size));
  }

  int64_t id(int64_t position) const {
    int64_t wide = 0;
    int32_t narrow;
    if (launch.ids_are_64bit) {
      std::memcpy(&wide, ids.data() + position * 8, 8);
      return wide;
    }
    std::memcpy(&narrow, ids.data() + position * 4, 4);
    return narrow;
  }

  uint64_t wanted(int64_t row) const {
    uint64_t mask = 0;
    if (!owned[static_cast<size_t>(row)]) return mask;
    for (int64_t slot = 0; slot < launch.slots; ++slot) {
      const int64_t expert = id(row * launch.slots + slot);
      if (expert < 0 || expert >= launch.experts) continue;
      const int32_t rank = expert_to_rank[static_cast<size_t>(expert)];
      if (rank >= 0 && rank < launch.world) mask |= uint64_t{1} << rank;
    }
    return mask;
  }

  kernels::RoutingView view(int rank, bool masked) const {
    kernels::RoutingView view;
    view.ids = ids.data();
    view.ids_are_64bit = launch.ids_are_64bit;
    view.expert_to_rank = expert_to_rank.data();
    view.experts = launch.experts;
    view.rank = rank;
    if (masked) view.mask = masks.data();
    return view;
  }

  bool is_own(int64_t position, int rank) const {
    const int64_t expert = id(position);
    if (expert < 0 || expert >= launch.experts) return false;
    return expert_to_rank[static_cast<size_t>(expert)] == rank;
  }

  void run(int multiprocessors) {
    launch.ids = ids.data();
    launch.expert_to_rank = expert_to_rank.data();
    launch.mask = masks.data();
    launch.hash = &hash;
    Declared declared;
    const int64_t row_bytes = launch.slots * (launch.ids_are_64bit ? 8 : 4);
    // In as few pieces as there are: each access looks for its piece.
    for (int64_t row = 0, end = 0; row < launch.rows; row = end + 1) {
      for (end = row; end < launch.rows && owned[static_cast<size_t>(end)];) ++end;
      declared.add(ids.data() + row * row_bytes, (end - row) * row_bytes,
                   emulator::Permission::kRead);
    }
    declared.add(sizes.data(), static_cast<int64_t>(sizes.size()) * 4, emulator::Permission::kRead);
    declared.add(expert_to_rank.data(), launch.experts * 4, emulator::Permission::kRead);
    declared.add(masks.data(), launch.rows * 8, emulator::Permission::kWrite);
    declared.add(&hash, sizeof hash, emulator::Permission::kWrite);
    declared.add(&fault, sizeof fault, emulator::Permission::kWrite);
    CHECK_EQ(kernels::launch_route_mask(launch, multiprocessors, nullptr), 0);
  }

  void check(int multiprocessors) {
    run(multiprocessors);
    for (int64_t row = 0; row < launch.rows; ++row) {
      CHECK_EQ(masks[static_cast<size_t>(row)], wanted(row));
    }
    CHECK_EQ(hash.sum, uint64_t{0});
    CHECK_EQ(hash.blocks_done, uint32_t{0});
  }
};

// What the CPU kernel makes of a rank's slots, with all others absent.
inline std::vector<char> routed_sum(const DeviceTopk& topk, const Routed& routed, int rank) {
  const int64_t positions = topk.launch.tokens * topk.launch.slots;
  std::vector<int64_t> index(static_cast<size_t>(positions), -1);
  for (int64_t i = 0; i < positions; ++i) {
    if (!routed.is_own(i, rank)) continue;
    index[static_cast<size_t>(i)] = topk.launch.index == nullptr ? i : topk.index_at(i);
  }
  std::vector<char> want(static_cast<size_t>(topk.output_bytes()));
  kernels::TopkReduceArgs args = topk.cpu_args(want.data());
  args.index = index.data();
  args.index_is_64bit = true;
  if (topk.launch.index == nullptr) args.pairs = positions;
  kernels::topk_reduce(args, 1);
  return want;
}

// Of the input only what the rank's slots consist of: the rest may hold anything.
inline void declare_own_slots(Declared& declared, const DeviceTopk& topk, const Routed& routed,
                              int rank) {
  using emulator::Permission;
  const TopkReduceLaunch& launch = topk.launch;
  const int64_t row_bytes = launch.hidden * DeviceTopk::bytes_of(launch.input_type);
  const int64_t weight_bytes = DeviceTopk::bytes_of(launch.weights_type);
  const int64_t index_bytes = launch.index_is_64bit ? 8 : 4;
  for (int64_t i = 0; i < launch.tokens * launch.slots; ++i) {
    if (!routed.is_own(i, rank)) continue;
    if (launch.index != nullptr) {
      declared.add(topk.index.data() + i * index_bytes, index_bytes, Permission::kRead);
    }
    const int64_t row = launch.index == nullptr ? i : topk.index_at(i);
    if (row < 0) continue;
    declared.add(topk.input.data() + row * row_bytes, row_bytes, Permission::kRead);
    declared.add(topk.weights.data() + i * weight_bytes, weight_bytes, Permission::kRead);
  }
  declared.add(routed.ids.data(), routed.ids.size(), Permission::kRead);
  declared.add(routed.expert_to_rank.data(), routed.launch.experts * 4, Permission::kRead);
  declared.add(routed.masks.data(), routed.launch.rows * 8, Permission::kRead);
}

}  // namespace symmoe::device_tests
