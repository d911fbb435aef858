#include "shared_answers.h"

#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "sftrun/core/clock.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/data/media_faults.h"

namespace sftrun::engine {
namespace {

constexpr double kStatusS = 1, kLogS = 10;  // between two reports
std::string stops_with(int code) {
  return fmt::format("stopped with {}", code);
}

class SharedRun {
 public:
  explicit SharedRun(const SharedAnswers& shared)
      : shared_(shared),
        comm_(shared.rank.comm()),
        taken_(shared.name + ": records taken"),
        done_(shared.name + ": records done"),
        tokens_(shared.name + ": tokens"),
        start_(monotonic_seconds()) {
    last_status_ = last_log_ = start_;
    shared_.rank.tell(launch::Status{.phase = launch::Phase::kGenerating});
  }

  int run() {
    try {
      generate();
    } catch (const data::MediaError& error) {
      throw error_of_record(error);
    }
    comm_.barrier(shared_.name + ": records answered");
    code_ = stop_code();
    if (code_ == 0 && shared_.rank.is_main()) report(/*is_end=*/true);
    return code_;
  }

 private:
  void generate() {
    shared_.generator.run(
        shared_.decoder, shared_.batch_size,
        {.next_prompt = [this] { return next_prompt(); },
         .on_answer = [this](size_t record, Answer&& answer) { take(record, std::move(answer)); },
         .before_step = [this](size_t) { return before_step(); }},
        shared_.copy);
  }

  DataError error_of_record(const data::MediaError& error) const {
    const std::string place = shared_.place(static_cast<size_t>(error.document()));
    const DataError of_record = data::error_in_record(error, place, /*may_be_left_out=*/false);
    if (shared_.after_errors.empty()) return of_record;
    return DataError(of_record.message(), of_record.where(),
                     fmt::format("{}; {}", of_record.fix(), shared_.after_errors));
  }

  std::optional<model::Prompt> next_prompt() {
    if (code_ != 0) return std::nullopt;
    const std::optional<size_t> taken = next_place();
    if (!taken) return std::nullopt;
    const size_t record = shared_.records[*taken];
    data::PromptTokens prompt = shared_.prompt(record);
    return model::Prompt{.index = record,
                         .tokens = std::move(prompt.ids),
                         .stream = record / shared_.answers_per_record,
                         .media = std::move(prompt.media),
                         .draw = static_cast<uint32_t>(record % shared_.answers_per_record),
                         .max_new_tokens = shared_.max_new_tokens
                                               ? std::optional(shared_.max_new_tokens(record))
                                               : std::nullopt};
  }

  /// Of this rank's next record among all; nullopt: no record is left.
  std::optional<size_t> next_place() {
    const size_t count = shared_.records.size();
    if (!shared_.dealt) {
      const auto place = static_cast<size_t>(comm_.add(taken_, 1) - 1);
      return place < count ? std::optional(place) : std::nullopt;
    }
    while (num_looked_at_ < count) {
      const size_t place = num_looked_at_++;
      if (shared_.dealt->has(shared_.records[place])) return place;
    }
    return std::nullopt;
  }

  void take(size_t record, Answer&& answer) {
    comm_.add(tokens_, static_cast<int64_t>(answer.num_tokens));
    shared_.on_answer(record, std::move(answer));
    comm_.add(done_, 1);
  }

  bool before_step() {
    shared_.rank.activity().set_work(Work::kGenerating);
    const double now = monotonic_seconds();
    if (now - last_status_ >= kStatusS || shared_.rank.stop_exit_code() != 0) {
      last_status_ = now;
      look_for_stop();
      if (shared_.rank.is_main()) report(/*is_end=*/false);
    }
    return code_ == 0;
  }

  /// A stop that one rank is asked for is for all: each would wait for the answers of the others.
  void look_for_stop() {
    if (const int own = shared_.rank.stop_exit_code()) comm_.add(stops_with(own), 1);
    code_ = stop_code();
  }

  int stop_code() {
    for (const int signal : {SIGINT, SIGTERM}) {
      const int code = launch::exit_code_of_stop_signal(signal);
      if (comm_.add(stops_with(code), 0) > 0) return code;
    }
    return 0;
  }

  void report(bool is_end) {
    const double now = monotonic_seconds(), seconds = now - start_;
    const auto done = static_cast<size_t>(comm_.add(done_, 0));
    const auto tokens = static_cast<double>(comm_.add(tokens_, 0));
    const size_t all = shared_.num_done + shared_.records.size(),
                 left = shared_.records.size() - done;
    launch::Status status{.phase = launch::Phase::kGenerating,
                          .step = static_cast<int64_t>(shared_.num_done + done),
                          .total_steps = static_cast<int64_t>(all),
                          .tokens_per_second = tokens / seconds};
    if (done > 0) status.eta_s = seconds / static_cast<double>(done) * static_cast<double>(left);
    shared_.rank.tell(status);
    if (is_end ? !shared_.logs_end : now - last_log_ < kLogS) return;
    last_log_ = now;
    log::info("{}/{}, {:.0f} tokens/s{}", status.step,
              counted(all, shared_.answers_per_record > 1 ? "answer" : "record"),
              *status.tokens_per_second,
              status.eta_s && left > 0
                  ? fmt::format(", {} left", format_duration(std::round(*status.eta_s)))
                  : "");
  }

  const SharedAnswers& shared_;
  parallel::Communicator& comm_;
  std::string taken_, done_, tokens_;  // numbers that the ranks share
  double start_, last_status_ = 0, last_log_ = 0;
  size_t num_looked_at_ = 0;  // records that are dealt
  int code_ = 0;              // of a stop
};

}  // namespace

int answer_records(const SharedAnswers& shared) {
  return SharedRun(shared).run();
}

std::map<size_t, Answer> answers_of_all_ranks(parallel::Communicator& comm,
                                              const std::map<size_t, Answer>& own) {
  using nlohmann::json;
  json lines = json::array();
  for (const auto& [record, answer] : own)
    lines.push_back({record, answer.text, answer.num_tokens, answer.stopped});
  std::map<size_t, Answer> answers;
  for (const std::string& of_rank : comm.all_gather_texts(lines.dump())) {
    for (const json& line : json::parse(of_rank)) {
      answers[line[0].get<size_t>()] = {line[1].get<std::string>(), line[2].get<size_t>(),
                                        line[3].get<bool>()};
    }
  }
  return answers;
}

}  // namespace sftrun::engine
