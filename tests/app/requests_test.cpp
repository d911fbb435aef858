#include <gtest/gtest.h>

#include <stdexcept>

#include "sftrun/app/command_list.h"
#include "sftrun/core/error.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
std::string failure_of(const Json& json) {
  try {
    read_json<T>(json);
  } catch (const std::logic_error& error) {
    return error.what();
  } catch (const ConfigError& error) {  // of the whole configuration
    return "config: " + error.message();
  }
  return {};
}

/// What a request of any command must do.
template <class T>
void check(const char* name) {
  const Json json = json_of(T{});
  EXPECT_EQ(json_of(read_json<T>(json)), json) << name;
  for (const auto& [key, value] : json.items()) {
    Json without = json, other = json;
    without.erase(key);
    EXPECT_NE(failure_of<T>(without).find(key + " is missing"), std::string::npos) << name;
    other[key] = Json::array({3});
    EXPECT_NE(failure_of<T>(other).find(key), std::string::npos) << name << " " << key;
  }
  Json more = json;
  more["colour"] = "red";
  EXPECT_NE(failure_of<T>(more).find("colour is unknown"), std::string::npos) << name;
  EXPECT_NE(failure_of<T>(3).find("is not an object"), std::string::npos) << name;
}

TEST(Requests, AreReadAsTheyWereWritten) {
#define SFTRUN_ROW(name, Request) \
  check<Request>(#name);          \
  EXPECT_STREQ(command_of(Request{}), #name);
  SFTRUN_ENGINE_COMMANDS(SFTRUN_ROW)
#undef SFTRUN_ROW
  check<AllReduceAnswer>("answer of all_reduce");
}

TEST(Requests, KeepTheirValues) {
  GenerateRequest asked{.model = {.model = "m", .adapter = "a", .chat_template_kwargs = "{}"},
                        .ranks = {.compute = {.device = "cpu", .threads = 2},
                                  .parallel = ParallelRequest{.strategy = "tensor", .tp = 2},
                                  .places = {{"parallel.tp", "--tp on the command line"}}},
                        .records = {.input = "in.jsonl"},
                        .chat = false,
                        .sampling = {.temperature = 0.5, .stop = {"x", "y"}, .seed = 1}};
  const auto read = read_json<GenerateRequest>(Json::parse(json_of(asked).dump()));
  EXPECT_EQ(json_of(read), json_of(asked));
  EXPECT_EQ(read.model.adapter, "a");
  EXPECT_EQ(read.ranks.parallel->tp, 2);
  EXPECT_FALSE(read.ranks.parallel->pp);
  EXPECT_FALSE(read.prompt);
  EXPECT_EQ(read.chat, false);
  EXPECT_EQ(read.sampling.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(read.ranks.places, asked.ranks.places);

  EvalRequest eval{.models = {{.name = "base", .model = "m"}}};
  eval.config.train.epochs = 2;
  const auto of_eval = read_json<EvalRequest>(json_of(eval));
  EXPECT_EQ(of_eval.config.train.epochs, 2);
  EXPECT_EQ(of_eval.models.at(0).name, "base");
}

}  // namespace
}  // namespace sftrun::app
