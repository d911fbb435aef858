#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "sftrun/core/base64.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/utf8.h"
#include "sftrun/hub/post.h"
#include "tracker.h"
#include "variables.h"

/// MLflow over its REST API, https://mlflow.org/docs/latest/rest-api.html.
namespace sftrun::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxMetrics = 1000, kMaxParams = 100, kMaxParamBytes = 6000;  // of a request
constexpr double kTimeoutS = 10;
constexpr const char* kDirectoryTag = "sftrun.run_directory";  // scripts/to_mlflow.py has it, too
constexpr const char* kStartTag = "sftrun.start";

constexpr int kNotFound = 404;

/// What MLflow takes as the name of a metric: letters, digits and _-. :/, as a relative path.
std::string metric_name(std::string_view name) {
  std::string valid;
  for (const char c : name) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool is_kept = is_letter || (c >= '0' && c <= '9') ||
                         std::string_view("_-. :/").find(c) != std::string_view::npos;
    const bool doubles = !valid.empty() && valid.back() == c && (c == '/' || c == '.');
    if (!doubles) valid += is_kept ? c : '_';
  }
  return valid;
}

class MlflowClient {
 public:
  explicit MlflowClient(const TrackedRun& run) : base_(run.uri) {
    while (base_.ends_with('/')) base_.pop_back();
    options_ = {.timeout_s = kTimeoutS, .max_attempts = 1, .should_stop = run.should_stop};
    const std::string user = variable("MLFLOW_TRACKING_USERNAME"),
                      password = variable("MLFLOW_TRACKING_PASSWORD");
    options_.token = hub::Secret(variable("MLFLOW_TRACKING_TOKEN"));
    if (user.empty() || password.empty()) return;
    options_.token = hub::Secret(encode_base64(user + ":" + password));
    options_.token_scheme = "Basic";
  }

  const std::string& base() const { return base_; }
  Json post(const char* call, const Json& body) const {
    return parsed(hub::post_json(
        url_of(call), body.dump(-1, ' ', false, Json::error_handler_t::replace), kWhat, options_));
  }
  Json get(const char* call, const char* key, const std::string& value) const {
    return parsed(hub::get_json(fmt::format("{}?{}={}", url_of(call), key, hub::query_value(value)),
                                kWhat, options_));
  }

 private:
  static constexpr const char* kWhat = "MLflow";

  std::string url_of(const char* call) const {
    return fmt::format("{}/api/2.0/mlflow/{}", base_, call);
  }
  Json parsed(const std::string& body) const {
    Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) return json;
    throw CommError("the answer is no JSON object", base_, "check that MLflow is at this address");
  }

  std::string base_;
  hub::PostOptions options_;
};

class Mlflow : public Tracker {
 public:
  explicit Mlflow(TrackedRun run)
      : run_(std::move(run)), client_(run_), start_(fmt::format("{:.6f}", unix_seconds())) {}

  void begin(RunBegin begin) override {
    begin_ = std::move(begin);
    // Another server does not know the run.
    if (begin_.record.is_object() && begin_.record.value("uri", "") == client_.base())
      record_ = begin_.record;
    id_ = record_.value("run_id", "");
  }

  Position open() override {
    Position position;
    if (id_.empty()) {
      make_run();
    } else {
      position = position_of(client_.get("runs/get", "run_id", id_));
      if (!std::exchange(is_told_, true)) update("RUNNING");
    }
    is_told_ = true;
    if (!record_.value("has_settings", false)) send_settings();
    return position;
  }

  void send(std::span<const TimedLine> lines) override {
    Json metrics = Json::array();
    for (const TimedLine& one : lines) {
      // A line goes whole, where it can: the next request may be lost.
      if (metrics.size() + one.line.values.size() > kMaxMetrics) flush(metrics);
      for (const auto& [name, value] : one.line.values) {
        if (metrics.size() == kMaxMetrics) flush(metrics);
        metrics.push_back({{"key", metric_name(name)},
                           {"value", value},
                           {"timestamp", one.unix_ms},
                           {"step", one.line.step}});
      }
    }
    flush(metrics);
  }

  void end(RunEnd end) override {
    constexpr const char* kStatus[] = {"FINISHED", "FAILED", "KILLED"};
    update(kStatus[static_cast<size_t>(end)]);
  }

