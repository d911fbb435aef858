#include "sftrun/data/deal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "sftrun/core/rng.h"
#include "support/deal_spread.h"

namespace sftrun::data {
namespace {

std::vector<int64_t> random_costs(int64_t count, RandomStream& random, int64_t most) {
  std::vector<int64_t> costs;
  for (int64_t i = 0; i < count; ++i)
    costs.push_back(static_cast<int64_t>(random.next_below(static_cast<uint64_t>(most))));
  return costs;
}

TEST(DealByCost, HasEachBinOnceInAsManyMicroBatchesAsInOrder) {
  RandomStream random(3, 0);
  for (const int64_t parts : {1, 2, 3, 8}) {
    for (const int64_t size : {1, 2, 5}) {
      for (const int64_t count : {0, 1, 2, 7, 16, 31, 80}) {
        const std::vector<int64_t> costs = random_costs(count, random, 5);  // with ties and zeros
        const Deal deal = deal_by_cost(costs, size, parts);
        EXPECT_EQ(std::ssize(deal) % parts, 0);
        std::vector<int64_t> dealt;
        int64_t in_use = 0, last_in_use = -1;
        for (int64_t i = 0; i < std::ssize(deal); ++i) {
          const std::vector<int64_t>& places = deal[static_cast<size_t>(i)];
          EXPECT_LE(std::ssize(places), size);
          EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
          dealt.insert(dealt.end(), places.begin(), places.end());
          in_use += places.empty() ? 0 : 1;
          if (!places.empty()) last_in_use = i / parts;
        }
        std::sort(dealt.begin(), dealt.end());
        std::vector<int64_t> all(static_cast<size_t>(count));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(dealt, all);
        EXPECT_EQ(in_use, (count + size - 1) / size);
        EXPECT_EQ(last_in_use + 1, (in_use + parts - 1) / parts);
        EXPECT_EQ(deal, deal_by_cost(costs, size, parts));
      }
    }
  }
}

TEST(DealByCost, BinsOfSimilarCostMeetInAMicroStep) {
  EXPECT_EQ(deal_by_cost(std::vector<int64_t>{1, 9, 2, 8}, 1, 2), (Deal{{1}, {3}, {0}, {2}}))
      << "part 0 had 9, so the other gets 2";
  EXPECT_EQ(deal_by_cost(std::vector<int64_t>{5, 5, 5}, 1, 2), (Deal{{0}, {1}, {2}, {}}));
}

TEST(DealByCost, MicroBatchesGetEqualShares) {
  // 10, 9, 1, … : each large one with a small one.
  EXPECT_EQ(deal_by_cost(std::vector<int64_t>{1, 10, 1, 1, 9, 1, 1, 1}, 2, 2),
            (Deal{{1, 7}, {4, 6}, {2, 5}, {0, 3}}));
  // A short batch: three each, not four and two.
  const Deal deal = deal_by_cost(std::vector<int64_t>(6, 4), 4, 2);
  EXPECT_EQ(deal[0].size(), 3U);
  EXPECT_EQ(deal[1].size(), 3U);
}

/// Costs as of images and texts: some bins have ten to a hundred times as much to compute.
TEST(DealByCost, PartsHardlyWait) {
  RandomStream random(5, 0);
  for (const int64_t parts : {2, 8}) {
    for (const int64_t size : {1, 4}) {
      double in_order = 0, by_cost = 0, most = 0;
      constexpr int kSteps = 50;
      for (int step = 0; step < kSteps; ++step) {
        std::vector<int64_t> costs = random_costs(16 * size * parts, random, 10);
        for (int64_t& cost : costs) cost = 100 + cost * (random.next_below(3) == 0 ? 1000 : 10);
        in_order += test::waiting_share(test::deal_in_order(costs.size(), size), costs, parts);
        const Deal deal = deal_by_cost(costs, size, parts);
        by_cost += test::waiting_share(deal, costs, parts);
        most = std::max(most, test::waiting_share(deal, costs, parts));
      }
      const std::string name = std::to_string(parts) + " parts, " + std::to_string(size);
      EXPECT_GT(in_order / kSteps, 0.25) << name;
      EXPECT_LT(by_cost, 0.3 * in_order) << name << ": " << by_cost / in_order;
      // Several bins make up for each other; of single ones 16 micro-steps have what there is.
      EXPECT_LT(most, size == 1 ? 0.25 : 0.05) << name;
    }
  }
}

TEST(Dealer, DealsByTheCostOfBins) {
  const std::vector<Bin> bins = {{0}, {1, 2}, {3}, {4, 5, 6}};
  Dealer dealer{.parts = 2};
  EXPECT_TRUE(dealer.deal({}, bins).empty()) << "in order";
  dealer.cost = [](const ExampleStore&, const Bin& bin) { return std::ssize(bin); };
  EXPECT_EQ(dealer.deal({}, bins), (Deal{{3}, {1}, {2}, {0}}));
}

}  // namespace
}  // namespace sftrun::data
