#include "models/cost/plan_price.h"

#include <cstddef>

namespace kvtwin {
namespace {

struct Point {
  int64_t rows, ns;
};
constexpr Point kEqual[] = {{1, 3'400}, {8, 4'000}, {32, 5'500}, {128, 12'200}};
constexpr Point kRagged[] = {{8, 8'900}, {64, 11'400}, {256, 25'200}};

// Linear between points; beyond the last point the last slope holds, below the first its value.
template <size_t kCount>
int64_t at(const Point (&points)[kCount], int64_t rows) {
  if (rows <= points[0].rows) return points[0].ns;
  size_t i = 1;
  while (i + 1 < kCount && rows > points[i].rows) ++i;
  const Point a = points[i - 1], b = points[i];
  return a.ns + (b.ns - a.ns) * (rows - a.rows) / (b.rows - a.rows);
}

}  // namespace

int64_t PlanPrice::ns(uint32_t decodes) const {
  if (plans_per_step == 0 || decodes == 0) return 0;
  const int64_t rows = int64_t{decodes} * rows_per_request;
  const int64_t each = given_ns > 0 ? given_ns : rows_per_request > 1 ? at(kRagged, rows) : at(kEqual, rows);
  return each * plans_per_step;
}

}  // namespace kvtwin
