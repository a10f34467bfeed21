// A file with the digests of swarm seeds, so that a move or a rename of the policy can prove that it changed
// no decision. One line a block of consecutive seeds: first seed, last seed, hash of their digests. Lines
// that start with # are comments.

#ifndef KVTWIN_TESTS_PROPERTY_SWARM_SWARM_DIGESTS_H_
#define KVTWIN_TESTS_PROPERTY_SWARM_SWARM_DIGESTS_H_

#include <cstdint>
#include <string>

namespace kvtwin::testing {

// Compares `blocks` blocks of each family of seeds with the file and prints those that differ. Returns their
// number; UINT64_MAX: the file cannot be read, or lacks one of these blocks.
uint64_t check_digests(const std::string& path, uint64_t blocks);

// Writes all blocks. Returns whether the file is complete.
bool write_digests(const std::string& path);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_SWARM_SWARM_DIGESTS_H_