 private:
  void make_run() {
    const std::string experiment = experiment_id();
    id_ = is_asked_ ? find_begun(experiment) : "";
    is_asked_ = true;
    if (id_.empty()) id_ = create(experiment);
    end_abandoned();
    record_ = {{"uri", client_.base()},
               {"run_id", id_},
               {"url", fmt::format("{}/#/experiments/{}/runs/{}", client_.base(), experiment, id_)},
               {"has_settings", false}};
    run_.keep(record_);
    log::info("MLflow: {}", record_["url"].get<std::string>());
  }

  std::string create(const std::string& experiment) const {
    const Json tags = {{{"key", kDirectoryTag}, {"value", run_.run_dir}},
                       {{"key", kStartTag}, {"value", start_}},
                       {{"key", "mlflow.source.name"}, {"value", "sftrun"}}};
    const Json answer = client_.post("runs/create", {{"experiment_id", experiment},
                                                     {"start_time", begin_.started_ms},
                                                     {"run_name", run_.name},
                                                     {"tags", tags}});
    return answer.at("run").at("info").at("run_id").get<std::string>();
  }

  /// A run that was created, but whose answer was lost; "": none.
  std::string find_begun(const std::string& experiment) const {
    const Json found =
        client_.post("runs/search", {{"experiment_ids", Json::array({experiment})},
                                     {"filter", fmt::format("tags.`{}` = '{}'", kStartTag, start_)},
                                     {"max_results", 1}});
    const Json runs = found.value("runs", Json::array());
    return runs.empty() ? "" : runs[0].at("info").at("run_id").get<std::string>();
  }

  std::string experiment_id() const {
    try {
      return client_.get("experiments/get-by-name", "experiment_name", run_.project)
          .at("experiment")
          .at("experiment_id")
          .get<std::string>();
    } catch (const hub::RequestError& error) {
      if (error.status != kNotFound) throw;
    }
    return client_.post("experiments/create", {{"name", run_.project}})
        .at("experiment_id")
        .get<std::string>();
  }

  /// A run that was killed before its first checkpoint would look as if it continued.
  void end_abandoned() {
    const Json abandoned = std::exchange(begin_.abandoned, Json());
    if (!abandoned.is_object() || abandoned.value("uri", "") != client_.base()) return;
    try {
      const std::string id = abandoned.value("run_id", "");
      const Json info = client_.get("runs/get", "run_id", id).at("run").at("info");
      if (info.value("status", "") == "RUNNING")
        client_.post("runs/update",
                     {{"run_id", id}, {"status", "KILLED"}, {"end_time", unix_ms_now()}});
    } catch (const std::exception&) {  // it stays as it is
    }
  }

  static Position position_of(const Json& answer) {
    const Json data = answer.at("run").value("data", Json::object());
    Position position;
    for (const Json& metric : data.value("metrics", Json::array())) {
      const std::string key = metric.value("key", "");
      if (key == kLastOfStep) position.step = metric.value("step", int64_t{0});
      if (key == kLastOfEvaluation) position.evaluation = metric.value("step", int64_t{0});
    }
    return position;
  }

  void send_settings() {
    Json params = Json::array();
    const auto send_params = [&] {
      if (!params.empty())
        client_.post("runs/log-batch",
                     {{"run_id", id_}, {"params", std::exchange(params, Json::array())}});
    };
    for (const auto& [key, value] : settings_texts(*run_.config)) {
      params.push_back({{"key", key}, {"value", std::string(utf8_prefix(value, kMaxParamBytes))}});
      if (params.size() == kMaxParams) send_params();
    }
    send_params();
    record_["has_settings"] = true;
    run_.keep(record_);
  }

  void flush(Json& metrics) const {
    if (metrics.empty()) return;
    client_.post("runs/log-batch", {{"run_id", id_}, {"metrics", metrics}});
    metrics = Json::array();
  }

  void update(const char* status) const {
    Json body = {{"run_id", id_}, {"status", status}};
    if (std::string_view(status) != "RUNNING") body["end_time"] = unix_ms_now();
    client_.post("runs/update", body);
  }

  static int64_t unix_ms_now() { return static_cast<int64_t>(unix_seconds() * 1000); }

  TrackedRun run_;
  MlflowClient client_;
  RunBegin begin_;
  Json record_ = Json::object();
  std::string start_;  // of this process: finds a run whose creation was not answered
  std::string id_;     // empty: it is not created yet
  bool is_asked_ = false, is_told_ = false;
};

}  // namespace

std::unique_ptr<Tracker> make_mlflow(TrackedRun run) {
  return std::make_unique<Mlflow>(std::move(run));
}

}  // namespace sftrun::track
