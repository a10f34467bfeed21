// Reservations is the ledger of pages that requests were promised and have not taken yet.
//
// A reservation is spent as its request takes pages, and grows again when pages taken ahead are undone.

#ifndef KVTWIN_ENGINE_KV_RESERVATIONS_H_
#define KVTWIN_ENGINE_KV_RESERVATIONS_H_

#include <algorithm>
#include <cstdint>

namespace kvtwin {

// Reservation is the number of pages that one request may still take.
struct Reservation {
  uint32_t left = 0;    // pages not taken yet
  uint32_t beyond = 0;  // pages taken after the reservation was used up
};

class Reservations {
 public:
  uint64_t total() const { return total_; }
  uint64_t of_others(const Reservation& own) const { return total_ - own.left; }

  // Replaces the reservation.
  void reserve(Reservation* own, uint64_t pages) {
    total_ += pages - own->left;
    *own = {static_cast<uint32_t>(pages), 0};
  }
  void drop(Reservation* own) { reserve(own, 0); }
  // The request took `pages`: from its reservation, as long as there is one.
  void spend(Reservation* own, uint32_t pages) {
    const uint32_t from_reserve = std::min(own->left, pages);
    own->left -= from_reserve;
    own->beyond += pages - from_reserve;
    total_ -= from_reserve;
  }
  // One page that the request took was rolled back.
  void unspend(Reservation* own) {
    if (own->beyond > 0) {
      --own->beyond;
    } else {
      ++own->left;
      ++total_;
    }
  }
  // The request does not need up to `pages` of its reservation.
  void spare(Reservation* own, uint64_t pages) {
    const auto spared = static_cast<uint32_t>(std::min<uint64_t>(own->left, pages));
    own->left -= spared;
    total_ -= spared;
  }

 private:
  uint64_t total_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_RESERVATIONS_H_
