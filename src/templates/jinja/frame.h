#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "jinja/ast.h"
#include "jinja/runtime.h"

namespace sftrun::templates::jinja {

/// The variables of a running scope. Inner scopes see outer variables; assignments affect only
/// their own scope.
struct Frame {
  struct Slot {
    Symbol symbol;
    std::optional<Value> value;  ///< none: undefined here, even if an outer scope has it
  };
  std::shared_ptr<Frame> parent;
  std::vector<Slot> slots;

  /// Of the scope and the scopes around it.
  size_t num_slots() const;
  Slot* find(Symbol symbol);
  void set(Symbol symbol, std::optional<Value> value);
  /// Forgets all variables and makes these undefined.
  void reset(const std::vector<Symbol>& unset);
};
using FramePtr = std::shared_ptr<Frame>;

/// The frames of one render. Its end breaks the cycles between frames and the macros they hold.
class Scopes {
 public:
  Scopes(Runtime& runtime, const std::vector<Symbol>& unset);
  ~Scopes();
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

  const FramePtr& root() const { return root_; }
  /// @param unset variables that are undefined until the scope assigns them
  FramePtr inner(const FramePtr& parent, const std::vector<Symbol>& unset) const;
  /// For a frame that a value refers to.
  void keep(const FramePtr& frame);

 private:
  Runtime& runtime_;
  FramePtr root_;
  std::vector<FramePtr> kept_;
};

}  // namespace sftrun::templates::jinja
