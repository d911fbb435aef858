#include "from_all_ranks.h"

#include <gtest/gtest.h>

#include "support/rank_threads.h"

namespace sftrun::engine {
namespace {

using Message = nlohmann::ordered_json;

TEST(FromAllRanks, MessagesAreThoseOfAllRanksInTheirOrder) {
  test::run_ranks(3, [](parallel::Communicator& comm) {
    const FromAllRanks all = from_all_ranks(comm, 0, Message({{"rank", comm.rank()}, {"x", 0.1F}}));
    EXPECT_EQ(all.exit_code, 0);
    ASSERT_EQ(all.messages.size(), 3);
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(all.messages[rank], Message({{"rank", rank}, {"x", 0.1F}}));
  });
}

TEST(FromAllRanks, TheLargestExitCodeIsThatOfAll) {
  test::run_ranks(3, [](parallel::Communicator& comm) {
    const int own = comm.rank() == 1 ? 130 : comm.rank() == 2 ? 5 : 0;
    const FromAllRanks all = from_all_ranks(comm, own, "done");
    EXPECT_EQ(all.exit_code, 130);
    EXPECT_TRUE(all.messages.empty());
  });
}

}  // namespace
}  // namespace sftrun::engine
