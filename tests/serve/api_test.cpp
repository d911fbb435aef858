#include "sftrun/serve/api.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "sftrun/tokenizer/generated_text.h"
#include "support/served_tiny.h"

namespace sftrun::serve {
namespace {

/// The API over a tiny model; answers are generated on a thread of their own.
class ApiTest : public ::testing::Test {
 protected:
  ApiTest() {
    generator_ = std::thread([this] { scheduler_.run([this] { return stops_.load(); }); });
  }
  ~ApiTest() override {
    stops_ = true;
    generator_.join();
  }

  HttpResponse post(const std::string& path, const Json& body,
                    const std::map<std::string, std::string>& headers = {}) {
    HttpRequest request{.method = "POST",
                        .path = path,
                        .headers = {{"content-type", "application/json"}, {"host", "localhost:1"}},
                        .body = body.dump(),
                        .is_connected = [] { return true; }};
    for (const auto& [name, value] : headers) request.headers[name] = value;
    return api_.handle(request);
  }
  HttpResponse get(Api& api, const std::string& path,
                   const std::map<std::string, std::string>& headers = {}) {
    return api.handle({.method = "GET", .path = path, .headers = headers});
  }

  ServedTiny tiny_;
  Scheduler scheduler_{tiny_.models, {.batch_size = 4, .max_waiting = 8, .cache_bytes = 1 << 20}};
  Api api_{scheduler_, {}};
  std::atomic<bool> stops_{false};
  std::thread generator_;
};

TEST_F(ApiTest, OffsetsAreThoseOfTheTokensInTheText) {
  const HttpResponse response =
      post("/v1/completions",
           {{"prompt", "Hello wörld"}, {"echo", true}, {"logprobs", 2}, {"max_tokens", 0}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json choice = Json::parse(response.body)["choices"][0];
  EXPECT_EQ(choice["text"], "Hello wörld");
  const Json& logprobs = choice["logprobs"];
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["tokens"].size(), logprobs["text_offset"].size());
  for (size_t i = 1; i < logprobs["tokens"].size(); ++i) {
    const Json& top = logprobs["top_logprobs"][i];
    EXPECT_TRUE(top.contains(logprobs["tokens"][i].get<std::string>())) << i;
    EXPECT_GE(top.size(), 2U);
  }
}

TEST_F(ApiTest, PartsOfACharacterAreAtTheirCharacter) {
  const HttpResponse response =
      post("/v1/completions",
           {{"prompt", "x 日本 the 🙂!"}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 0}});
  ASSERT_EQ(response.status, 200) << response.body;
  const Json logprobs = Json::parse(response.body)["choices"][0]["logprobs"];
  const std::u32string text = U"x 日本 the 🙂!";
  size_t num_parts = 0;
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    const auto token = logprobs["tokens"][i].get<std::string>();
    const auto place = logprobs["text_offset"][i].get<size_t>();
    ASSERT_LT(place, text.size()) << token;
    if (token.starts_with("bytes:")) {
      ++num_parts;
      EXPECT_GT(text[place], 0x7FU) << token;
    } else {
      EXPECT_EQ(text[place], static_cast<char32_t>(token[0])) << token;
    }
  }
  EXPECT_GT(num_parts, 3U) << "the tokenizer has no such characters";
}

TEST_F(ApiTest, PlacesOfGeneratedTokensAreInTheText) {
  Json body = {{"prompt", "日 a"}, {"echo", true},     {"logprobs", 0},
               {"max_tokens", 40}, {"temperature", 2}, {"seed", 5}};
  const Json choice = Json::parse(post("/v1/completions", body).body)["choices"][0];
  const auto text = choice["text"].get<std::string>();
  const auto num_chars = static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
  size_t before = 0;
  for (const Json& place : choice["logprobs"]["text_offset"]) {
    EXPECT_GE(place.get<size_t>(), before);
    before = place.get<size_t>();
  }
  EXPECT_LE(before, num_chars);
  body["stream"] = true;
  HttpResponse response = post("/v1/completions", body);
  std::string events;
  while (response.stream(events)) {
  }
  std::vector<size_t> streamed;
  for (size_t at = 0; (at = events.find("data: {", at)) != std::string::npos; ++at) {
    const Json chunk = Json::parse(events.substr(at + 6, events.find("\n\n", at) - at - 6));
    if (!chunk["choices"][0]["logprobs"].is_null())
      for (const Json& place : chunk["choices"][0]["logprobs"]["text_offset"])
        streamed.push_back(place.get<size_t>());
  }
  EXPECT_EQ(Json(streamed), choice["logprobs"]["text_offset"]);
}

TEST_F(ApiTest, HeadersAloneCanBeRefused) {
  const HttpRequest asked{.method = "POST",
                          .path = "/v1/completions",
                          .headers = {{"content-type", "application/json"}, {"host", "localhost"}}};
  EXPECT_FALSE(api_.refusal(asked).has_value());
  const auto status = [&](const Api& api, auto&& change) {
    HttpRequest changed = asked;
    change(changed);
    const auto refusal = api.refusal(changed);
    return refusal ? refusal->status : 200;
  };
  EXPECT_EQ(status(api_, [](HttpRequest& head) { head.path = "/v2"; }), 404);
  EXPECT_EQ(status(api_, [](HttpRequest& head) { head.method = "PUT"; }), 405);
  EXPECT_EQ(status(api_, [](HttpRequest& head) { head.headers["host"] = "a.b"; }), 403);
  EXPECT_EQ(status(api_, [](HttpRequest& head) { head.headers["content-type"] = "text/csv"; }),
            415);
  for (const auto& [type, wanted] : {std::pair("application/json; charset=utf-8", 200),
                                     {"Application/JSON;charset=\"UTF-8\"", 200},
                                     {"application/json; charset=us-ascii; x=y", 200},
                                     {"application/json;charset=iso-8859-1", 415},
                                     {"application/json; charset=utf-16", 415},
                                     {"application/jsonx", 415},
                                     {"text/plain; x=application/json", 415}})
    EXPECT_EQ(status(api_, [&](HttpRequest& head) { head.headers["content-type"] = type; }), wanted)
        << type;
  for (const auto& [encoding, wanted] : {std::pair("identity", 200), {"gzip", 415}, {"br", 415}})
    EXPECT_EQ(status(api_, [&](HttpRequest& head) { head.headers["content-encoding"] = encoding; }),
              wanted)
        << encoding;
  const Api guarded(scheduler_, {.token = "secret"});
  EXPECT_EQ(status(guarded, [](HttpRequest&) {}), 401);
  EXPECT_EQ(
      status(guarded, [](HttpRequest& head) { head.headers["authorization"] = "Bearer secret"; }),
      200);
}

TEST_F(ApiTest, WhatCannotBeReadSaysWhatToSend) {
  const auto refused = [&](const char* header, const char* value) {
    return post("/v1/completions", {{"prompt", "a"}}, {{header, value}});
  };
  const HttpResponse compressed = refused("content-encoding", "gzip");
  EXPECT_EQ(compressed.headers.at("Accept-Encoding"), "identity");
  EXPECT_NE(compressed.body.find("must not be compressed (gzip): send plain JSON"),
            std::string::npos)
      << compressed.body;
  const HttpResponse latin = refused("content-type", "application/json; charset=iso-8859-1");
  EXPECT_FALSE(latin.headers.contains("Accept-Encoding"));
  EXPECT_NE(latin.body.find("must be in UTF-8, not in iso-8859-1: convert it"), std::string::npos)
      << latin.body;
}

TEST_F(ApiTest, ALongStopTextIsSharedByTheAnswers) {
  const std::string stop(tokenizer::kMaxStopBytes, 'x');
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"n", 12}, {"max_tokens", 2}, {"stop", stop}})
                .status,
            200);
  const Json prompts(std::vector<std::string>(60, "a"));
  EXPECT_EQ(
      post("/v1/completions", {{"prompt", prompts}, {"n", 128}, {"max_tokens", 1}, {"stop", stop}})
          .status,
      400);
}

