#include "sftrun/core/error.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "sftrun/core/strings.h"

namespace sftrun {
namespace {

// In a thread of nobody's: without the handler the runtime calls abort().
TEST(OutOfMemory, OfAnyThreadEndsWithItsExitCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        end_on_bad_alloc();
        std::thread([] { throw std::bad_alloc(); }).join();
      },
      ::testing::ExitedWithCode(static_cast<int>(ExitCode::kOutOfMemory)), "error: out of memory");
}

TEST(OutOfMemory, OtherExceptionsStillAbort) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        end_on_bad_alloc();
        std::thread([] { throw DataError("the file is odd"); }).join();
      },
      ::testing::KilledBySignal(SIGABRT), "the file is odd");
}

TEST(Error, NeverFillsAConsole) {
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += "some words ";
  const DataError error(words, words, words);
  EXPECT_LT(std::string_view(error.what()).size(), 50'000U);
  EXPECT_NE(error.message().find("… (1100000 bytes)"), std::string::npos);
  EXPECT_EQ(DataError("short", "here").message(), "short");
}

TEST(Excerpt, IsTheFirstTwoHundredCharacters) {
  EXPECT_EQ(excerpt(""), "");
  EXPECT_EQ(excerpt(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(excerpt(std::string(201, 'a')), std::string(200, 'a') + "… (201 bytes)");
  std::string accents;
  for (int i = 0; i < 300; ++i) accents += "é";
  EXPECT_EQ(excerpt(accents), accents.substr(0, 400) + "… (600 bytes)");
  EXPECT_LT(excerpt(std::string(1 << 20, '\x80')).size(), 2000U);  // no UTF-8
}

TEST(Nearest, DoesNotCompareWhatCannotBeMeant) {
  const std::vector<std::string> names = {"q_proj", "k_proj"};
  EXPECT_EQ(nearest("q_prj", names), "q_proj");
  EXPECT_EQ(nearest(std::string(50'000'000, 'q'), names), "");  // would take a table of 2 GB
}

TEST(Nearest, IsNoWordWithoutACommonLetter) {
  const std::vector<std::string> names = {"nf4", "fp4"};
  EXPECT_EQ(nearest("q4", names), "");
  EXPECT_EQ(nearest("n4", names), "nf4");
}

TEST(Nearest, ContinuesAWord) {
  const std::vector<std::string> names = {"nf4",  "fp4",    "q6_k",      "q4_k_m",
                                          "q4_0", "epochs", "epoch_size"};
  EXPECT_EQ(nearest("q4", names), "q4_k_m");
  EXPECT_EQ(nearest("Q4_K", names), "q4_k_m");
  EXPECT_EQ(nearest("q4_1", names), "q4_0");
  EXPECT_EQ(nearest("epoch", names), "epochs");
}

TEST(Nearest, IsTheWordItselfOrOneThatItBegins) {
  const std::vector<std::string> names = {"rank", "packing_strategy", "packing"};
  EXPECT_EQ(nearest("packing", names), "packing");
  EXPECT_EQ(nearest("packing", std::span(names).first(2)), "packing_strategy");
  EXPECT_EQ(nearest("pack", std::vector<std::string>{"rank", "packing"}), "packing");
  EXPECT_EQ(nearest("rnak", names), "rank");
}

}  // namespace
}  // namespace sftrun
