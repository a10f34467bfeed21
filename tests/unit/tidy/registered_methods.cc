// Prints the axis and the name of every method, for tidy_test.py.

#include <cstdio>
#include <string>

#include "engine/methods/registry.h"

int main() {
  for (const kvtwin::PolicyInfo& policy : kvtwin::all_policies())
    std::printf("%s %s\n", std::string(policy.axis).c_str(), std::string(policy.name).c_str());
}
