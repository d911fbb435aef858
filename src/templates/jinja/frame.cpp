#include "jinja/frame.h"

namespace sftrun::templates::jinja {

size_t Frame::num_slots() const {
  size_t total = 0;
  for (const Frame* frame = this; frame != nullptr; frame = frame->parent.get())
    total += frame->slots.size();
  return total;
}

Frame::Slot* Frame::find(Symbol symbol) {
  for (Frame* frame = this; frame != nullptr; frame = frame->parent.get()) {
    for (Slot& slot : frame->slots) {
      if (slot.symbol == symbol) return &slot;
    }
  }
  return nullptr;
}

void Frame::set(Symbol symbol, std::optional<Value> value) {
  for (Slot& slot : slots) {
    if (slot.symbol == symbol) {
      slot.value = std::move(value);
      return;
    }
  }
  slots.push_back({symbol, std::move(value)});
}

void Frame::reset(const std::vector<Symbol>& unset) {
  slots.clear();
  for (const Symbol symbol : unset) slots.push_back({symbol, std::nullopt});
}

Scopes::Scopes(Runtime& runtime, const std::vector<Symbol>& unset)
    : runtime_(runtime), root_(std::make_shared<Frame>()) {
  root_->reset(unset);
}

Scopes::~Scopes() {
  root_->slots.clear();
  for (const FramePtr& frame : kept_) frame->slots.clear();
}

FramePtr Scopes::inner(const FramePtr& parent, const std::vector<Symbol>& unset) const {
  auto frame = std::make_shared<Frame>();
  frame->parent = parent;
  runtime_.charge(unset.size() * sizeof(Frame::Slot));
  frame->reset(unset);
  return frame;
}

void Scopes::keep(const FramePtr& frame) {
  if (!kept_.empty() && kept_.back() == frame) return;
  kept_.push_back(frame);
  runtime_.charge(sizeof(Frame));
}

}  // namespace sftrun::templates::jinja
