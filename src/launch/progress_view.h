#pragma once

#include <memory>
#include <string>
#include <vector>

#include "console.h"
#include "worker_process.h"

namespace sftrun::launch {

/// Shows the progress of workers in a terminal, in place (live_view.h). Draws when they report, and
/// now and then between, as the remaining time counts down.
class ProgressView {
 public:
  using Workers = std::vector<std::unique_ptr<WorkerProcess>>;
  /// @param workers outlive this
  ProgressView(const Workers& workers, Console& console) : workers_(workers), console_(console) {}

  void show();                            ///< draws if it is time to
  void finish();                          ///< what was drawn last stays
  void pause();                           ///< the same, until the next `show`
  double period_s(double limit_s) const;  ///< until the next `show`   @param limit_s at most

 private:
  std::vector<std::string> view(TerminalSize size) const;

  const Workers& workers_;
  Console& console_;
  double told_at_ = 0;     ///< monotonic: the last status of the main rank
  double drawn_at_ = 0;    ///< monotonic; 0: not drawn
  bool has_news_ = false;  ///< that are not drawn yet
};

}  // namespace sftrun::launch
