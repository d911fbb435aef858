#include "sftrun/config/places.h"

#include <gtest/gtest.h>

namespace sftrun::config {
namespace {

const Places kPlaces = {{"train.epochs", "run.yaml:4:3"},
                        {"train.seed", "train.seed=x from the command line"},
                        {"tuning.trainable", "run.yaml:7:5"}};

std::string where_with_places(const std::string& where) {
  try {
    with_places(kPlaces, [&] { throw ConfigError("wrong", where, "remove it"); });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_EQ(error.message(), "wrong");
    EXPECT_EQ(error.fix(), "remove it");
    return error.where();
  }
  return "nothing was thrown";
}

TEST(Places, AreAddedToErrorsThatNameTheirKey) {
  EXPECT_EQ(where_with_places("train.epochs"), "train.epochs, run.yaml:4:3");
  EXPECT_EQ(where_with_places("tuning.trainable: laers"), "tuning.trainable: laers, run.yaml:7:5");
  EXPECT_EQ(where_with_places("train.seed"), "train.seed=x from the command line");
  EXPECT_EQ(where_with_places("train.epochs, run.yaml:4:3"), "train.epochs, run.yaml:4:3")
      << "once";
}

TEST(Places, OfOtherErrorsAreNotKnown) {
  EXPECT_EQ(where_with_places("train.lr_scheduler"), "train.lr_scheduler");
  EXPECT_EQ(where_with_places("data.jsonl:3"), "data.jsonl:3");
  EXPECT_EQ(where_with_places(""), "");
  EXPECT_THROW(with_places(kPlaces, [] { throw DataError("wrong", "data.jsonl:3"); }), DataError)
      << "it keeps its type";
}

TEST(Places, DoNotChangeResults) {
  EXPECT_EQ(with_places(kPlaces, [] { return 7; }), 7);
}

}  // namespace
}  // namespace sftrun::config
