#pragma once

#include "kernels/device/columns.h"
#include "kernels/device/dev.h"
#include "kernels/device/elements.h"
#include "kernels/device/launch.h"
#include "kernels/device/peer_call.h"
#include "kernels/device/peer_grid.h"

// The own share's rows, summed over the ranks that hold something for them, in rank order, in fp32,
// rounded once. The sum starts as -0, to which the first term adds exactly, sign of zero included.
// Ordinary loads, since peers wrote the rows, and all of a thread's elements before it writes them:
// the output may be the own share.
namespace symmoe::kernels::SYMMOE_PLATFORM {

// How many pieces of how many ranks a thread loads before it adds the first: enough to fill the
// links, for groups of few ranks (or few that hold anything for a row) and of many.
struct FewRanks {
  static constexpr int kPieces = 4;
  static constexpr int kRanks = 2;
};
struct ManyRanks {
  static constexpr int kPieces = 2;
  static constexpr int kRanks = 4;
};
struct OneByOne {  // for narrow columns, whose loads are many enough
  static constexpr int kPieces = 1;
  static constexpr int kRanks = 4;
};

// What a thread has of a row at once. A unit of work (see peer_grid.h) consists of so many.
template <typename Columns>
constexpr int kPiecesPerUnit = static_cast<int>(kPeerColumns) / Columns::kCount;

template <typename Columns>
struct Piece {
  int64_t row;  // of the share
  int64_t group;
  uint64_t ranks;  // whose elements are still to be added
  bool any;        // it is not behind the end
  float sum[Columns::kCount];
};

// 32 bits are enough: that many units of work would be more than memory holds.
struct Units {
  uint32_t count;
  uint32_t chunks;

  SYMMOE_DEVICE Units(int64_t rows, int chunks_of_row)
      : count(static_cast<uint32_t>(rows * chunks_of_row)),
        chunks(static_cast<uint32_t>(chunks_of_row)) {}

  SYMMOE_DEVICE int64_t row(uint32_t unit) const { return unit / chunks; }
  template <typename Columns>
  SYMMOE_DEVICE int64_t group(uint32_t unit, int part) const {
    return int64_t{unit % chunks} * kPiecesPerUnit<Columns> + part;
  }
};

SYMMOE_DEVICE uint64_t ranks_with_row(const PullLaunch& problem, int64_t row_of_window) {
  if (problem.mask != nullptr) return dev::load<uint64_t>(problem.mask + row_of_window);
  return ~uint64_t{0} >> (kMaxPeers - problem.peers.world);
}

// `any`: whether there is such a piece.
template <typename Columns>
SYMMOE_DEVICE Piece<Columns> piece_of(const PullLaunch& problem, int64_t begin, int64_t row,
                                      int64_t group, bool any) {
  Piece<Columns> piece;
  piece.row = row;
  piece.group = group;
  piece.any = any && Columns(group, problem.hidden).any;
  piece.ranks = piece.any ? ranks_with_row(problem, begin + row) : 0;
  SYMMOE_UNROLL
  for (float& value : piece.sum) value = piece.ranks == 0 ? 0.0f : -0.0f;
  return piece;
}

// Adds the next kRanks ranks to each of the pieces that still has any.
template <int kRanks, int kPieces, typename Columns>
SYMMOE_DEVICE void add_ranks(const PullLaunch& problem, const PeerCall& call, int64_t begin,
                             Piece<Columns> (&pieces)[kPieces]) {
  const int64_t row_bytes = problem.hidden * kBytes<Columns::kIn>;
  typename Columns::Loaded loaded[kPieces][kRanks];
  SYMMOE_UNROLL
  for (int i = 0; i < kPieces * kRanks; ++i) {
    Piece<Columns>& piece = pieces[i / kRanks];
    loaded[i / kRanks][i % kRanks] = Columns::Loaded::negative_zeros();
    if (piece.ranks == 0) continue;
    const char* const rows = call.rows[dev::lowest_bit(piece.ranks)];
    piece.ranks &= piece.ranks - 1;
    loaded[i / kRanks][i % kRanks] =
        Columns(piece.group, problem.hidden).load_fresh(rows + (begin + piece.row) * row_bytes);
  }
  SYMMOE_UNROLL
  for (int i = 0; i < kPieces * kRanks; ++i) {
    Piece<Columns>& piece = pieces[i / kRanks];
    SYMMOE_UNROLL
    for (int column = 0; column < Columns::kCount; ++column) {
      piece.sum[column] = dev::add(piece.sum[column], loaded[i / kRanks][i % kRanks][column]);
    }
  }
}

// Adds up what all ranks have for the pieces.
template <typename AtOnce, int kPieces, typename Columns>
SYMMOE_DEVICE void add_all_ranks(const PullLaunch& problem, const PeerCall& call, int64_t begin,
                                 Piece<Columns> (&pieces)[kPieces]) {
  uint64_t left = 0;
  SYMMOE_UNROLL
  for (const Piece<Columns>& piece : pieces) left |= piece.ranks;
  SYMMOE_UNROLL_BY(1)
  while (left != 0) {
    add_ranks<AtOnce::kRanks>(problem, call, begin, pieces);
    left = 0;
    SYMMOE_UNROLL
    for (const Piece<Columns>& piece : pieces) left |= piece.ranks;
  }
}

// This block's units of the own share.
template <typename Columns, typename AtOnce>
SYMMOE_DEVICE void pull_share(const PullLaunch& problem, const PeerCall& call, int chunks) {
  constexpr int kPieces = AtOnce::kPieces;
  constexpr int kPerUnit = kPiecesPerUnit<Columns>;
  static_assert(kPieces % kPerUnit == 0);
  const int64_t begin = call.shares.begin[problem.peers.rank];
  const Units units(call.pulled, chunks);
  const uint32_t blocks = dev::blocks();
  SYMMOE_UNROLL_BY(1)
  for (uint32_t unit = dev::block(); unit < units.count; unit += blocks * (kPieces / kPerUnit)) {
    Piece<Columns> pieces[kPieces];
    SYMMOE_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t its_unit = unit + i / kPerUnit * blocks;
      pieces[i] =
          piece_of<Columns>(problem, begin, units.row(its_unit),
                            units.group<Columns>(its_unit, i % kPerUnit), its_unit < units.count);
    }
    add_all_ranks<AtOnce>(problem, call, begin, pieces);
    SYMMOE_UNROLL
    for (const Piece<Columns>& piece : pieces) {
      if (!piece.any) continue;
      char* const row =
          static_cast<char*>(problem.output) + piece.row * problem.hidden * kBytes<Columns::kOut>;
      Columns(piece.group, problem.hidden).store(row, piece.sum);
    }
  }
}

}  // namespace symmoe::kernels::SYMMOE_PLATFORM
