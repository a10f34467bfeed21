// The vocabulary of the tasks (make_task.h): 256 ids, each of one kind.
//
// There is no text. A model of a few million parameters learns in minutes to look up, follow and copy
// symbols; whether its KV still answers does not depend on spelling.

#ifndef KVTWIN_TRACES_TASKS_TASK_TOKENS_H_
#define KVTWIN_TRACES_TASKS_TASK_TOKENS_H_

#include <cstdint>

namespace kvtwin::task {

constexpr uint32_t kVocab = 256;

// Speakers: each opens a span of its role. kEnd closes a turn of the model.
constexpr uint32_t kPad = 0, kBegin = 1, kSystem = 2, kUser = 3, kAssistant = 4, kRequest = 5, kResult = 6,
                   kEnd = 7;
// Requests, and words that bind symbols.
constexpr uint32_t kAsk = 8;       // ask K: the value of K, links followed
constexpr uint32_t kSame = 9;      // K1 same K2: K1 has the value of K2
constexpr uint32_t kList = 10;     // list K1 K2 ...: each with its value
constexpr uint32_t kAll = 11;      // all K: every value that K got, in order
constexpr uint32_t kSchema = 12;   // schema T P1 P2 P3: tool T takes these parameters
constexpr uint32_t kUse = 13;      // use T: request T with its parameters, literally
constexpr uint32_t kFetch = 14;    // fetch T: request T, which answers with a document
constexpr uint32_t kEarlier = 15;  // a question that precedes the document
constexpr uint32_t kToolFirst = 16, kTools = 16;
constexpr uint32_t kKeyFirst = 32, kKeys = 64;      // names of facts, parameters
constexpr uint32_t kValueFirst = 96, kValues = 64;  // a value has two of them
constexpr uint32_t kWordFirst = 160, kWords = 96;   // filler without meaning

}  // namespace kvtwin::task

#endif  // KVTWIN_TRACES_TASKS_TASK_TOKENS_H_
