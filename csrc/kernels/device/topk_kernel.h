#pragma once

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/grid.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_shares.h"
#include "kernels/device/slot_table.h"

// Top-k sum: for every token, the weighted sum of its slots' rows, in slot order, in fp32, rounded
// once. The bits are those of kernels/cpu: the sum starts as -0, to which the first present term
// adds exactly, sign of zero included, so that every term is one fma.
namespace symmoe::kernels::SYMMOE_PLATFORM {

// kSlots is how many slots a token has, or 0: any number.

// Slots in the table at a time.
template <int kSlots>
constexpr int kTile = kSlots > 0 ? kSlots : 32;

// Slots whose rows are loaded before the first of them is added: enough to keep memory busy, few
// enough for the registers.
template <int kSlots>
constexpr int kBatch = kSlots == 0       ? 4
                       : kSlots <= 8     ? kSlots
                       : kSlots % 8 == 0 ? 8
                                         : kSlots / 2;

// Groups of columns per thread, where one would leave too few loads in flight.
template <int kSlots>
constexpr int kGroups = kSlots == 1   ? 4
                        : kSlots == 2 ? 2
                                      : 1;

// Adds kCount slots to the sums of the columns. Returns whether any was present.
template <int kCount, typename Columns>
SYMMOE_DEVICE bool add_slots(const Slot* slots, const Columns& columns,
                             float (&sum)[Columns::kCount]) {
  typename Columns::Loaded row[kCount];
  bool present = false;
  SYMMOE_UNROLL
  for (int k = 0; k < kCount; ++k) {
    row[k] = Columns::Loaded::negative_zeros();
    if (slots[k].row == nullptr) continue;
    row[k] = columns.load(slots[k].row);
    present = true;
  }
  SYMMOE_UNROLL
  for (int k = 0; k < kCount; ++k) {
    SYMMOE_UNROLL
    for (int i = 0; i < Columns::kCount; ++i) sum[i] = dev::fma(slots[k].weight, row[k][i], sum[i]);
  }
  return present;
}

// The last steps of a sum: +0 if it has no term, and the scale.
template <int kCount>
SYMMOE_DEVICE void finish(const TopkReduceLaunch& problem, bool present, float (&sum)[kCount]) {
  SYMMOE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    if (!present) sum[i] = 0.0f;
    if (problem.has_scale) sum[i] = dev::mul(sum[i], problem.scale);
  }
}

// One token's sum, for kGroups groups of columns from `group` on. By all threads of the block.
template <typename Columns, int kSlots>
SYMMOE_DEVICE void sum_token(const TopkReduceLaunch& problem, int64_t token, int64_t group,
                             SlotTable<kTile<kSlots>>& table) {
  constexpr int kCount = Columns::kCount;
  constexpr int kUnrolled = kSlots > 0 ? kTile<kSlots> / kBatch<kSlots> : 1;
  float sum[kGroups<kSlots>][kCount];
  SYMMOE_UNROLL
  for (int i = 0; i < kGroups<kSlots> * kCount; ++i) {
    sum[i / kCount][i % kCount] = -0.0f;
  }
  bool present = false;
  for (int64_t tile = 0; tile < problem.slots; tile += kTile<kSlots>) {
    dev::sync_block();  // all have read what the table held before
    if (dev::thread() < kTile<kSlots>) {
      table.slot[dev::thread()] = find_slot<Columns::kIn>(problem, token, tile + dev::thread());
    }
    dev::sync_block();
    SYMMOE_UNROLL
    for (int g = 0; g < kGroups<kSlots>; ++g) {
      const Columns columns(group + g, problem.hidden);
      if (!columns.any) break;
      SYMMOE_UNROLL_BY(kUnrolled)
      for (int k = 0; k < kTile<kSlots> && tile + k < problem.slots; k += kBatch<kSlots>) {
        present |= add_slots<kBatch<kSlots>>(table.slot + k, columns, sum[g]);
      }
    }
  }
  char* const output =
      static_cast<char*>(problem.output) + token * problem.hidden * kBytes<Columns::kOut>;
  SYMMOE_UNROLL
  for (int g = 0; g < kGroups<kSlots>; ++g) {
    const Columns columns(group + g, problem.hidden);
    if (!columns.any) break;
    finish(problem, present, sum[g]);
    columns.store(output, sum[g]);
  }
}

// Each block has one chunk of the columns, which it sums for every so many tokens.
template <typename Columns, int kSlots>
__global__ void __launch_bounds__(kMaxBlockThreads, Columns::kBlocksAtOnce)
    topk_reduce(const TopkReduceLaunch problem, const int chunks) {
  SYMMOE_SHARED(SlotTable<kTile<kSlots>>, table);
  SYMMOE_SHARED(ShareTable, shares);
  if (problem.ranks > 0) read_shares(problem.shares, problem.ranks, nullptr, shares);
  ShareCursor cursor;
  const int64_t group = int64_t{dev::block() % chunks} * kGroups<kSlots>;
  for (int64_t token = dev::block() / chunks; token < problem.tokens;
       token += dev::blocks() / chunks) {
    if (problem.ranks > 0 && !cursor.owns(shares, problem.ranks, token)) continue;
    if (writes(problem.routing, token)) sum_token<Columns, kSlots>(problem, token, group, table);
  }
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
