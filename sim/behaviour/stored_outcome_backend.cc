#include "sim/behaviour/stored_outcome_backend.h"

#include <algorithm>
#include <utility>

namespace kvtwin::sim {

void StoredOutcomeBackend::submit(const Command& command) {
  if (const auto* launch = std::get_if<LaunchStep>(&command)) {
    if (OutcomeSource* source = sources_.at(raw(launch->engine)); source != nullptr) {
      Pending asked{launch->engine, launch->step, {}};
      source->step(*launch, 0, &asked.values);
      if (!launch->compressions.empty()) pending_.push_back(std::move(asked));
    }
  } else {
    for (OutcomeSource* source : sources_) {
      if (source != nullptr) source->notify(command);
    }
  }
  backend_->submit(command);
}

bool StoredOutcomeBackend::next(Instant* now, Event* event) {
  if (!backend_->next(now, event)) return false;
  add_retained(event);
  return true;
}

bool StoredOutcomeBackend::interrupt(EngineId engine, Event* event) {
  if (!backend_->interrupt(engine, event)) return false;
  add_retained(event);
  return true;
}

void StoredOutcomeBackend::add_retained(Event* event) {
  auto* done = std::get_if<StepDone>(event);
  if (done == nullptr) return;
  const auto asked = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
    return p.engine == done->engine && p.step == done->step;
  });
  if (asked == pending_.end()) return;
  answered_ = std::move(asked->values);  // spans stay valid: moved vectors move their buffers
  pending_.erase(asked);
  done->retained = answered_.retained;
}

}  // namespace kvtwin::sim