TEST(AnswerChannelTest, WhatIsAbandonedFailsAfterWhatWasSent) {
  AnswerChannel channel;
  AnswerEvent event;
  event.text = "a";
  channel.send(event);
  channel.abandon();
  EXPECT_EQ(channel.receive(std::chrono::milliseconds(0)).value().text, "a");
  EXPECT_EQ(channel.receive(std::chrono::milliseconds(0)).value().error.value().status(), 503);
}

TEST_F(ApiTest, AStreamHasTheAnswerInParts) {
  const Json messages = Json::array({{{"role", "user"}, {"content", "hi"}}});
  const Json body = {{"messages", messages}, {"max_tokens", 12}, {"temperature", 0}};
  const HttpResponse whole = post("/v1/chat/completions", body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  Json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  HttpResponse response = post("/v1/chat/completions", streamed);
  ASSERT_EQ(response.headers["Content-Type"], "text/event-stream");
  std::string events;
  while (response.stream(events)) {
  }
  std::string text;
  std::vector<Json> chunks;
  size_t at = 0;
  for (size_t end = 0; (end = events.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = events.substr(at, end - at);
    ASSERT_TRUE(event.starts_with("data: ")) << event;
    if (event != "data: [DONE]") chunks.push_back(Json::parse(event.substr(6)));
  }
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(chunks.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks.back()["usage"], Json::parse(whole.body)["usage"]);
  chunks.pop_back();
  EXPECT_FALSE(chunks.back()["choices"][0]["finish_reason"].is_null());
  for (const Json& chunk : chunks)
    text += chunk["choices"][0]["delta"].value("content", std::string());
  EXPECT_EQ(text, Json::parse(whole.body)["choices"][0]["message"]["content"]);
}

TEST_F(ApiTest, OnlyKnownNamesAndTokensHaveAccess) {
  EXPECT_EQ(get(api_, "/v1/models", {{"host", "127.0.0.1:8000"}}).status, 200);
  EXPECT_EQ(get(api_, "/v1/models", {{"host", "[::1]:8000"}}).status, 200);
  EXPECT_EQ(get(api_, "/v1/models", {{"host", "LOCALHOST"}}).status, 200);
  EXPECT_EQ(get(api_, "/v1/models", {{"host", "attacker.example"}}).status, 403);
  EXPECT_EQ(get(api_, "/v1/models", {{"host", "127.0.0.1.attacker.example"}}).status, 403);
  EXPECT_EQ(get(api_, "/v1/models", {{"host", ""}}).status, 403);
  EXPECT_EQ(get(api_, "/v1/models").status, 200) << "HTTP/1.0 has no Host";
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}}, {{"content-type", "text/plain"}}).status,
            415);
  Api guarded(scheduler_, {.token = "secret", .is_local = false});
  EXPECT_EQ(get(guarded, "/v1/models").status, 401);
  EXPECT_EQ(get(guarded, "/v1/models", {{"authorization", "Bearer Secret"}}).status, 401);
  EXPECT_EQ(get(guarded, "/v1/models", {{"authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(get(guarded, "/health").status, 200);
}

TEST(ApiNames, AreFoundByTheirLastPartIfItIsOfOneOnly) {
  const std::vector<std::string> ids = {"tuned", "/models/q3/", "a/same", "b/same"};
  EXPECT_EQ(find_id(ids, "tuned"), 0);
  EXPECT_EQ(find_id(ids, "/models/q3/"), 1);
  EXPECT_EQ(find_id(ids, "q3"), 1);
  EXPECT_EQ(find_id(ids, "b/same"), 3);
  EXPECT_EQ(find_id(ids, "same"), std::nullopt);
  EXPECT_EQ(find_id(ids, "none"), std::nullopt);
}

TEST(ApiNames, TheLastPartOfAPathNamesAModel) {
  ServedTiny tiny;
  const auto add = [&](const char* id) {
    tiny.models.push_back(std::make_unique<ServedModel>(id, tiny.models[0]->text, *tiny.decoder,
                                                        tiny.models[0]->max_length));
  };
  add("/models/q3/");
  add("/models/twice");
  add("owner/twice");
  add("/models/tiny");
  Scheduler scheduler(tiny.models, {.batch_size = 1, .max_waiting = 1, .cache_bytes = 1 << 20});
  Api api(scheduler, {});
  const auto found = [&](const std::string& name) {
    const HttpResponse response = api.handle(
        {.method = "GET", .path = "/v1/models/" + name, .headers = {{"host", "localhost:1"}}});
    return response.status == 200 ? Json::parse(response.body)["id"].get<std::string>() : "none";
  };
  EXPECT_EQ(found("q3"), "/models/q3/");
  EXPECT_EQ(found("/models/twice"), "/models/twice");
  EXPECT_EQ(found("twice"), "none") << "of two models";
  EXPECT_EQ(found("tiny"), "tiny") << "a whole name comes first";
  EXPECT_EQ(found("models"), "none");
}

TEST_F(ApiTest, TokenIdsAreThoseOfPromptAndAnswer) {
  const std::vector<int32_t> prompt = {72, 101, 108};
  const Json body = {{"prompt", Json::array({prompt, {97}})},
                     {"n", 2},
                     {"max_tokens", 6},
                     {"seed", 3},
                     {"logprobs", 0},
                     {"return_token_ids", true}};
  const HttpResponse response = post("/v1/completions", body);
  ASSERT_EQ(response.status, 200) << response.body;
  const Json choices = Json::parse(response.body)["choices"];
  ASSERT_EQ(choices.size(), 4U);
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i]["prompt_token_ids"], i < 2 ? Json(prompt) : Json({97}));
    const auto ids = choices[i]["token_ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(ids.size(), choices[i]["logprobs"]["token_logprobs"].size());
    const bool is_cut = choices[i]["finish_reason"] == "length";
    EXPECT_EQ(ids.size() == 6U || !is_cut, true);
    const std::vector<int32_t>& stops = tiny_.models[0]->text.stop_ids;
    EXPECT_EQ(std::ranges::find(stops, ids.back()) != stops.end(), !is_cut);
    EXPECT_EQ(tiny_.models[0]->text.tokenizer->decode(ids, /*skip_special_tokens=*/true),
              choices[i]["text"]);
  }
  EXPECT_NE(choices[0]["token_ids"], choices[1]["token_ids"]);
  EXPECT_FALSE(Json::parse(post("/v1/completions", {{"prompt", "a"}}).body)["choices"][0].contains(
      "token_ids"));
}

TEST_F(ApiTest, AStreamsChunksHaveTheTokenIds) {
  Json body = {{"prompt", {72, 101}}, {"max_tokens", 6}, {"seed", 3}, {"return_token_ids", true}};
  const Json whole = Json::parse(post("/v1/completions", body).body)["choices"][0];
  body["stream"] = true;
  HttpResponse response = post("/v1/completions", body);
  std::string events;
  while (response.stream(events)) {
  }
  std::vector<int32_t> ids;
  size_t num_prompts = 0;
  for (size_t at = 0; (at = events.find("data: {", at)) != std::string::npos; ++at) {
    const Json choice =
        Json::parse(events.substr(at + 6, events.find("\n\n", at) - at - 6))["choices"][0];
    num_prompts += choice.contains("prompt_token_ids") ? 1 : 0;
    for (const Json& id : choice["token_ids"]) ids.push_back(id.get<int32_t>());
  }
  EXPECT_EQ(num_prompts, 1U);
  EXPECT_EQ(Json(ids), whole["token_ids"]);
}

TEST_F(ApiTest, StopTokensEndAnAnswer) {
  Json body = {{"prompt", "a"}, {"max_tokens", 5}, {"temperature", 0}, {"return_token_ids", true}};
  const Json whole = Json::parse(post("/v1/completions", body).body)["choices"][0];
  body["stop_token_ids"] = Json::array({whole["token_ids"][0]});
  const Json ended = Json::parse(post("/v1/completions", body).body)["choices"][0];
  EXPECT_EQ(ended["token_ids"], body["stop_token_ids"]);
  EXPECT_EQ(ended["finish_reason"], "stop");
  EXPECT_EQ(ended["text"], "");
  for (const Json& wrong : {Json("1"), Json({-1}), Json({1 << 30}), Json({0.5}),
                            Json(std::vector<int>(1025, 1)), Json({{"a", 1}})}) {
    body["stop_token_ids"] = wrong;
    EXPECT_EQ(post("/v1/completions", body).status, 400) << wrong;
  }
}

TEST_F(ApiTest, AdaptersAreLoadedOnlyWhereTheServerAllowsIt) {
  const HttpResponse refused =
      post("/v1/load_lora_adapter", {{"lora_name", "new"}, {"lora_path", "/a"}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_NE(refused.body.find("--allow-adapter-updates"), std::string::npos) << refused.body;
  EXPECT_EQ(post("/v1/unload_lora_adapter", {{"lora_name", "new"}}).status, 403);
}

/// Clients load "adapters", which are the tiny model under another name.
class AdapterApiTest : public ApiTest {
 protected:
  std::shared_ptr<ServedModel> load(const std::string& name, const std::string& path) {
    if (path == "/damaged") throw ApiError(400, "damaged", "lora_path");
    paths_.push_back(path);
    auto model = std::make_shared<ServedModel>(name, tiny_.models[0]->text, *tiny_.decoder,
                                               tiny_.models[0]->max_length);
    loaded_.push_back(model);
    return model;
  }
  int change(const std::string& verb, const Json& body) {
    HttpRequest request{.method = "POST",
                        .path = "/v1/" + verb + "_lora_adapter",
                        .headers = {{"content-type", "application/json"}, {"host", "localhost"}},
                        .body = body.dump(),
                        .is_connected = [] { return true; }};
    return updatable_.handle(request).status;
  }
  std::string names() {
    std::string names;
    const Json list = Json::parse(get(updatable_, "/v1/models").body);
    for (const Json& model : list["data"]) names += model["id"].get<std::string>() + " ";
    return names;
  }

  Api updatable_{scheduler_,
                 {.load_adapter = [this](const std::string& name, const std::string& path) {
                   return load(name, path);
                 }}};
  std::vector<std::string> paths_;
  std::vector<std::weak_ptr<ServedModel>> loaded_;
};

TEST_F(AdapterApiTest, ComeAndGo) {
  EXPECT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", "/1"}}), 200);
  EXPECT_EQ(names(), "tiny a ");
  EXPECT_EQ(post("/v1/completions", {{"model", "a"}, {"prompt", "x"}}).status, 200);
  EXPECT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", "/2"}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", "/2"}, {"load_inplace", true}}), 200);
  EXPECT_EQ(paths_, (std::vector<std::string>{"/1", "/2"}));
  EXPECT_EQ(names(), "tiny a ");
  EXPECT_EQ(change("unload", {{"lora_name", "a"}}), 200);
  EXPECT_EQ(names(), "tiny ");
  EXPECT_EQ(change("unload", {{"lora_name", "a"}}), 404);
  EXPECT_EQ(post("/v1/completions", {{"model", "a"}, {"prompt", "x"}}).status, 404);
  EXPECT_EQ(post("/v1/completions", {{"model", "tiny"}, {"prompt", "x"}}).status, 200);
  for (int look = 0; look < 100 && !(loaded_[0].expired() && loaded_[1].expired()); ++look)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(loaded_[0].expired() && loaded_[1].expired()) << "unloaded adapters keep memory";
}

