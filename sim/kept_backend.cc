#include "sim/kept_backend.h"

#include <algorithm>
#include <utility>

namespace kvtwin::sim {

void KeptBackend::submit(const Command& command) {
  if (const auto* launch = std::get_if<LaunchStep>(&command)) {
    if (OutcomeSource* source = sources_.at(raw(launch->engine)); source != nullptr) {
      Pending asked{launch->engine, launch->step, {}};
      source->step(*launch, 0, &asked.values);
      if (!launch->compressions.empty()) pending_.push_back(std::move(asked));
    }
  } else {
    for (OutcomeSource* source : sources_) {
      if (source != nullptr) source->told(command);
    }
  }
  world_->submit(command);
}

bool KeptBackend::next(Instant* now, Event* event) {
  if (!world_->next(now, event)) return false;
  add_kept(event);
  return true;
}

bool KeptBackend::interrupt(EngineId engine, Event* event) {
  if (!world_->interrupt(engine, event)) return false;
  add_kept(event);
  return true;
}

void KeptBackend::add_kept(Event* event) {
  auto* done = std::get_if<StepDone>(event);
  if (done == nullptr) return;
  const auto asked = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) {
    return p.engine == done->engine && p.step == done->step;
  });
  if (asked == pending_.end()) return;
  told_ = std::move(asked->values);  // spans follow: vectors move with what they hold
  pending_.erase(asked);
  done->kept = told_.kept;
}

}  // namespace kvtwin::sim
