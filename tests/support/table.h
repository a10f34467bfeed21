// Decision tables state the policy's behaviour as a readable page. Each line is one event, followed by all
// commands that it must cause (`-`: none):
//
//   arrive r1 prompt=32 output=2      launch s1 r1:32              # r1's whole prompt in step 1
//   done s1                           launch s2 r1:1
//   done s2                           finish r1:2
//
// Events:  arrive rN prompt=P output=O [session=S] [is=a:32,b:16] [triggers=2,5]
//            is: the first 32 tokens are units 0.. of space a, the next 16 units 0.. of space b; further
//            tokens have no identity. A capital letter is a space that belongs to this request alone.
//            [asks=PREFIX,B-E,B-E]: PromptSpans: the prefix, the query, and what is around it
//          done sN | done sN..sM [eos=rN] [retained=5,9 | live=0-4,8-9] | cancel rN | arrived tN |
//          failed tN | taken rN (its handed-over pages were read) | end S |
//          expect S s=SECONDS [tool=T]. Any event: [after=SECONDS], later than it would happen otherwise.
// Commands: launch sN rA:tokens ... | launch sN..sM ... (coalesced)   rA:8+32 reuses 32 tokens
//             and cut rN:begin-end:keep,... for a compression (? where the backend determines the counts)
//             and pad=T where dense kernels run on more tokens; rA:5p is a pass of 5 probe tokens
//             If queries are remembered: rA:tokens?B-E, their positions, and cut ...!B-E!B-E, what is forced
//          preempt rN | finish rN:tokens | cancelled rN:tokens | emitted rN:tokens
//          reject rN window|pool|empty needed>limit | recall tN pages | offload tN pages | forget S
//          send tN pages (swap out) | return tN pages (swap in) | spill tN pages (to the disk)
//          over rN pages (handed over) | recall tN pages disk (from the disk)
// retained: KV entries left in each head group; live: positions left; both of the step's only compression.
// `emitted` is compared only in tables that mention it, and so is `held N`, the GPU pages in use. Each line
// happens 10 ns after the one before.

#ifndef KVTWIN_TESTS_SUPPORT_TABLE_H_
#define KVTWIN_TESTS_SUPPORT_TABLE_H_

#include <string>

#include "engine/methods/axes.h"
#include "engine/methods/config.h"

namespace kvtwin::testing {

// Runs the table, verifies invariants after every line, and reports each line that differs to doctest.
void check_table(const CoreConfig& config, const std::string& table);
// With the policies given.
void check_table(const CoreConfig& config, PolicyAxes axes, const std::string& table);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_TABLE_H_