TEST_F(AdapterApiTest, WhatIsDamagedOrUnknownIsRefused) {
  EXPECT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", "/damaged"}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", "a"}}), 400);
  EXPECT_EQ(change("load", {{"lora_path", "/1"}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", 3}, {"lora_path", "/1"}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", "a\nb"}, {"lora_path", "/1"}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", std::string("/1\0", 3)}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", "/1"}, {"misspelt", 1}}), 400);
  EXPECT_EQ(change("load", {{"lora_name", "tiny"}, {"lora_path", "/1"}, {"load_inplace", true}}),
            400);
  EXPECT_EQ(change("unload", {{"lora_name", "tiny"}}), 400);
  EXPECT_EQ(change("unload", Json::object()), 400);
  EXPECT_EQ(names(), "tiny ");
}

TEST_F(AdapterApiTest, AnswersOfAnUnloadedAdapterGoOn) {
  ASSERT_EQ(change("load", {{"lora_name", "a"}, {"lora_path", "/1"}}), 200);
  loaded_[0].lock()->text.stop_ids.clear();
  HttpResponse stream = post(
      "/v1/completions", {{"model", "a"}, {"prompt", "x"}, {"max_tokens", 40}, {"stream", true}});
  ASSERT_EQ(stream.status, 200);
  EXPECT_EQ(change("unload", {{"lora_name", "a"}}), 200);
  std::string events;
  while (stream.stream(events)) {
  }
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n")) << events;
  EXPECT_NE(events.find("\"finish_reason\":\"length\""), std::string::npos) << events;
}

