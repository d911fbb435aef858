#include "shared_passes.h"

#include <gtest/gtest.h>

namespace sftrun::engine {
namespace {

using Pieces = std::vector<std::pair<size_t, size_t>>;

Pieces pieces_of(const std::vector<int64_t>& lengths, size_t together = 1) {
  Pieces pieces;
  for (const Neighbours& piece : pieces_for_passes(
           lengths.size(), [&](size_t i) { return lengths[i]; }, together))
    pieces.emplace_back(piece.first, piece.end);
  return pieces;
}

TEST(SharedPasses, PiecesHaveUpTo4096TokensOrOneItem) {
  EXPECT_EQ(pieces_of({}), Pieces());
  EXPECT_EQ(pieces_of({5000}), Pieces({{0, 1}}));
  EXPECT_EQ(pieces_of({4000, 96, 0, 1, 5000, 0}), Pieces({{0, 3}, {3, 4}, {4, 5}, {5, 6}}));
  EXPECT_EQ(pieces_of({2000, 2000, 2000, 2000}, 2), Pieces({{0, 2}, {2, 4}}));
  EXPECT_EQ(pieces_of({3000, 3000, 1, 1}, 2), Pieces({{0, 2}, {2, 4}}));
}

TEST(SharedPasses, RanksMakeAsManyPasses) {
  for (int rank = 0; rank < 2; ++rank) {
    const auto mesh = parallel::Mesh::replicated(2, rank);
    std::vector<std::optional<size_t>> own;
    size_t end = 0;
    const auto note = [&](const SharedPass& pass) {
      EXPECT_EQ(pass.first, end);
      end = pass.end;
      own.push_back(pass.own);
    };
    EXPECT_EQ(share_passes(
                  mesh, 3, [] { return 0; }, note),
              0);
    EXPECT_EQ(end, 3);
    EXPECT_EQ(own, (std::vector<std::optional<size_t>>{
                       rank, rank == 0 ? std::optional<size_t>(2) : std::nullopt}));
  }
}

TEST(SharedPasses, AStopEndsThemBeforeThePass) {
  int asked = 0, made = 0;
  const auto stop = [&] { return ++asked == 3 ? 75 : 0; };
  EXPECT_EQ(
      share_passes(parallel::Mesh::replicated(1, 0), 5, stop, [&](const SharedPass&) { ++made; }),
      75);
  EXPECT_EQ(made, 2);
}

}  // namespace
}  // namespace sftrun::engine
