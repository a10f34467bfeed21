// KVT_PLANTED(bug) is a place where tests/property/negative plants a bug, to prove that the swarm test finds
// it. It is false except in the copy of the policy that this test builds with KVTWIN_PLANTS; there the test
// selects the bug.

#ifndef KVTWIN_ENGINE_BASE_PLANTED_H_
#define KVTWIN_ENGINE_BASE_PLANTED_H_

#ifdef KVTWIN_PLANTS
#include <string_view>
namespace kvtwin {
bool planted(std::string_view bug);  // tests/property/negative/planted.cc
}
#define KVT_PLANTED(bug) ::kvtwin::planted(#bug)
#else
#define KVT_PLANTED(bug) false
#endif

#endif  // KVTWIN_ENGINE_BASE_PLANTED_H_
