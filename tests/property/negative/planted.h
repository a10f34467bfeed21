// Bugs that plant.cmake plants in a copy of the policy, to prove that the swarm test finds them.

#ifndef KVTWIN_TESTS_PROPERTY_NEGATIVE_PLANTED_H_
#define KVTWIN_TESTS_PROPERTY_NEGATIVE_PLANTED_H_

#include <string_view>

namespace kvtwin {

// Whether $KVTWIN_PLANT names the bug.
bool planted(std::string_view bug);

}  // namespace kvtwin

#endif  // KVTWIN_TESTS_PROPERTY_NEGATIVE_PLANTED_H_