TEST_F(ApiTest, OtherPathsAndMethods) {
  EXPECT_EQ(get(api_, "/v2/models").status, 404);
  EXPECT_EQ(get(api_, "/v1/models/other").status, 404);
  EXPECT_EQ(get(api_, "/v1/models/tiny").status, 200);
  EXPECT_EQ(get(api_, "/v1/completions").status, 405);
  EXPECT_EQ(post("/v1/completions", {{"model", "other"}, {"prompt", "a"}}).status, 404);
}

TEST_F(ApiTest, MoreAnswersThanMayWaitAreRefused) {
  const auto ask = [&](int64_t n) {
    return post("/v1/completions", {{"prompt", "a"}, {"n", n}, {"max_tokens", 1}}).status;
  };
  EXPECT_EQ(ask(12), 200);
  EXPECT_EQ(ask(13), 400);
}

TEST(SchedulerWithoutAThread, RefusesWhatIsTooMuch) {
  ServedTiny tiny;
  Scheduler scheduler(tiny.models, {.batch_size = 1, .max_waiting = 1, .cache_bytes = 1 << 20});
  const CompletionRequest request = parse_completion({{"prompt", "a"}}, *tiny.models.front());
  const auto first = scheduler.submit(*tiny.models.front(), request),
             second = scheduler.submit(*tiny.models.front(), request);
  try {
    scheduler.submit(*tiny.models.front(), request);
    FAIL() << "a third answer was accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 429);
  }
  first->cancel();
  int looks = 0;
  scheduler.run([&] { return ++looks > 25; });  // a token at each look
  EXPECT_FALSE(first->receive(std::chrono::milliseconds(0)));
  std::string finish;
  while (const auto event = second->receive(std::chrono::milliseconds(0)))
    finish = event->finish_reason;
  EXPECT_FALSE(finish.empty());
}

}  // namespace
}  // namespace sftrun::serve
